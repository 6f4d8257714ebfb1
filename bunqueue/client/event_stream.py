"""The events of a queue on their way to a reader: each reader has a buffer of its own.

Events that nobody could hear are lost. An event of the type `lost` stands in their place.
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
from msgspec.msgpack import Decoder

from bunqueue.client.connection.background_loop import check_thread, portal
from bunqueue.client.connection.options import Duration, seconds
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.event_channel import Channel, channel_to
from bunqueue.errors import BunqueueError, ResultError
from bunqueue.model.events import LOST
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.moments import Moment
from bunqueue.protocol.readable import salvaged

logger = logging.getLogger("bunqueue.events")

BUFFER = 10_000


class QueueEvent(Struct, kw_only=True, frozen=True, rename="camel"):
    """Something that happened in a queue; which fields are set depends on the type."""

    type: str = msgspec.field(name="eventType")
    """pushed, pulled, completed, failed, retried, removed, delayed, waiting, waiting-children, progress,
    duplicated, stalled, dropped; step, signalled, suspended, undoing and continued of workflows; paused,
    resumed and breaker of the queue itself; lost: events are missing here."""
    queue: str
    job_id: str = ""
    """"" when it is about the queue."""
    timestamp_ms: int = msgspec.field(name="timestamp")
    """ms since the epoch."""
    raw_data: Any = msgspec.field(default=None, name="data")
    """As `data`, which refuses to be read where it was left out."""
    data_bytes: int | None = None
    """How large the data is, if it was left out because it is larger than 256 KiB."""
    error: str | None = None
    """failed and dropped: its text."""
    terminal: bool = False
    """failed: there will be no other attempt."""
    reason: str | None = None
    """failed: "cancelled", when somebody stopped the job, and of workflows "undone", when somebody asked for
    that, and "stuck", when they could not be; undoing: why it is undone;
    breaker: what opened it; dropped: "max_entries", "max_age" or "keep_failed"."""
    prev: str | None = None
    """retried and removed: the state before."""
    delay: int | None = None
    """delayed: ms."""
    progress: float | None = None
    message: str | None = None
    """progress: what the job said to it."""
    step: str | None = None
    """step: its name; signalled: that of the signal."""
    status: str | None = None
    """step: how it has ended; signalled: "taken" or "kept"; breaker: "open" or "closed"."""
    name: str | None = None
    """breaker: the name of the jobs that it is for; None: it is for all of the queue."""
    count: int | None = None
    """lost: how many; None when that is not known, as the connection was lost."""

    timestamp = Moment("timestamp_ms")

    @property
    def data(self) -> Any:
        """completed: the result; failed: the job's data. Raises ResultError where `data_bytes` is set: then
        the job itself has it."""
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
    """As it comes: times are floats there."""

    timestamp_ms: float = msgspec.field(name="timestamp")  # type: ignore[assignment]
    delay: float | None = None  # type: ignore[assignment]


_frame = Decoder(_Frame).decode
_wire = Decoder(_Wire).decode


def read(payload: bytes) -> QueueEvent | None:
    """The event in a frame; None when it carries something else."""
    frame = _frame(payload)
    if frame.type != "event":
        return None
    try:
        wire = _wire(frame.event)
    except DECODE_ERRORS:  # its data cannot be read, the rest can
        wire = msgspec.convert(salvaged(frame.event), _Wire)
    fields = msgspec.structs.asdict(wire)
    fields["timestamp_ms"] = int(wire.timestamp_ms)
    fields["delay"] = None if wire.delay is None else int(wire.delay)
    if wire.type == "progress" and isinstance(wire.raw_data, dict):
        fields["raw_data"], fields["message"] = None, wire.raw_data.get("message")
    return QueueEvent(**fields)


class AsyncEventStream:
    """The events of one queue for which `wanted` is true. Made for one event loop, whose streams of a queue
    share a connection; each has a buffer of its own.
    """

    def __init__(
        self, endpoint: Endpoint, queue: str, wanted: Callable[[QueueEvent], bool], size: int
    ) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._wanted = wanted
        self._size = size
        self._events: deque[QueueEvent] = deque()
        self._missed = 0  # events for which there was no room
        self._news = asyncio.Event()
        self._channel: Channel | None = None
        self._error: BunqueueError | None = None
        self._closed = False

    async def open(self) -> None:
        """From now on nothing is missed. Raises BunqueueError."""
        self._channel = channel_to(self._endpoint, self._queue)
        try:
            await self._channel.join(self)
        except BaseException:
            await self.close()
            raise

    async def next(self, timeout: Duration | None = None) -> QueueEvent | None:  # noqa: ASYNC109
        """The next event; None at the end. Raises TimeoutError, or BunqueueError when there will be none."""
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
        """Until there is an event, or this is closed."""
        while not self._events and not self._missed and not self._closed:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        """Hear no more; safe to call twice."""
        self._closed = True
        self._news.set()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.leave(self)

    # -- hearing, as a `Listener`

    def hear(self, payload: bytes) -> None:
        # Each stream decodes for itself: data that two of them hold must not change under either.
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
    """The blocking twin: the stream lives in the background loop."""

    def __init__(
        self, endpoint: Endpoint, queue: str, wanted: Callable[[QueueEvent], bool], size: int
    ) -> None:
        check_thread()
        self._stream = portal().run(_make(endpoint, queue, wanted, size))

    def open(self) -> None:
        """From now on nothing is missed. Raises BunqueueError."""
        portal().run(self._stream.open())

    def next(self, timeout: Duration | None = None) -> QueueEvent | None:
        """The next event; None at the end. Raises TimeoutError, or BunqueueError when there will be none."""
        check_thread()
        return portal().run(self._stream.next(timeout))

    def close(self) -> None:
        """Hear no more; safe to call twice."""
        portal().run(self._stream.close())


async def _make(
    endpoint: Endpoint, queue: str, wanted: Callable[[QueueEvent], bool], size: int
) -> AsyncEventStream:
    return AsyncEventStream(endpoint, queue, wanted, size)
