"""A reader's stream of the events of a queue. Each reader has a buffer of its own.

An event of the type `lost` replaces events that could not be received.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from bunqueue.client.connection.background_loop import check_thread, portal
from bunqueue.client.connection.options import Duration, seconds
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.event_channel import Channel, channel_to
from bunqueue.errors import BunqueueError, ResultError
from bunqueue.model.decoders import decoder
from bunqueue.model.events import LOST
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.moments import Moment
from bunqueue.protocol.readable import salvaged

logger = logging.getLogger("bunqueue.events")

BUFFER = 10_000


class QueueEvent(Struct, kw_only=True, frozen=True, rename="camel"):
    """Something that happened in a queue. Which fields are set depends on the type."""

    type: str = msgspec.field(name="eventType")
    """pushed, pulled, completed, failed, retried, removed, delayed, waiting, waiting-children, progress,
    duplicated, stalled, dropped; step, signalled, suspended, undoing and continued of workflows; paused,
    resumed, breaker and error-returned of the queue itself; lost: events are missing here."""
    queue: str
    job_id: str = ""
    """Empty if the event is about the queue."""
    timestamp_ms: int = msgspec.field(name="timestamp")
    """ms since the epoch."""
    raw_data: Any = msgspec.field(default=None, name="data")
    """Like `data`, except that reading it never raises."""
    data_bytes: int | None = None
    """The size of the data, if it was left out because it is larger than 256 KiB."""
    error: str | None = None
    """failed, dropped and error-returned: the error text."""
    terminal: bool = False
    """failed: there will be no other attempt."""
    reason: str | None = None
    """failed: "cancelled" if the job was cancelled; for workflows also "undone" if they were undone on
    request, and "stuck" if undoing them failed; undoing: why it is undone; breaker: what opened it; dropped:
    "max_entries", "max_age" or "keep_failed".
    """
    prev: str | None = None
    """retried and removed: the state before."""
    delay: int | None = None
    """delayed: ms."""
    progress: float | None = None
    message: str | None = None
    """progress: the job's message."""
    step: str | None = None
    """step: its name; signalled: the name of the signal."""
    status: str | None = None
    """step: how it ended; signalled: "taken" or "kept"; breaker: "open" or "closed"."""
    name: str | None = None
    """breaker: the name of the jobs that it applies to; None: it applies to the whole queue."""
    group: str | None = None
    """error-returned: the id of the group of errors, see `Queue.error_groups`."""
    count: int | None = None
    """lost: how many; None if unknown because the connection was lost."""

    timestamp = Moment("timestamp_ms")

    @property
    def data(self) -> Any:
        """completed: the result; failed: the job's data. Raises ResultError if `data_bytes` is set; then only
        the job itself has the data.
        """
        if self.data_bytes is not None:
            raise ResultError(
                f"the data of this {self.type} event of job {self.job_id} has {self.data_bytes} bytes, which "
                f"is more than an event carries; ask for the job itself, as with queue.handle(event.job_id)",
                field="data",
                value=self.data_bytes,
            )
        return self.raw_data


class _Frame(Struct):
    type: str = ""
    event: msgspec.Raw = msgspec.Raw(b"\xc0")


class _Wire(QueueEvent, frozen=True, kw_only=True, rename="camel"):
    """The event as received: times are floats."""

    timestamp_ms: float = msgspec.field(name="timestamp")  # type: ignore[assignment]
    delay: float | None = None  # type: ignore[assignment]


_frame = decoder(_Frame).decode
_wire = decoder(_Wire).decode


def read(payload: bytes) -> QueueEvent | None:
    """The event in a frame; None if the frame is not an event."""
    frame = _frame(payload)
    if frame.type != "event":
        return None
    try:
        wire = _wire(frame.event)
    except DECODE_ERRORS:  # its data is unreadable, the rest is not
        wire = msgspec.convert(salvaged(frame.event), _Wire)
    fields = msgspec.structs.asdict(wire)
    fields["timestamp_ms"] = int(wire.timestamp_ms)
    fields["delay"] = None if wire.delay is None else int(wire.delay)
    if wire.type == "progress" and isinstance(wire.raw_data, dict):
        fields["raw_data"], fields["message"] = None, wire.raw_data.get("message")
    return QueueEvent(**fields)


class AsyncEventStream:
    """The events of one queue that `wanted` accepts. It belongs to one event loop, where all streams of a
    queue share a connection; each stream has a buffer of its own.
    """

    def __init__(
        self, endpoint: Endpoint, queue: str, wanted: Callable[[QueueEvent], bool], size: int
    ) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._wanted = wanted
        self._size = size
        self._events: deque[QueueEvent] = deque()
        self._missed = 0  # events that did not fit into the buffer
        self._news = asyncio.Event()
        self._channel: Channel | None = None
        self._error: BunqueueError | None = None
        self._closed = False

    async def open(self) -> None:
        """Subscribe; nothing is missed after this returns. Raises BunqueueError."""
        self._channel = channel_to(self._endpoint, self._queue)
        try:
            await self._channel.join(self)
        except BaseException:
            await self.close()
            raise

    async def next(self, timeout: Duration | None = None) -> QueueEvent | None:  # noqa: ASYNC109
        """The next event; None at the end. Raises TimeoutError, or BunqueueError if no more will come."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                await self._wait_for_news()
        except TimeoutError:
            if self._error is not None:
                raise
            raise TimeoutError(
                f"queue {self._queue!r}: nothing has happened within {limit:g} s; ask again, or wait longer"
            ) from None
        if not self._events and not self._missed:
            return None
        return self._events.popleft() if self._events else self._report_missed()

    async def _wait_for_news(self) -> None:
        """Wait until there is an event, or the stream is closed."""
        while not self._events and not self._missed and not self._closed:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        """Unsubscribe; safe to call twice."""
        self._closed = True
        self._news.set()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.leave(self)

    # -- receiving, as a `Listener`

    def receive(self, payload: bytes) -> None:
        # Each stream decodes for itself: readers must not share mutable data.
        try:
            event = read(payload)
        except msgspec.MsgspecError as error:
            logger.warning("queue %r: an event is not readable: %s", self._queue, error)
            event = self._lost(1)
        if event is not None and (event.type == LOST or self._wanted(event)):
            self._put(event)

    def missed(self) -> None:
        self._put(self._lost(None))

    def fail(self, error: BunqueueError) -> None:
        self._error = error
        self._news.set()

    def _put(self, event: QueueEvent) -> None:
        if len(self._events) >= self._size:
            self._missed += 1
        else:
            if self._missed:
                self._events.append(self._report_missed())
            self._events.append(event)
        self._news.set()

    def _report_missed(self) -> QueueEvent:
        missed, self._missed = self._missed, 0
        return self._lost(missed)

    def _lost(self, count: int | None) -> QueueEvent:
        return QueueEvent(type=LOST, queue=self._queue, timestamp_ms=time.time_ns() // 1_000_000, count=count)


class EventStream:
    """The blocking twin: the stream runs in the background loop."""

    def __init__(
        self, endpoint: Endpoint, queue: str, wanted: Callable[[QueueEvent], bool], size: int
    ) -> None:
        check_thread()
        self._stream = portal().run(_make(endpoint, queue, wanted, size))

    def open(self) -> None:
        """Subscribe; nothing is missed after this returns. Raises BunqueueError."""
        portal().run(self._stream.open())

    def next(self, timeout: Duration | None = None) -> QueueEvent | None:
        """The next event; None at the end. Raises TimeoutError, or BunqueueError if no more will come."""
        check_thread()
        return portal().run(self._stream.next(timeout))

    def close(self) -> None:
        """Unsubscribe; safe to call twice."""
        portal().run(self._stream.close())


async def _make(
    endpoint: Endpoint, queue: str, wanted: Callable[[QueueEvent], bool], size: int
) -> AsyncEventStream:
    return AsyncEventStream(endpoint, queue, wanted, size)
