"""Sends the outcomes of jobs to the server, in batches.

Nothing is dropped before the server has answered: after a lost connection the same is sent again over the
next one, with the same tokens, so it can only affect the same attempt. Each queue is reported separately, as
its shard may be down, and an error with one job affects only that job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from msgspec import UNSET, Raw, Struct

from bunqueue.client import background
from bunqueue.client.interrupts import is_ctrl_c
from bunqueue.client.models.jobs import OneJob
from bunqueue.errors import (
    CommandFailed,
    JobNotFound,
    JobStopped,
    JobSuspended,
    JobTimeout,
    LockLost,
    Postpone,
)
from bunqueue.protocol.commands import Reply, core, query
from bunqueue.protocol.commands.core import Ack, AckBatch, Fail, FailAnswer, FailBatch, FailFields
from bunqueue.worker.active_job import CANCELLED, ActiveJob, Ending, stopped
from bunqueue.worker.outcomes import Outcomes
from bunqueue.worker.reporting.failures import Report, checked, fail_command, made_final, stop_command
from bunqueue.workflow.outcomes import Undone

R = TypeVar("R", bound=Reply)
logger = logging.getLogger("bunqueue.worker")

MAX_BATCH = 500  # jobs in one command: those queued while the last command was in flight
MAX_BATCH_BYTES = 8 << 20  # of results in one command; a frame holds 64 MiB
MAX_SINGLES = 50  # parallel commands if each job needs its own; the limit of a server
TOO_LATE = "something else, usually its timeout, had decided the job before"


class Ask(Protocol):
    """Like `RetryingCaller.ask`."""

    async def __call__(self, command: Struct, reply: type[R], /) -> tuple[R | CommandFailed, bool]: ...


class _Success(NamedTuple):
    job: ActiveJob
    result: Raw
    value: object


class _Failure(NamedTuple):
    """A run without a result. If the worker has ended the run, `error` is a JobStopped."""

    job: ActiveJob
    error: BaseException
    command: Report
    is_stop: bool = False


_Outcome = _Success | _Failure


class _Batcher:
    """The outcomes of one queue, for one shard."""

    def __init__(self) -> None:
        self.successes: list[_Success] = []
        self.failures: list[_Failure] = []
        self.flight: list[_Outcome] = []
        """Outcomes in flight."""
        self.repeats = False
        """Whether the next outcomes may have been sent before."""
        self.due = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of outcomes that are not in flight yet."""
        return len(self.successes) + len(self.failures)

    def take(self) -> tuple[list[_Success], list[_Failure]]:
        """The next outcomes to send; they are in flight from now on."""
        successes, size = self.successes, 0
        for index, success in enumerate(successes):
            size += len(memoryview(success.result))
            if index == MAX_BATCH or (index and size > MAX_BATCH_BYTES):
                successes = successes[:index]
                break
        self.successes = self.successes[len(successes) :]
        failures, self.failures = self.failures[:MAX_BATCH], self.failures[MAX_BATCH:]
        self.flight = [*successes, *failures]
        return successes, failures

    def return_flight(self) -> None:
        """Put unanswered outcomes that were in flight back into the queue."""
        for outcome in reversed(self.flight):
            if isinstance(outcome, _Success):
                self.successes.insert(0, outcome)
            else:
                self.failures.insert(0, outcome)
        if self.flight:
            self.repeats, self.flight = True, []
            self.due.set()


class Reporter:
    """Reports outcomes in the background; `drain` it before `stop`."""

    def __init__(
        self,
        ask: Ask,
        stats: Outcomes,
        sent: Callable[[], None],
        ended: Callable[[asyncio.Task[None]], None],
        *,
        batch: int,
        delay: float,
    ) -> None:
        """An outcome waits until there are `batch` of them, at most `delay` seconds. `sent` is called when
        outcomes have been sent; `ended` with each task that has ended, which before `stop` only happens if
        something is wrong.
        """
        self._left = 0  # outcomes that the server has not answered
        self._persist = ask
        self._stats = stats
        self._sent = sent
        self._task_ended = ended
        self._batch = batch
        self._delay = delay
        self._batchers: dict[str, _Batcher] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    @property
    def unsent(self) -> int:
        """The number of outcomes that are not in flight yet."""
        return sum(batcher.waiting for batcher in self._batchers.values())

    async def drain(self) -> None:
        """Wait until the server has everything."""
        for batcher in self._batchers.values():
            self._work_on(batcher)
        self.flush()
        await self._empty.wait()

    async def stop(self) -> None:
        """Stop reporting; discard what is not reported."""
        self._stopped = True
        tasks = [batcher.task for batcher in self._batchers.values() if batcher.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for batcher in self._batchers.values():
            if batcher.timer is not None:
                batcher.timer.cancel()

    # -- in

    async def complete_first(self, job: ActiveJob) -> bool:
        """Complete a job before its handler is called. Returns whether it may be called: nobody else will run
        the job.
        """
        reply = await self._ack(job, None)
        if isinstance(reply, CommandFailed):
            self._record(self._stats.job_lost, job, reply.reason)
        elif reply.data:
            self._too_late(job, reply.data.reason)
        else:
            job.acked = True
            self._stats.job_acked(job)
        return job.acked

    def complete(self, job: ActiveJob, result: Raw, value: object) -> None:
        if job.acked:
            self._record(self._stats.job_completed, job, value)
            return
        batcher = self._batcher(job)
        batcher.successes.append(_Success(job, result, value))
        self._wait_for_more(batcher, job)

    def fail(self, job: ActiveJob, error: BaseException, text: str = "") -> None:
        """Report what its handler raised; `text` replaces the error's own text."""
        error = checked(job, error)
        if job.acked:
            self._record(self._stats.job_failed, job, error)
            return
        job.failing = True
        batcher = self._batcher(job)
        batcher.failures.append(_Failure(job, error, fail_command(job, error, text)))
        self._wait_for_more(batcher, job)

    def stop_short(self, job: ActiveJob, error: JobStopped) -> None:
        """The worker has ended its run: JobCancelled, JobInterrupted, or JobTimeout, which is a failure."""
        job.failing = failed = isinstance(error, JobTimeout)
        if job.acked:
            self._record(self._stats.job_failed if failed else self._stats.job_stopped, job, error)
            return
        batcher = self._batcher(job)
        batcher.failures.append(_Failure(job, error, stop_command(job, error), is_stop=not failed))
        batcher.due.set()

    def flush(self) -> None:
        """Do not wait for more outcomes: none will come for a while."""
        for batcher in self._batchers.values():
            if batcher.waiting:
                batcher.due.set()

    def _wait_for_more(self, batcher: _Batcher, job: ActiveJob) -> None:
        """Send waiting outcomes once there are enough of them, or after a while."""
        if batcher.waiting >= self._batch or job.timeout:  # waiting must not make it late
            batcher.due.set()
        elif batcher.timer is None:
            batcher.timer = self._loop.call_later(self._delay, batcher.due.set)

    def _batcher(self, job: ActiveJob) -> _Batcher:
        """The batcher for an outcome of this job; counts the outcome."""
        batcher = self._batchers.get(job.queue)
        if batcher is None:
            batcher = self._batchers[job.queue] = _Batcher()
            self._work_on(batcher)
        self._left += 1
        self._empty.clear()
        return batcher

    # -- out

    def _work_on(self, batcher: _Batcher) -> None:
        """Start a task for a batcher without one; all tasks of the loop may have been cancelled."""
        if self._stopped or (batcher.task is not None and not batcher.task.done()):
            return
        batcher.return_flight()
        batcher.task = background.begin(self._loop, self._work(batcher))
        batcher.task.add_done_callback(self._task_ended)

    async def _work(self, batcher: _Batcher) -> None:
        while True:
            await batcher.due.wait()
            batcher.due.clear()
            if batcher.timer is not None:
                batcher.timer.cancel()
                batcher.timer = None
            successes, failures = batcher.take()
            if batcher.waiting:  # too many for one command
                batcher.due.set()
            count = len(batcher.flight)
            self._loop.call_soon(self._sent)  # once the commands of the next line are sent
            repeated, batcher.repeats = batcher.repeats, False
            await _all(self._parts(successes, failures, repeated))
            batcher.flight = []
            self._left -= count
            if batcher.waiting >= self._batch:
                batcher.due.set()
            if not self._left:
                self._empty.set()

    def _parts(
        self, successes: list[_Success], failures: list[_Failure], repeated: bool
    ) -> Iterable[Awaitable[None]]:
        """The commands to send at the same time, each guarded."""
        if successes:
            jobs = [success.job for success in successes]
            yield self._guarded(jobs, self._complete(successes, repeated))
        plain = [failure for failure in failures if type(failure.command) is Fail]
        if len(plain) > 1:
            yield self._guarded([failure.job for failure in plain], self._fail_many(plain, repeated))
        elif plain:
            yield self._guarded([plain[0].job], self._fail(plain[0], repeated))
        others = [failure for failure in failures if type(failure.command) is not Fail]
        for start in range(0, len(others), MAX_SINGLES):
            yield self._fail_each(others[start : start + MAX_SINGLES], repeated)

    async def _fail_each(self, failures: Sequence[_Failure], repeated: bool) -> None:
        await _all(self._guarded([each.job], self._fail(each, repeated)) for each in failures)

    async def _guarded(self, jobs: Sequence[ActiveJob], reporting: Awaitable[None]) -> None:
        """An error here must not end the task that reports for all jobs of the queue."""
        try:
            await reporting
        except Exception as error:
            with suppress(Exception):  # a user's log handlers may raise as well
                logger.exception("outcomes of %d jobs could not be reported", len(jobs))
            for job in jobs:
                if self._stats.has_lock(job):
                    self._record(
                        self._stats.job_lost, job, f"it could not be reported: {type(error).__name__}"
                    )

    def _record(self, method: Callable[..., None], job: ActiveJob, *arguments: object) -> None:
        """Log and count it. This may run a user's code: log handlers, filters."""
        try:
            method(job, *arguments)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            with suppress(Exception):
                logger.exception("what became of job %s cannot be logged", job.id)

    async def _complete(self, successes: list[_Success], repeated: bool) -> None:
        command = AckBatch(
            ids=[success.job.id for success in successes],
            results=[success.result for success in successes],
            tokens=[success.job.token for success in successes],
        )
        reply, unsure = await self._persist(command, core.AckBatchReply)
        if isinstance(reply, CommandFailed):
            # One wrong token refuses the whole batch, an unknown job only itself: so ask for each separately.
            named, unsure = reply.reason, unsure or repeated
            for start in range(0, len(successes), MAX_SINGLES):
                part = successes[start : start + MAX_SINGLES]
                await _all(self._complete_one(each, unsure or each.job.id not in named) for each in part)
            return
        ignored = set(reply.data.ignored_ids) if reply.data else ()
        for job, _, value in successes:
            if job.id in ignored:
                self._too_late(job)
            else:
                self._record(self._stats.job_completed, job, value)

    async def _complete_one(self, success: _Success, unsure: bool) -> None:
        """`unsure`: an earlier command may already have completed the job."""
        job, result, value = success
        reply = await self._ack(job, result, unsure=unsure)
        if isinstance(reply, LockLost):
            self._record(self._stats.job_lost, job, reply.reason)
        elif isinstance(reply, CommandFailed):  # the server refuses this result, or no frame can hold it
            text = f"the result was refused: {reply.reason}; its handler has run, so it is not tried again"
            error = made_final(reply)
            await self._fail(_Failure(job, error, fail_command(job, error, text)), repeated=False)
        elif reply.data:
            self._too_late(job, reply.data.reason)
        else:
            self._record(self._stats.job_completed, job, value)

    async def _ack(
        self, job: ActiveJob, result: Raw | None, *, unsure: bool = False
    ) -> core.AckReply | CommandFailed:
        """Complete a job. LockLost only if somebody else holds or has decided it."""
        payload = Raw(b"\xc0") if result is None else result
        reply, repeated = await self._decide(
            job, Ack(id=job.id, result=payload, token=job.token), core.AckReply
        )
        by_us = isinstance(reply, LockLost) and (unsure or repeated) and "token" not in reply.reason
        return core.AckReply() if by_us and await self._is_completed(job) else reply

    async def _is_completed(self, job: ActiveJob) -> bool:
        reply, _ = await self._persist(query.GetState(id=job.id), query.StateReply)
        gone = "unknown" if job.remove_on_complete else "completed"
        return isinstance(reply, query.StateReply) and reply.state in ("completed", gone)

    async def _fail_many(self, failures: list[_Failure], repeated: bool) -> None:
        """Use one command; send those that it could not decide separately."""
        commands = [failure.command for failure in failures]
        batch = FailBatch(
            ids=[failure.job.id for failure in failures],
            failures=[_fields(command) for command in commands if isinstance(command, Fail)],
            tokens=[failure.job.token for failure in failures],
        )
        reply, unsure = await self._persist(batch, core.FailBatchReply)
        unsure = unsure or repeated
        if isinstance(reply, CommandFailed):
            for start in range(0, len(failures), MAX_SINGLES):
                await self._fail_each(failures[start : start + MAX_SINGLES], unsure)
            return
        for failure, token, answer in zip(failures, batch.tokens or (), reply.results, strict=True):
            if answer.refused is UNSET:
                self._failed(failure, answer)
            elif failure.job.token != token:  # the worker has got another lock in the meantime
                await self._fail(failure, unsure)
            else:
                await self._refused(failure, answer.refused.error, unsure)

    async def _fail(self, failure: _Failure, repeated: bool) -> None:
        reply, unsure = await self._decide(failure.job, failure.command, core.FailReply)
        if isinstance(reply, CommandFailed):
            await self._refused(failure, reply.reason, unsure or repeated)
        else:
            self._failed(failure, FailAnswer(delay=reply.delay, data=reply.data))

    async def _refused(self, failure: _Failure, reason: str, unsure: bool) -> None:
        job, error = failure.job, failure.error
        if failure.is_stop or isinstance(error, Postpone):  # whatever the answer, it is no longer ours
            self._record(self._stats.job_stopped, job, error)
        elif isinstance(error, JobSuspended) and unsure:
            self._record(self._stats.job_suspended, job, error)
        elif unsure and await self._has_failed(job):
            self._record(self._stats.job_failed, job, error)
        else:
            self._record(self._stats.job_lost, job, reason)

    def _failed(self, failure: _Failure, answer: FailAnswer) -> None:
        """The server has accepted it, or has said why it came too late."""
        job, error = failure.job, failure.error
        if failure.is_stop or isinstance(error, Postpone):
            self._record(self._stats.job_stopped, job, error)
        elif isinstance(error, JobSuspended):
            self._record(self._stats.job_suspended, job, error)
        elif isinstance(error, Undone):
            self._record(self._stats.job_undone, job)
        elif answer.data is not UNSET:
            self._too_late(job, answer.data.reason)
        elif answer.delay is UNSET:  # perhaps because of rules that only the server has
            self._record(self._stats.job_failed, job, made_final(error))
        else:
            self._record(self._stats.job_failed, job, error, answer.delay)

    def _too_late(self, job: ActiveJob, reason: str = "") -> None:
        """The outcome was not accepted. A cancellation has usually been reported before."""
        if job.ending is not None and job.ending.why == CANCELLED:
            self._record(self._stats.job_stopped, job, stopped(job, job.ending))
        elif reason == CANCELLED:
            self._record(self._stats.job_stopped, job, stopped(job, Ending(CANCELLED)))
        else:
            self._record(self._stats.job_lost, job, TOO_LATE)

    async def _has_failed(self, job: ActiveJob) -> bool:
        """Whether an attempt was counted since this one began."""
        reply, _ = await self._persist(query.GetJob(id=job.id), OneJob)
        if isinstance(reply, CommandFailed):
            return job.remove_on_fail and isinstance(reply, JobNotFound)
        return reply.job.attempts > job.attempts

    async def _decide(self, job: ActiveJob, command: Struct, kind: type[R]) -> tuple[R | CommandFailed, bool]:
        """`_persist` for commands that decide about a job; sent again if the worker got another lock
        meanwhile.
        """
        while True:
            token = command.token = job.token  # type: ignore[attr-defined]
            reply, unsure = await self._persist(command, kind)
            if job.token == token or not isinstance(reply, CommandFailed):
                return reply, unsure


def _fields(command: Fail) -> FailFields:
    """The fields of FAIL, without those that identify the job."""
    return FailFields(**{name: getattr(command, name) for name in FailFields.__struct_fields__})


async def _all(parts: Iterable[Awaitable[None]]) -> None:
    """Run them in parallel; a single one needs no task."""
    found = list(parts)
    if len(found) == 1:
        await found[0]
    else:
        await asyncio.gather(*found)
