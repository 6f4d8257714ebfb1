"""The live events of a queue. `scripts/unasync.py` generates `blocking/events.py` from this file."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Literal, Self, Unpack, get_args

from bunqueue.client.connection.endpoint_options import EndpointOptions, endpoint_of
from bunqueue.client.connection.options import Duration, refused
from bunqueue.client.event_stream import BUFFER, AsyncEventStream, QueueEvent
from bunqueue.client.options import checks
from bunqueue.model.events import PUBLISHED

EventType = Literal[
    "pushed",
    "pulled",
    "completed",
    "failed",
    "retried",
    "removed",
    "delayed",
    "waiting",
    "waiting-children",
    "progress",
    "duplicated",
    "stalled",
    "paused",
    "resumed",
    "dropped",
    "step",
    "signalled",
    "suspended",
    "undoing",
    "continued",
    "breaker",
    "error-returned",
    "lost",
]
assert get_args(EventType) == PUBLISHED


class AsyncQueueEvents:
    """The events of a queue, in order, from the moment it is entered.

        async with AsyncQueueEvents("emails", types=["completed", "failed"]) as events:
            async for event in events:
                print(event.type, event.job_id, event.data)

    `types` and `job_ids`, one or several, select events; the default is all. All streams of a queue in an
    event loop share one connection, which is replaced when it is lost. An event of the type `lost` reports
    events that were missed during that time, or because the reader is more than `buffer` events behind; it is
    delivered whatever was selected. For the other options see `EndpointOptions`.
    """

    def __init__(
        self,
        queue: str,
        *,
        types: EventType | Iterable[EventType] | None = None,
        job_ids: str | Iterable[str] | None = None,
        buffer: int = BUFFER,
        **endpoint: Unpack[EndpointOptions],
    ) -> None:
        self.queue = checks.queue_name(queue)
        self._types = None if types is None else _types(types)
        self._job_ids = None if job_ids is None else _texts("job_ids", job_ids)
        self._size = checks.whole("buffer", buffer)
        self._endpoint = endpoint_of(endpoint)
        self._stream: AsyncEventStream | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue!r} at {self._endpoint.address})"

    async def open(self) -> None:
        """Subscribe: events that happen after this returns are received. Raises BunqueueError."""
        if self._stream is None and not self._closed:
            self._stream = AsyncEventStream(self._endpoint, self.queue, self._wants, self._size)
            try:
                await self._stream.open()
            except BaseException:
                self._stream = None
                raise

    async def next(self, timeout: Duration | None = None) -> QueueEvent | None:  # noqa: ASYNC109
        """The next event; None when this is closed.

        Raises TimeoutError if none comes in time, and AuthError if the server refuses this client.
        """
        await self.open()
        return await self._stream.next(timeout) if self._stream is not None else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        if self._closed:
            self._stream, self._closed = None, False
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening; safe to call twice. The iteration ends once the buffered events have been read."""
        self._closed = True
        if self._stream is not None:
            await self._stream.close()

    def _wants(self, event: QueueEvent) -> bool:
        return (self._types is None or event.type in self._types) and (
            self._job_ids is None or event.job_id in self._job_ids
        )


def _types(types: Iterable[str]) -> frozenset[str]:
    wanted = _texts("types", types)
    for each in wanted:
        checks.one_of("types", each, PUBLISHED)
    return wanted


def _texts(name: str, values: Iterable[str]) -> frozenset[str]:
    if isinstance(values, str):
        return frozenset((values,))
    try:
        return frozenset(values)
    except TypeError:
        raise refused(name, values, "is not allowed; give a list of texts") from None
