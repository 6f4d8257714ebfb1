"""One job from its handler to its outcome: what it gave back, what it raised, or why it was ended."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from msgspec import Raw

from bunqueue.client.active_job import (
    CANCELLED,
    INTERRUPTED,
    TIMED_OUT,
    ActiveJob,
    Ending,
    Handler,
    current,
    stopped,
)
from bunqueue.client.job_options import encode_data
from bunqueue.client.middleware import CallNext, Middleware, around_running
from bunqueue.client.outcomes import Outcomes
from bunqueue.client.routes import ANY, Handlers, handler_of
from bunqueue.client.threads import Threads
from bunqueue.errors import JobTimeout


class Boss(Protocol):
    """Whom a runner tells what is no outcome for the server."""

    def timed_out(self, job: ActiveJob, error: JobTimeout) -> None:
        """The server has ended the attempt, or is about to."""

    def give_up(self, error: BaseException) -> None:
        """A handler wants the process to end."""


class Way(NamedTuple):
    """How jobs are run: in the event loop or not, and by whom, with all that is around."""

    is_async: bool
    call: CallNext


class Runner:
    """Calls the handler where it belongs, and hands its outcome on."""

    def __init__(
        self,
        handler: Handler | Handlers,
        threads: int,
        outcomes: Outcomes,
        boss: Boss,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self._outcomes = outcomes
        self._boss = boss
        self._threads = Threads(threads)
        self._middleware = middleware
        several = handler if isinstance(handler, Mapping) else {}
        self._ways = {name: self._way(each) for name, each in several.items()}
        self._rest = self._way(handler_of(several, ANY) if isinstance(handler, Mapping) else handler)
        self._loop = asyncio.get_running_loop()

    def _way(self, handler: Handler) -> Way:
        if _is_async(handler):
            return Way(True, around_running(self._middleware, handler))

        def call(job: ActiveJob) -> Any:
            current.set(job)  # in a context of this call alone
            return handler(job)

        async def in_thread(job: ActiveJob) -> Any:
            succeeded, value = await self._threads.run(call, job)
            if not succeeded:
                raise value
            return await value if inspect.isawaitable(value) else value

        return Way(False, around_running(self._middleware, in_thread))

    async def run(self, job: ActiveJob, task: asyncio.Task[None]) -> None:
        """In `task`. Raises nothing but CancelledError and GeneratorExit, when the slot itself is to end."""
        if job.ending is not None:  # before it began
            self._end(job)
            return
        way = self._ways.get(job.name, self._rest)
        if way.is_async:
            job.halt = task.cancel
        timer = None
        if job.timeout:
            timer = self._loop.call_later(job.timeout / 1000, end, job, Ending(TIMED_OUT))
        outer = current.set(job)
        try:
            value = await way.call(job)
            result = encode_data(value, "the result of the handler")
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _runs(task):  # the event loop is gone
                raise
            job.halt = None
            self._failed(job, error, task, way)
        else:
            job.halt = None
            if job.ending is None:
                self._outcomes.complete(job, result, value)
            else:
                self._done_anyway(job, result, value, task)
        current.reset(outer)
        if timer is not None:
            timer.cancel()

    def _failed(self, job: ActiveJob, error: BaseException, task: asyncio.Task[None], way: Way) -> None:
        cancelled = isinstance(error, asyncio.CancelledError) and task.cancelling() > 0
        _uncancel(task)
        if isinstance(error, KeyboardInterrupt | SystemExit) and way.is_async:
            self._boss.give_up(error)  # in a handler's thread it ends that call only
        if cancelled and job.ending is None:
            job.ending = Ending(INTERRUPTED)
        if job.ending is None:
            self._outcomes.fail(job, error)
        else:
            self._end(job)

    def _done_anyway(self, job: ActiveJob, result: Raw, value: object, task: asyncio.Task[None]) -> None:
        """Its run was ended, and it came to its own end all the same."""
        _uncancel(task)
        if job.ending is not None and job.ending.why == INTERRUPTED:
            self._outcomes.complete(job, result, value)
        else:
            self._end(job)

    def _end(self, job: ActiveJob) -> None:
        """It was ended before it was done."""
        assert job.ending is not None
        error = stopped(job, job.ending)
        if isinstance(error, JobTimeout):
            self._boss.timed_out(job, error)
        else:
            self._outcomes.stop_short(job, error)

    def stop(self) -> None:
        """No more jobs will come. Threads that still work are not waited for."""
        self._threads.stop()


def end(job: ActiveJob, ending: Ending) -> None:
    """Have the run of a job end before it is done; of several reasons the first counts, or cancelling."""
    if job.ending is None or ending.why == CANCELLED:
        job.ending = ending
    if job.halt is not None:
        job.halt()


def _runs(task: asyncio.Task[None]) -> bool:
    """Whether the event loop is in it, and not closing it."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def _uncancel(task: asyncio.Task[None]) -> None:
    """What was meant for one job must not reach the next one of its slot."""
    while task.cancelling():
        task.uncancel()


def _is_async(handler: Handler) -> bool:
    if inspect.iscoroutinefunction(handler):  # sees through functools.partial
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  # an object's method
