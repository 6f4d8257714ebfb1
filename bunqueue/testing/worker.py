"""A worker of a drain. It does what a real one does with a job, from the pull to the final hooks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bunqueue.client.conversion.raised import cause_of, is_a
from bunqueue.client.interrupts import is_ctrl_c
from bunqueue.client.models.jobs import PulledJobs
from bunqueue.errors import CodecError, JobInterrupted, JobStopped, JobSuspended, Postpone
from bunqueue.protocol.commands.core import PullBatch
from bunqueue.protocol.moments import Moment
from bunqueue.worker.active_job import TIMED_OUT, ActiveJob, Ending
from bunqueue.worker.batches import Batch
from bunqueue.worker.control import Control
from bunqueue.worker.fetching.intake import Intake
from bunqueue.worker.job_logging import forward
from bunqueue.worker.job_runner import JobRunner, end
from bunqueue.worker.outcomes import Outcomes
from bunqueue.worker.reporting.reporter import Reporter
from bunqueue.worker.threads import Threads

from .channel import ADDRESS, SandboxChannel
from .errors import SandboxError

if TYPE_CHECKING:
    from .engine import SandboxEngine
    from .faults import Faults
    from .sources import WorkerSpec

OWNER = "drain"
MANY = 1 << 20  # slots for jobs: `drain` itself decides how many run at a time
HOOKS_PATIENCE = 5.0  # seconds to wait for hooks that are coroutines
HowItEnded = Literal[
    "completed", "failed", "postponed", "cancelled", "timed out", "lost", "crashed", "suspended"
]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job."""

    queue: str
    name: str
    id: str
    data: Any
    attempt: int
    """1 for the first."""
    at_ms: int
    """When it started, epoch ms, by the sandbox's clock. `at` is the same as a datetime in UTC."""
    outcome: HowItEnded
    """postponed: the handler raised Postpone; lost: its outcome did not count, because the job was no longer
    held; crashed: the worker died, as the test planned; suspended: the workflow ended its run to wait."""
    result: Any = None
    error: BaseException | None = None
    """What the handler raised."""

    at = Moment("at_ms")


Note = Callable[[Ran], None]


class SandboxOutcomes(Outcomes):
    """Record the outcome of each job for the test, and call the hooks of the worker."""

    def __init__(self, channel: SandboxChannel, spec: WorkerSpec, note: Note, raise_: _Problems) -> None:
        queues = ", ".join(spec.queues or ("*",))
        super().__init__(
            spec.callbacks, queues, ADDRESS, channel.release, channel.has_lock, disturbed=lambda: None
        )
        self._channel = channel
        self._note = note
        self._raise = raise_

    def job_completed(self, job: ActiveJob, value: object) -> None:
        if self._counts(job, "completed", value):
            super().job_completed(job, value)

    def job_failed(self, job: ActiveJob, error: BaseException, delay: float | None = None) -> None:
        timed_out = job.ending is not None and job.ending.why == TIMED_OUT
        if self._counts(job, "timed out" if timed_out else "failed", None, error):
            if timed_out or is_a(error, CodecError):  # no handler raised it
                self._raise.wanted(error)
            super().job_failed(job, error, delay)

    def job_stopped(self, job: ActiveJob, error: JobStopped) -> None:
        is_put_back = isinstance(error, Postpone)
        if isinstance(error, JobInterrupted) or self._counts(
            job, "postponed" if is_put_back else "cancelled", None, error
        ):
            if (problem := cause_of(error)) is not None and is_a(problem, CodecError):
                self._raise.wanted(problem)
            super().job_stopped(job, error)

    def job_suspended(self, job: ActiveJob, error: JobSuspended) -> None:
        if self._counts(job, "suspended", None, error):
            super().job_suspended(job, error)

    def job_undone(self, job: ActiveJob) -> None:
        if self._counts(job, "failed"):
            super().job_undone(job)

    def job_lost(self, job: ActiveJob, why: str) -> None:
        timed_out = job.ending is not None and job.ending.why == TIMED_OUT
        if self._counts(job, "timed out" if timed_out else "lost"):
            super().job_lost(job, why)

    def crashed(self, job: ActiveJob) -> None:
        """The job's worker has died, as the test planned, and sends nothing more."""
        self._note(_ran(job, "crashed"))

    def _counts(
        self, job: ActiveJob, outcome: HowItEnded, result: Any = None, error: BaseException | None = None
    ) -> bool:
        if self._channel.has_died:
            return False
        self._note(_ran(job, outcome, result, error))
        return True


def _ran(job: ActiveJob, outcome: HowItEnded, result: Any = None, error: BaseException | None = None) -> Ran:
    at = int(job.job().started_at_ms or 0)
    return Ran(job.queue, job.name, job.id, job.data, job.attempts + 1, at, outcome, result, error)


class _Problems:
    """The exception that `drain` should raise: the first one."""

    def __init__(self, *, raising: bool) -> None:
        self._raising = raising
        self._first: BaseException | None = None

    def of_handler(self, job: ActiveJob, error: BaseException) -> None:
        """An exception left a handler. An exception of the test itself is always raised, any other only if
        the test asks for it."""
        if _is_of_the_test(error):
            self.set(error)
        elif job.ending is None and not is_a(error, JobSuspended):
            self.wanted(error)

    def wanted(self, error: BaseException) -> None:
        """Raise this exception if the test asks for exceptions. One that is not an Exception is wrapped,
        because it would mean something to the test runner."""
        if self._raising and not is_a(error, Exception):
            problem = SandboxError(f"drain: a job has raised {type(error).__name__}")
            problem.__cause__ = error
            self.set(problem)
        elif self._raising:
            self.set(error)

    def set(self, error: BaseException) -> None:
        if self._first is None or is_ctrl_c(error):
            self._first = error

    def raise_first(self) -> None:
        """Raise the exception, if there is one."""
        if self._first is not None:
            raise self._first


def _is_of_the_test(error: BaseException) -> bool:
    """Whether the exception is about the test: an assertion, `pytest.fail()`, or wrong use of the test
    kit."""
    outcomes = sys.modules.get("_pytest.outcomes")
    own = (outcomes.OutcomeException, outcomes.Exit) if outcomes is not None else ()
    return is_a(error, AssertionError, SandboxError, *own)


class _Runner(JobRunner):
    """Show the exceptions of handlers before they become the outcome of a job."""

    problems: _Problems

    def _failed(self, job: ActiveJob, error: BaseException, task: asyncio.Task[None]) -> None:
        self.problems.of_handler(job, error)
        super()._failed(job, error, task)


class _Taken:
    """The slots for jobs. They are always free, because `drain` asks for one job at a time."""

    busy = 0

    def __init__(self) -> None:
        self.jobs: list[ActiveJob] = []

    def put(self, jobs: list[ActiveJob]) -> None:
        self.jobs += jobs


class _Locks:
    """Renew no locks: the engine of a sandbox does that."""

    def __init__(self, held: dict[str, ActiveJob]) -> None:
        self.held = held

    def keep(self, job: ActiveJob) -> bool:
        self.held[job.id] = job
        return True


class SandboxWorker:
    """A worker that is made and used in one event loop."""

    def __init__(
        self,
        spec: WorkerSpec,
        engine: SandboxEngine,
        faults: Faults,
        note: Note,
        *,
        raising: bool,
        threads: Threads | None,
    ) -> None:
        """`note` is called for each run that is over. `threads` is where plain functions run, one after the
        other; with None, each runs in a thread of its own."""
        self._spec = spec
        self._engine = engine
        self._faults = faults
        self._problems = problems = _Problems(raising=raising)
        self._is_ending = False
        self._channel = channel = SandboxChannel(engine, faults, spec, threads)
        self._stats = SandboxOutcomes(channel, spec, note, problems)
        channel.on_error = self._stats.unreachable
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        self._reporter = Reporter(channel.persist, self._stats, nothing, nothing, batch=1, delay=0.0)
        self._runner = _Runner(
            spec.run,
            self._reporter,
            problems.set,
            lambda: self._is_ending,
            channel,
            Threads if threads is None else lambda size: threads,
        )
        self._runner.problems = problems
        self._taken = _Taken()
        self._intake = Intake(
            self._taken,
            _Locks(channel.held),
            self._reporter,
            self._stats,
            channel,
            control=Control(MANY),
            max_jobs=None,
            address=ADDRESS,
        )
        level = spec.run.log_level
        self._end_forwarding = None if level is None else forward(level, channel)

    def has_lock(self, job: ActiveJob) -> bool:
        """Whether the worker holds the job."""
        return self._channel.has_lock(job)

    def batch_of(self, job: ActiveJob) -> Batch | None:
        """The batch that collects jobs of this type."""
        return self._spec.run.table.of(job.queue).find(job.name).batch

    async def pull(self, queue: str) -> ActiveJob | None:
        """The next job of a queue, or None if there is no job that can run."""
        command = PullBatch(
            queue=queue,
            count=1,
            timeout=0,
            owner=OWNER,
            lock_ttl=self._spec.lock_ttl,
            group=self._spec.group,
            signals=True,
            own_timeouts=True,
        )
        self._intake.take(self._channel.call(command, PulledJobs))
        await self._reporter.drain()  # a job that cannot be read has failed
        self._problems.raise_first()
        if not self._taken.jobs:
            return None
        job = self._taken.jobs.pop()
        fault = self._faults.crashing(queue)
        if fault is not None:
            self._crash(renewed=fault.renewed)
            return None
        return job

    async def run(self, jobs: list[ActiveJob]) -> None:
        """Run jobs concurrently and report them. Raises what `drain` should raise."""
        tasks = [asyncio.create_task(self._slot(job)) for job in jobs]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:  # the test was cancelled, or Ctrl-C was pressed
            self._is_ending = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        await self._reporter.drain()
        if self._channel.has_died:
            self._crash(renewed=False)
        self._problems.raise_first()

    async def _slot(self, job: ActiveJob) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.has_lock(job):  # otherwise the worker has died since it took the job
            await self._runner.run(job, task)

    def _crash(self, *, renewed: bool) -> None:
        for job in self._channel.held.values():
            self._stats.crashed(job)
        self._channel.die(renewed=renewed)

    def check_timeouts(self) -> None:
        """End the jobs whose timeout has passed by the clock of the sandbox."""
        now = self._engine.clock.now_ms()
        for job in self._channel.held.values():
            if not job.timeout or job.workflow.undoing is not None:
                continue
            if now - int(job.job().started_at_ms or 0) >= job.timeout:
                end(job, Ending(TIMED_OUT))

    async def finish_hooks(self) -> None:
        """Wait for hooks that run in the background."""
        await self._stats.finish(HOOKS_PATIENCE)

    async def stop(self) -> None:
        """Return held jobs to their queues."""
        await self.finish_hooks()
        self._channel.stopping = True
        self._runner.stop()
        await self._reporter.stop()
        if self._end_forwarding is not None:
            self._end_forwarding()
        self._channel.leave()
