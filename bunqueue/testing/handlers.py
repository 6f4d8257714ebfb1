"""Which handler runs the jobs of which queue, and how it is called outside of a worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from bunqueue.client.connection_options import shown
from bunqueue.client.runner import ActiveJob, Handler
from bunqueue.client.worker import Worker

from .errors import SandboxError

if TYPE_CHECKING:
    from .engine import SandboxEngine

Source = Worker | Mapping[str, Handler] | Handler
"""A worker, handlers by queue, or a handler for the jobs of all queues."""


class Handlers:
    """By queue, in the order in which they were given; perhaps one for all others."""

    def __init__(self, sources: tuple[Source, ...]) -> None:
        self._by_queue: dict[str, Handler] = {}
        self._rest: Handler | None = None
        for source in sources:
            if isinstance(source, Worker):
                self._by_queue[source.queue] = source._orders.handler
            elif isinstance(source, Mapping):
                self._by_queue.update(source)
            elif callable(source):
                self._rest = source
            else:
                raise TypeError(
                    f"{shown(source)} runs no jobs; give a worker, a dict of handlers by queue, or a handler"
                )
        if not sources:
            raise TypeError("give what runs the jobs: a worker, a dict of handlers by queue, or a handler")

    def queues(self, engine: SandboxEngine) -> Iterator[str]:
        """Those that are to be looked at, in order."""
        yield from self._by_queue
        if self._rest is not None:
            yield from (queue for queue in engine.queues() if queue not in self._by_queue)

    def of(self, job: ActiveJob) -> Handler:
        """The handler of a job of one of `queues`."""
        handler = self._by_queue.get(job.queue) or self._rest
        assert handler is not None
        return handler


class Caller:
    """Calls handlers in the test's own thread: coroutines run in an event loop that lasts as long as the
    sandbox, and plain functions without one, as in a worker's thread."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def call(self, handler: Handler, job: ActiveJob) -> Any:
        """What the handler gives back.  Raises whatever it raises."""
        value = copy_context().run(handler, job)
        if not inspect.isawaitable(value):
            return value
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_awaited(value))

    def close(self) -> None:
        """End the event loop."""
        if self._runner is not None:
            self._runner.close()


async def call_async(handler: Handler, job: ActiveJob) -> Any:
    """As `Caller.call`, from a coroutine: plain functions run in a thread."""
    if inspect.iscoroutinefunction(handler):
        return await asyncio.create_task(_awaited(handler(job)))
    value = await asyncio.to_thread(handler, job)
    return await value if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def check_no_loop(what: str) -> None:
    """A blocking call must not be made by a coroutine."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SandboxError(f"{what}() would block the event loop that the handlers need: await {what}_async()")
