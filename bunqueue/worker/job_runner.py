"""One job, from its handler to its outcome: its result, its exception, or why it was ended."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from msgspec import Raw

from bunqueue.client.conversion.raised import is_a
from bunqueue.client.interrupts import is_ctrl_c, runs
from bunqueue.errors import JobSuspended, LockLost, ProcessBroken
from bunqueue.worker import log
from bunqueue.worker.active_job import (
    CANCELLED,
    INTERRUPTED,
    TIMED_OUT,
    ActiveJob,
    Ending,
    JobChannel,
    current,
    stopped,
)
from bunqueue.worker.forks import Origin, end_copy
from bunqueue.worker.log import logger
from bunqueue.worker.middleware import CallNext, Middleware, around_running
from bunqueue.worker.processes.pool import Processes, Recycle
from bunqueue.worker.reencoding import reencode
from bunqueue.worker.reporting.reporter import Reporter
from bunqueue.worker.reporting.results import encode_result
from bunqueue.worker.retry_rules import RetryRules
from bunqueue.worker.routes import ANY, LOOP, PROCESS, THREAD, Plan, Table
from bunqueue.worker.threads import Threads

PROCESS_PATIENCE = 3.0  # seconds for a process to end an interrupted job
OUT_OF_TIME = 5.0  # seconds for a process to end a job that timed out


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What to run, and how many of each kind at a time."""

    table: Table
    threads: int = 1
    processes: int = 1
    recycle: Recycle = field(default_factory=Recycle)
    log_level: int | None = None
    """Records from this level on go to the job's log."""
    middleware: tuple[Middleware, ...] = ()


class _Way(NamedTuple):
    """How the jobs of one plan are run."""

    call: CallNext
    in_loop: bool
    in_thread: bool
    at_most_once: bool


class JobRunner:
    """Calls handlers where they belong, and reports their outcomes."""

    def __init__(
        self,
        config: RunConfig,
        reporter: Reporter,
        give_up: Callable[[BaseException], None],
        is_ending: Callable[[], bool],
        channel: JobChannel,
        make_threads: Callable[[int], Threads] = Threads,
    ) -> None:
        """`give_up` is called when no handler can run, or when Ctrl-C was raised in one; `is_ending` says
        whether the worker is ending running jobs.
        """
        self._table = table = config.table
        self._channel = channel
        self._reporter = reporter
        self._give_up = give_up
        self._is_ending = is_ending
        self._loop = asyncio.get_running_loop()
        # A copy of the event loop would read from this process's connections: it must not run.
        self._origin = Origin(lambda: self._loop.call_soon(os._exit, 0))
        self._threads = make_threads(config.threads) if THREAD in table.executors else None
        # One thread waits for each process.
        self._waiters = Threads(config.processes) if PROCESS in table.executors else None
        self._processes = Processes(table.paths, config.recycle, channel, config.log_level)
        self._ways = self._ways_of(table, config.middleware)
        self._of_queue = {
            queue: self._ways_of(each, config.middleware) for queue, each in table.of_queue.items()
        }

    def grow(self, before: int, size: int) -> None:
        """Make room for `size` plain functions at a time, if there was room for `before`."""
        for pool in (self._threads, self._waiters):
            if pool is not None and pool.size >= before:
                pool.size = max(pool.size, size)

    def _ways_of(self, table: Table, middleware: tuple[Middleware, ...]) -> dict[str, _Way]:
        """Keyed by job name; `ANY` is always present."""
        return {name: self._way(table.find(name), middleware) for name in [*table.plans, ANY]}

    def _way(self, plan: Plan, middleware: tuple[Middleware, ...]) -> _Way:
        if plan.executor == LOOP:
            call = plan.handler
        elif plan.executor == THREAD:
            call = partial(self._in_thread, partial(_call, plan.handler))
        else:
            call = partial(self._in_process, plan.path, plan.rules)
        around = around_running(middleware, call)
        return _Way(around, plan.executor == LOOP, plan.executor == THREAD, plan.at_most_once)

    async def run(self, job: ActiveJob, task: asyncio.Task[None]) -> None:
        """Runs in `task`. Raises only CancelledError and GeneratorExit, when the slot itself has to end."""
        if job.ending is not None:  # before it began
            self._end(job)
            return
        ways = self._of_queue[job.queue] if self._of_queue else self._ways
        way = ways.get(job.name) or ways[ANY]
        if job.outdated is not None:
            await reencode(job)
        if way.at_most_once and not await self._reporter.complete_first(job):
            return
        if way.in_loop:
            job.halt = task.cancel
        timer = None
        if job.timeout and job.workflow.undoing is None:
            timer = self._loop.call_later(job.timeout / 1000, self._time_out, job, way)
        begun = 0.0
        if logger.isEnabledFor(logging.INFO):  # skips all logging costs if nobody reads the log
            log.job_started(job)
            begun = monotonic()
        outer = current.set(job)
        try:
            value = await way.call(job)
            if begun:
                job.took = monotonic() - begun
            result = encode_result(value)
        except BaseException as error:
            if begun:
                job.took = monotonic() - begun
            if self._origin.is_left:
                end_copy(False, error)
            if type(error) is GeneratorExit and not runs(task):  # the event loop is gone
                raise
            job.halt = None
            if job.calls and timer is not None:
                timer.cancel()
            if job.calls and _may_run_again(job, error):
                await _until_ended(job)
            self._failed(job, error, task)
        else:
            if self._origin.is_left:
                end_copy(True, value)
            job.halt = None
            if job.ending is None:
                self._reporter.complete(job, result, value)
            else:
                self._done_anyway(job, result, value, task)
        current.reset(outer)
        if timer is not None:
            timer.cancel()

    def _time_out(self, job: ActiveJob, way: _Way) -> None:
        if job.ending is None:
            log.job_timed_out(job, in_thread=way.in_thread)
        end(job, Ending(TIMED_OUT, None, OUT_OF_TIME))

    def _failed(self, job: ActiveJob, error: BaseException, task: asyncio.Task[None]) -> None:
        """The exception is the outcome of the job. The job goes back without an outcome only if the worker
        ended it: a task cancelled by its own code has failed.
        """
        cancelled = is_a(error, asyncio.CancelledError) and task.cancelling() > 0
        if job.ending is not None:
            _uncancel(task)
        broken = is_a(error, ProcessBroken)
        if broken or is_ctrl_c(error):
            self._give_up(error)
        if job.ending is None and (broken or (cancelled and self._is_ending())):
            job.ending = Ending(INTERRUPTED)
        if job.ending is None:
            self._reporter.fail(job, error)
        else:
            self._end(job)

    def _done_anyway(self, job: ActiveJob, result: Raw, value: object, task: asyncio.Task[None]) -> None:
        """The run was ended, but its handler returned a result anyway."""
        _uncancel(task)
        if job.ending is not None and job.ending.why == INTERRUPTED:
            self._reporter.complete(job, result, value)
        else:
            self._end(job)

    def _end(self, job: ActiveJob) -> None:
        """The run was ended early."""
        assert job.ending is not None
        self._reporter.stop_short(job, stopped(job, job.ending))

    async def _in_thread(self, call: Callable[[ActiveJob], Any], job: ActiveJob) -> Any:
        assert self._threads is not None
        succeeded, value = await self._threads.run(call, job)
        if not succeeded:
            raise value
        if inspect.isawaitable(value):
            job.halt = partial(_cancel, asyncio.current_task())
            if job.ending is not None:  # it could not be cancelled before
                job.halt()
            return await value
        return value

    async def _in_process(self, path: str, rules: RetryRules | None, job: ActiveJob) -> Any:
        assert self._waiters is not None
        running = self._waiters.run(partial(self._run_there, path), job)
        while not running.done():  # a slot that has to end waits for its process, which is also ended
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError:
                if job.ending is None:
                    end(job, Ending(INTERRUPTED, grace=PROCESS_PATIENCE))
        succeeded, value = running.result()
        if not succeeded:
            raise value if rules is None else rules.applied(job, value)
        return value

    def _run_there(self, path: str, job: ActiveJob) -> Any:
        return self._processes.run(job, path)

    def notify_stopping(self) -> None:
        """The worker takes no more jobs."""
        self._processes.notify_stopping()
        self._table.withdraw(self._channel)

    def stop(self) -> None:
        """No more jobs will come. Blocks until processes have ended; does not wait for busy threads."""
        for threads in (self._threads, self._waiters):
            if threads is not None:
                threads.stop()
        self._processes.stop()


def _cancel(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()


def _call(handler: Callable[[ActiveJob], Any], job: ActiveJob) -> Any:
    """Runs in a thread, in a context for this call alone."""
    current.set(job)
    return handler(job)


def _may_run_again(job: ActiveJob, error: BaseException) -> bool:
    """Whether the job may be run again soon while its worker still holds it."""
    if job.ending is not None:
        return job.ending.why != INTERRUPTED
    return not is_a(error, JobSuspended, LockLost)


async def _until_ended(job: ActiveJob) -> None:
    """Wait until no thread runs a step of the job, to keep two from doing so; or until the worker stops."""
    ending = job.ending
    with suppress(asyncio.CancelledError):
        await asyncio.wait(list(job.calls))
    if job.ending is not None and job.ending.why == INTERRUPTED:  # the run itself had ended before
        job.ending = ending


def end(job: ActiveJob, ending: Ending) -> None:
    """End the run of a job early. The first reason counts, unless a later one is a cancellation."""
    if job.ending is None or ending.why == CANCELLED:
        job.ending = ending
    if job.halt is not None:
        job.halt()


def _uncancel(task: asyncio.Task[None]) -> None:
    """Keep a cancellation of one job from reaching the next job of its slot. A task cancelled twice may be
    the event loop ending the slot; that does no harm, because the loop cancels it again.
    """
    if task.cancelling() == 1:
        task.uncancel()
