"""Finds the handler for a job, and calls it outside of a worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bunqueue.app.bunqueue import Bunqueue
from bunqueue.app.service import Service
from bunqueue.client.codecs.codec import Codec
from bunqueue.client.codecs.incoming import decoded
from bunqueue.client.codecs.outgoing import encoded
from bunqueue.client.connection.options import shown
from bunqueue.client.worker.active_job import ActiveJob, Handler
from bunqueue.client.worker.middleware import CallNext, Middleware, around_running, checked
from bunqueue.client.worker.routes import Table
from bunqueue.client.worker.worker import Worker

from .errors import SandboxError

if TYPE_CHECKING:
    from .engine import SandboxEngine

WHAT = "a worker, an app, a dict of handlers by queue, or a handler"
Source = Worker | Bunqueue | Mapping[str, Handler] | Handler
"""A worker, an app, handlers by queue, or a handler for the jobs of all queues."""


@dataclass(frozen=True, slots=True)
class Task:
    """A handler with its middleware."""

    handler: Handler
    middleware: tuple[Middleware, ...] = ()

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)


class Handlers:
    """The handlers by queue, in the given order, and perhaps one for all other queues."""

    def __init__(self, sources: tuple[Source, ...]) -> None:
        self._by_queue: dict[str, tuple[Table, tuple[Middleware, ...]]] = {}
        self._codecs: dict[str, Codec | None] = {}
        self._rest: Table | None = None
        self.apps: list[Bunqueue] = []
        self.declarations: list[Struct] = []
        """The commands that apps send to a server when they start: schedules and limits."""
        for source in sources:
            if isinstance(source, Worker):
                run = source._config.run
                self._codecs |= dict.fromkeys(source.queues, source._endpoint.codec)
                self._by_queue |= {queue: (run.table.of(queue), run.middleware) for queue in source.queues}
            elif isinstance(source, Bunqueue):
                around = checked(source._middleware)
                self._by_queue |= {queue: (Table(found), around) for queue, found in source.handlers.items()}
                codec = source._endpoint.codec
                self._codecs |= dict.fromkeys(source.handlers, codec)
                for each in Service(source).declarations():
                    self.declarations.append(each if codec is None else encoded(codec, each))
                self.apps.append(source)
            elif isinstance(source, Mapping):
                self._by_queue |= {queue: (Table(handler), ()) for queue, handler in source.items()}
            elif callable(source):
                self._rest = Table(source)
            else:
                raise TypeError(f"{shown(source)} runs no jobs; give {WHAT}")
        if not sources:
            raise TypeError(f"give what runs the jobs: {WHAT}")

    def queues(self, engine: SandboxEngine) -> Iterator[str]:
        """The queues to drain, in order."""
        yield from self._by_queue
        if self._rest is not None:
            yield from (queue for queue in engine.queues() if queue not in self._by_queue)

    def outgoing(self, queue: str, command: Struct) -> Struct:
        """What is said of a job of a queue, as its worker or app says it."""
        codec = self._codecs.get(queue)
        return command if codec is None else encoded(codec, command)

    def incoming(self, queue: str, payload: bytes, command: Struct, engine: SandboxEngine) -> bytes:
        """The answer to a command as its worker or app reads it; handlers without these read what any codec
        of the test can."""
        if queue not in self._codecs:
            return engine.opened(payload)
        codec = self._codecs[queue]
        return payload if codec is None else decoded(codec, payload, command)

    def of(self, job: ActiveJob) -> Task:
        """The handler for a job of one of `queues`."""
        found, middleware = self._by_queue.get(job.queue) or (self._rest, ())
        assert found is not None
        return Task(found.find(job.name).handler, middleware)


class Caller:
    """Calls handlers in the test's own thread: coroutines run in an event loop that lasts as long as the
    sandbox, and plain functions without one, as in a worker's thread."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def call(self, task: Task, job: ActiveJob) -> Any:
        """Run a job and return the handler's result.  Raises what the handler raises."""
        if task.middleware:
            run = around_running(task.middleware, _innermost(task.handler))
            value: Any = _awaited(run, job)
            if not task.is_async:
                return copy_context().run(_without_loop, value)
        else:
            value = copy_context().run(task.handler, job)
        if not inspect.isawaitable(value):
            return value
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_until_halted(value, job), context=copy_context())

    def end_dependencies(self, apps: list[Bunqueue]) -> None:
        """End the values that the handlers of apps have kept."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        self._runner.run(end_dependencies(apps))

    def close(self) -> None:
        """End the event loop."""
        if self._runner is not None:
            self._runner.close()


async def end_dependencies(apps: list[Bunqueue]) -> None:
    """As `Caller.end_dependencies`; an app that works keeps them."""
    for app in apps:
        if app._service is None:
            await app._dependencies.close()


async def call_async(task: Task, job: ActiveJob) -> Any:
    """As `Caller.call`, from a coroutine: plain functions run in a thread."""

    async def in_thread(job: ActiveJob) -> Any:
        value = await asyncio.to_thread(task.handler, job)
        return await value if inspect.isawaitable(value) else value

    run = around_running(task.middleware, task.handler if task.is_async else in_thread)
    return await asyncio.create_task(_until_halted(run(job), job) if task.is_async else _awaited(run, job))


def _innermost(handler: Handler) -> CallNext:
    async def run(job: ActiveJob) -> Any:
        value = handler(job)
        return await value if inspect.isawaitable(value) else value

    return run


async def _awaited(run: CallNext, job: ActiveJob) -> Any:
    return await run(job)


async def _until_halted(value: Awaitable[Any], job: ActiveJob) -> Any:
    """Await ``value`` in the current task, which is cancelled to end the run."""
    task = asyncio.current_task()
    assert task is not None
    job.halt = task.cancel
    try:
        return await value
    finally:
        job.halt = None


def _without_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends, as the middleware around a plain function must not."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise SandboxError(
        "drain: middleware around a plain function waits for something, and there is no event loop: make the "
        "test a coroutine, and await drain_async()"
    )


def check_no_loop(what: str) -> None:
    """Raise SandboxError for a blocking call from a coroutine."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SandboxError(f"{what}() would block the event loop that the handlers need: await {what}_async()")
