"""One job from its handler to its outcome: what it gave back, what it raised, or why it was ended."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Protocol

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
from bunqueue.client.middleware import Middleware, around_running
from bunqueue.client.outcomes import Outcomes
from bunqueue.client.threads import Threads
from bunqueue.errors import JobTimeout


class Boss(Protocol):
    """Whom a runner tells what is no outcome for the server."""

    def timed_out(self, job: ActiveJob, error: JobTimeout) -> None:
        """The server has ended the attempt, or is about to."""

    def give_up(self, error: BaseException) -> None:
        """A handler wants the process to end."""


class Runner:
    """Calls the handler where it belongs, and hands its outcome on."""

    def __init__(
        self,
        handler: Handler,
        threads: int,
        outcomes: Outcomes,
        boss: Boss,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self.is_async = _is_async(handler)
        self._handler = handler
        self._outcomes = outcomes
        self._boss = boss
        self._threads = None if self.is_async else Threads(threads)
        self._call = around_running(middleware, handler if self.is_async else self._in_thread)
        self._loop = asyncio.get_running_loop()

    async def run(self, job: ActiveJob, task: asyncio.Task[None]) -> None:
        """In `task`. Raises nothing but CancelledError and GeneratorExit, when the slot itself is to end."""
        if job.ending is not None:  # before it began
            self._end(job)
            return
        if self.is_async:
            job.halt = task.cancel
        timer = None
        if job.timeout:
            timer = self._loop.call_later(job.timeout / 1000, end, job, Ending(TIMED_OUT))
        outer = current.set(job)
        try:
            value = await self._call(job)
            result = encode_data(value, "the result of the handler")
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _runs(task):  # the event loop is gone
                raise
            job.halt = None
            self._failed(job, error, task)
        else:
            job.halt = None
            if job.ending is None:
                self._outcomes.complete(job, result, value)
            else:
                self._done_anyway(job, result, value, task)
        current.reset(outer)
        if timer is not None:
            timer.cancel()

    def _failed(self, job: ActiveJob, error: BaseException, task: asyncio.Task[None]) -> None:
        cancelled = isinstance(error, asyncio.CancelledError) and task.cancelling() > 0
        _uncancel(task)
        if isinstance(error, KeyboardInterrupt | SystemExit) and self.is_async:
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

    async def _in_thread(self, job: ActiveJob) -> Any:
        assert self._threads is not None
        succeeded, value = await self._threads.run(self._call_here, job)
        if not succeeded:
            raise value
        return await value if inspect.isawaitable(value) else value

    def _call_here(self, job: ActiveJob) -> Any:
        current.set(job)  # in a context of this call alone
        return self._handler(job)

    def stop(self) -> None:
        """No more jobs will come. Threads that still work are not waited for."""
        if self._threads is not None:
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
