"""What became of jobs, on its way to the server: acknowledgements in batches, failures at once.

Nothing is dropped before the server has answered: after a lost connection the same words are said again over
the next one, with the same tokens, so that they can only be about the same attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msgspec import UNSET, Raw, Struct

from bunqueue.client.models.jobs import OneJob
from bunqueue.client.worker.active_job import CANCELLED, ActiveJob, Ending, stopped
from bunqueue.client.worker.reporting.failures import (
    checked,
    error_text,
    fail_command,
    made_final,
    stop_command,
)
from bunqueue.client.worker.reporting.persistence import Persistence
from bunqueue.client.worker.stats import RunStats
from bunqueue.client.workflow.outcomes import Undone
from bunqueue.errors import (
    CommandFailed,
    JobNotFound,
    JobStopped,
    JobSuspended,
    LockLost,
    Postpone,
)
from bunqueue.protocol.commands import Reply, core, query
from bunqueue.protocol.commands.core import Ack, AckBatch

R = TypeVar("R", bound=Reply)
logger = logging.getLogger("bunqueue.worker")

MAX_BATCH = 500  # acknowledgements in one command: what queued up while the last one was on its way
MAX_BATCH_BYTES = 8 << 20  # of results in one command; a frame holds 64 MiB
MAX_SINGLES = 50  # commands at a time where each job needs its own; a server takes as many at once
TOO_LATE = "something else, usually its timeout, had decided the job before"


class _Success(NamedTuple):
    job: ActiveJob
    result: Raw
    value: object


class _Failure(NamedTuple):
    job: ActiveJob
    error: BaseException
    text: str


class _Stop(NamedTuple):
    job: ActiveJob
    error: JobStopped


class Reporter:
    """Reports outcomes in the background; `start` it, and `drain` it before `stop`."""

    def __init__(
        self,
        persistence: Persistence,
        stats: RunStats,
        give_up: Callable[[BaseException], None],
        *,
        batch: int,
        delay: float,
    ) -> None:
        """An acknowledgement waits for `batch` of them, at most `delay` seconds. `give_up` is called when
        nothing can be reported any more."""
        self._persist = persistence.ask
        self._stats = stats
        self._give_up = give_up
        self._batch = batch
        self._delay = delay
        self._successes: list[_Success] = []
        self._failures: list[_Failure | _Stop] = []
        self._due = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Outcomes that are not on their way yet."""
        return len(self._successes) + len(self._failures)

    def start(self) -> None:
        self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._ended)

    async def drain(self) -> None:
        """Wait until the server knows everything."""
        self.flush()
        await self._empty.wait()

    async def stop(self) -> None:
        """Stop reporting; what is not reported is forgotten."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._timer is not None:
            self._timer.cancel()

    # -- in

    async def complete_first(self, job: ActiveJob) -> bool:
        """Complete a job before its handler is called; whether it may be: nobody else will run it."""
        reply = await self._ack(job, None)
        if isinstance(reply, CommandFailed):
            self._stats.job_lost(job, reply.reason)
        elif reply.data:
            self._too_late(job, reply.data.reason)
        else:
            job.acked = True
            self._stats.job_acked(job)
        return job.acked

    def complete(self, job: ActiveJob, result: Raw, value: object) -> None:
        if job.acked:
            self._stats.job_completed(job, value)
            return
        self._successes.append(_Success(job, result, value))
        self._empty.clear()
        if len(self._successes) >= self._batch or job.timeout:  # waiting must not make it come too late
            self._due.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay, self._due.set)

    def fail(self, job: ActiveJob, error: BaseException, text: str = "") -> None:
        """What its handler raised; `text` stands for the error's own."""
        error = checked(job, error)
        if job.acked:
            self._stats.job_failed(job, error)
            return
        job.failing = True
        self._failures.append(_Failure(job, error, text or error_text(error)))
        self._empty.clear()
        self._due.set()

    def stop_short(self, job: ActiveJob, error: JobStopped) -> None:
        """The worker has ended its run: JobCancelled or JobInterrupted."""
        if job.acked:
            self._stats.job_stopped(job, error)
            return
        self._failures.append(_Stop(job, error))
        self._empty.clear()
        self._due.set()

    def flush(self) -> None:
        """Do not wait for more: there will be none for a while."""
        if self._successes:
            self._due.set()

    # -- out

    async def _work(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            successes = self._take()
            failures, self._failures = self._failures[:MAX_SINGLES], self._failures[MAX_SINGLES:]
            if failures:
                await asyncio.gather(self._complete(successes), *map(self._report, failures))
            else:
                await self._complete(successes)
            if self._failures or len(self._successes) >= self._batch:
                self._due.set()
            elif not self._successes:
                self._empty.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error that nobody foresaw must end the worker, not silence it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("outcomes of jobs cannot be reported any more", exc_info=error)
            self._give_up(error)

    def _take(self) -> list[_Success]:
        size = 0
        for index, success in enumerate(self._successes):
            size += len(memoryview(success.result))
            if index == MAX_BATCH or (index and size > MAX_BATCH_BYTES):
                taken, self._successes = self._successes[:index], self._successes[index:]
                self._due.set()
                return taken
        taken, self._successes = self._successes, []
        return taken

    async def _complete(self, successes: list[_Success]) -> None:
        if not successes:
            return
        command = AckBatch(
            ids=[success.job.id for success in successes],
            results=[success.result for success in successes],
            tokens=[success.job.token for success in successes],
        )
        reply, unsure = await self._persist(command, core.AckBatchReply)
        if isinstance(reply, CommandFailed):
            # A wrong token refuses all, an unknown job only itself: so each is asked for by itself.
            for start in range(0, len(successes), MAX_SINGLES):
                part = successes[start : start + MAX_SINGLES]
                named = reply.reason
                await asyncio.gather(*[self._complete_one(s, unsure or s.job.id not in named) for s in part])
            return
        ignored = set(reply.data.ignored_ids) if reply.data else ()
        for job, _, value in successes:
            if job.id in ignored:
                self._too_late(job)
            else:
                self._stats.job_completed(job, value)

    async def _complete_one(self, success: _Success, unsure: bool) -> None:
        """`unsure`: what was said before may have completed the job already."""
        job, result, value = success
        reply = await self._ack(job, result, unsure=unsure)
        if isinstance(reply, LockLost):
            self._stats.job_lost(job, reply.reason)
            return
        elif isinstance(reply, CommandFailed):  # the server does not take this result, or no frame holds it
            text = f"the result was refused: {reply.reason}; its handler has run, so it is not tried again"
            await self._fail(_Failure(job, made_final(reply), text))
            return
        elif reply.data:
            self._too_late(job, reply.data.reason)
            return
        self._stats.job_completed(job, value)

    async def _ack(
        self, job: ActiveJob, result: Raw | None, *, unsure: bool = False
    ) -> core.AckReply | CommandFailed:
        """Complete a job. LockLost only if somebody else has it or has decided it."""
        payload = Raw(b"\xc0") if result is None else result
        reply, repeated = await self._decide(job, lambda: Ack(id=job.id, result=payload, token=job.token))
        by_us = isinstance(reply, LockLost) and (unsure or repeated) and "token" not in reply.reason
        return core.AckReply() if by_us and await self._is_completed(job) else reply

    async def _is_completed(self, job: ActiveJob) -> bool:
        reply, _ = await self._persist(query.GetState(id=job.id), query.StateReply)
        gone = "unknown" if job.remove_on_complete else "completed"
        return isinstance(reply, query.StateReply) and reply.state in ("completed", gone)

    async def _report(self, what: _Failure | _Stop) -> None:
        if isinstance(what, _Failure):
            await self._fail(what)
        else:
            await self._decide(what.job, lambda: stop_command(*what))
            self._stats.job_stopped(*what)  # whatever the answer: the job is not ours any more

    async def _fail(self, failure: _Failure) -> None:
        job, error, text = failure
        reply, unsure = await self._decide(job, lambda: fail_command(job, error, text))
        if isinstance(error, Postpone):
            self._stats.job_stopped(job, error)
        elif isinstance(error, JobSuspended) and (not isinstance(reply, CommandFailed) or unsure):
            self._stats.job_suspended(job, error)
        elif isinstance(error, Undone) and not isinstance(reply, CommandFailed):
            self._stats.job_undone(job)
        elif isinstance(reply, CommandFailed) and not (unsure and await self._has_failed(job)):
            self._stats.job_lost(job, reply.reason)
        elif not isinstance(reply, CommandFailed) and reply.data:
            self._too_late(job, reply.data.reason)
        else:
            delay = None
            if not isinstance(reply, CommandFailed):
                if reply.delay is UNSET:  # by rules that only the server knows, perhaps
                    error = made_final(error)
                else:
                    delay = reply.delay
            self._stats.job_failed(job, error, delay)

    def _too_late(self, job: ActiveJob, reason: str = "") -> None:
        """The outcome was not taken. That a job was cancelled one has usually heard before."""
        if job.ending is not None and job.ending.why == CANCELLED:
            self._stats.job_stopped(job, stopped(job, job.ending))
        elif reason == CANCELLED:
            self._stats.job_stopped(job, stopped(job, Ending(CANCELLED)))
        else:
            self._stats.job_lost(job, TOO_LATE)

    async def _has_failed(self, job: ActiveJob) -> bool:
        """Whether an attempt was counted since this one began."""
        reply, _ = await self._persist(query.GetJob(id=job.id), OneJob)
        if isinstance(reply, CommandFailed):
            return job.remove_on_fail and isinstance(reply, JobNotFound)
        return reply.job.attempts > job.attempts

    async def _decide(
        self, job: ActiveJob, say: Callable[[], Struct]
    ) -> tuple[core.FailReply | CommandFailed, bool]:
        """`_persist` for what decides about a job; said again if the worker got another lock meanwhile."""
        while True:
            token = job.token
            reply, unsure = await self._persist(say(), core.FailReply)
            if job.token == token or not isinstance(reply, CommandFailed):
                return reply, unsure
