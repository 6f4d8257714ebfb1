"""Queues and workers that live as long as a FastAPI or Starlette application, the id of a request in the log
of its jobs, and routes that show jobs (with FastAPI).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from typing import TYPE_CHECKING, Any

from bunqueue.integrations.request_id import RequestId, RequestIdMiddleware, request_id
from bunqueue.worker.worker import Worker

__all__ = ["Lifespan", "RequestId", "RequestIdMiddleware", "accepted", "job_router", "request_id"]

if TYPE_CHECKING:
    from bunqueue.integrations.job_routes import accepted, job_router

logger = logging.getLogger("bunqueue.worker")

Part = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]
"""A queue, a flow producer, a worker: any object for `with` or `async with`."""
State = Mapping[str, Any] | None


class Lifespan:
    """The `lifespan=` argument for FastAPI or Starlette.

        emails = AsyncQueue("emails")
        app = FastAPI(lifespan=Lifespan(emails, Worker("emails", send)))

    The parts are opened in their order when the application starts, and closed in reverse order when it ends:
    workers finish the jobs that they hold. A worker inside the application is meant for development and small
    programs; otherwise, give it a process of its own. `inner` is a lifespan of your own, inside this one.
    """

    def __init__(
        self, *parts: Part, inner: Callable[[Any], AbstractAsyncContextManager[State]] | None = None
    ) -> None:
        self._parts = parts
        self._inner = inner

    @asynccontextmanager
    async def _open(self, app: Any) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            for part in self._parts:
                await _enter(stack, part)
            yield await stack.enter_async_context(self._inner(app)) if self._inner else None

    def __call__(self, app: Any) -> AbstractAsyncContextManager[State]:
        """Called by the framework."""
        return self._open(app)


def __getattr__(name: str) -> Any:
    if name in ("accepted", "job_router"):  # for FastAPI only; the rest is for Starlette as well
        from bunqueue.integrations import job_routes

        return getattr(job_routes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


async def _enter(stack: AsyncExitStack, part: Part) -> None:
    if isinstance(part, Worker):
        await part.start()
        serving = asyncio.create_task(part.serve())
        serving.add_done_callback(lambda task: _ended(part, task))
        stack.push_async_callback(asyncio.wait, [serving])
        stack.push_async_callback(part.stop)
    elif isinstance(part, AbstractAsyncContextManager):
        await stack.enter_async_context(part)
    else:
        part.__enter__()
        stack.push_async_callback(asyncio.to_thread, part.__exit__, None, None, None)


def _ended(worker: Worker, task: asyncio.Task[BaseException | None]) -> None:
    """Log the end of a worker, because nothing awaits it here."""
    if not task.cancelled() and (problem := task.exception() or task.result()) is not None:
        logger.error("queue %r: the worker has ended", worker.queue, exc_info=problem)
