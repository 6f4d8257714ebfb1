"""Runs jobs in a sandbox one after the other, in the test's thread: the work of `drain`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct

from bunqueue.client.codecs.envelope import problem_of
from bunqueue.client.connection.background_loop import portal
from bunqueue.client.connection.replies import R, decode_reply
from bunqueue.client.models.jobs import Job, OneJob, PulledJobs
from bunqueue.client.worker.active_job import CANCELLED, TIMED_OUT, ActiveJob, Ending, current, stopped
from bunqueue.client.worker.fetching.intake import DATA, KEY_MISSING_MS
from bunqueue.client.worker.job_channel import DONE
from bunqueue.client.worker.job_runner import end
from bunqueue.client.worker.middleware import Middleware, around_steps, observing
from bunqueue.client.worker.reporting.failures import checked, fail_command, made_final, stop_command
from bunqueue.client.worker.reporting.results import encode_result
from bunqueue.client.workflow.channel import Answers, AroundStep
from bunqueue.errors import (
    BunqueueError,
    CodecError,
    CommandFailed,
    ConnectionLost,
    JobNotFound,
    JobSuspended,
    KeyMissing,
    LockLost,
    NotEncrypted,
    Postpone,
    ResultError,
)
from bunqueue.protocol.commands import Ok, core, query
from bunqueue.protocol.commands.workflows import RecordSteps, RecordStepsReply, StepRecord
from bunqueue.protocol.moments import Moment
from bunqueue.protocol.notices import read_notice, read_wake

from .errors import SandboxError
from .sessions import SandboxSession

if TYPE_CHECKING:
    from .engine import SandboxEngine
    from .faults import Faults
    from .handlers import Handlers


class WorkerDied(ConnectionLost):
    """The worker died as it said something, as the test planned."""


class Result:
    """The result of a handler."""

    value: object = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a drain."""

    end: int
    """The moment up to which time may pass, epoch ms."""
    limit: int
    raising: bool
    over: Callable[[], bool] | None = None
    """Asked before time passes: whether there is nothing more to wait for."""


OWNER = "drain"
ADDRESS = "the sandbox"
MAX_REPORTS = 10  # attempts to report an outcome, for tests in which all of them fail
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
    """When it started, epoch ms, by the sandbox's clock; `at` is the same as a datetime in UTC."""
    outcome: HowItEnded
    """postponed: the handler raised Postpone; lost: its outcome did not count, because the job was no longer
    held; crashed: the worker died, as the test planned; suspended: the workflow has ended its run to wait."""
    result: Any = None
    error: BaseException | None = None
    """What the handler raised."""

    at = Moment("at_ms")


class Runs:
    """Yields the jobs to run, one after the other, and reports their outcomes: all of `drain` except the
    call of the handler."""

    def __init__(self, engine: SandboxEngine, faults: Faults, handlers: Handlers, rules: Rules) -> None:
        self.done: list[Ran] = []
        self._engine = engine
        self._faults = faults
        self._handlers = handlers
        self._rules = rules
        self._current: ActiveJob | None = None
        self._queue = ""  # of the job that runs, or is about to
        self._session = SandboxSession(engine, faults, self._heard)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Return held jobs to their queues."""
        self._engine.leave(self._session)

    def __iter__(self) -> Iterator[ActiveJob]:
        """Yield each job when it is due; its outcome must be reported before the next.

        Raises SandboxError beyond the limit.
        """
        while True:
            job = self._next()
            if job is not None:
                yield job
            elif (self._rules.over is not None and self._rules.over()) or not self._engine.step(
                self._rules.end
            ):
                return

    def _next(self) -> ActiveJob | None:
        for queue in self._handlers.queues(self._engine):
            while self._engine.waiting(queue):
                self._check_limit(queue)
                before = len(self.done)
                if (job := self._pull(queue)) is not None:
                    return job
                if len(self.done) == before:  # held back by a pause or a limit
                    break
        return None

    def _check_limit(self, queue: str) -> None:
        if len(self.done) >= self._rules.limit:
            raise SandboxError(
                f"drain: {self._rules.limit} jobs have run, and queue {queue!r} has more; do jobs add "
                f"themselves again? If not, give drain a higher limit"
            )

    def _pull(self, queue: str) -> ActiveJob | None:
        self._queue = queue
        command = core.PullBatch(queue=queue, count=1, timeout=0, owner=OWNER, signals=True, group=core.FAIR)
        reply = self._call(command, PulledJobs)
        for raw, token in zip(reply.jobs, reply.tokens, strict=True):
            job = ActiveJob(raw, token, self)
            job.open()
            if (problem := problem_of(job.data, DATA)) is not None:
                self._cannot_open(job, problem)
                continue
            fault = self._faults.crashing(queue)
            if fault is None:
                return job
            self._crash(job, renewed=fault.renewed)
        return None

    def _cannot_open(self, job: ActiveJob, problem: CodecError) -> None:
        """As in a worker: without its key it is put back, and what nobody can read has failed for good."""
        if isinstance(problem, KeyMissing | NotEncrypted):
            later = Postpone(KEY_MISSING_MS, str(problem))
            later.counts = False
            self._failed(job, later)
        else:
            made_final(problem)
            self._failed(job, problem)
        if self._rules.raising:
            raise problem

    def _crash(self, job: ActiveJob, *, renewed: bool) -> None:
        self._note(job, "crashed")
        self._engine.kill(self._session, renewed=renewed)
        self._session = SandboxSession(self._engine, self._faults, self._heard)

    # -- outcomes

    @contextmanager
    def reporting(self, job: ActiveJob) -> Iterator[Result]:
        """Wrap the call of a handler; the caller puts its result into the yielded object."""
        result, outer = Result(), current.set(job)
        self._current = job
        try:
            with self._ending(job, result):
                yield result
        except WorkerDied:
            self._crash(job, renewed=False)
        finally:
            self._current = None
            current.reset(outer)

    @contextmanager
    def _ending(self, job: ActiveJob, result: Result) -> Iterator[None]:
        try:
            yield
        except (SandboxError, WorkerDied):  # the job returns to its queue
            raise
        except asyncio.CancelledError:
            if job.ending is None:  # the test itself was cancelled
                raise
            self._ended(job, job.ending)
        except Exception as error:
            self._ended(job, job.ending) if job.ending else self._failed(job, error)
            if self._raises(error):
                raise
        else:
            self._ended(job, job.ending) if job.ending else self._completed(job, result.value)

    def _raises(self, error: Exception) -> bool:
        """Whether it is for the test, too. An AssertionError is most likely one of its own."""
        return isinstance(error, AssertionError) or (
            self._rules.raising and not isinstance(error, JobSuspended)
        )

    def _completed(self, job: ActiveJob, result: object) -> None:
        try:
            payload = encode_result(result)
        except ResultError as error:
            self._failed(job, error)
            return
        command = core.Ack(id=job.id, result=payload, token=job.token)
        try:
            counted = self._report(command, lambda: self._job(job).state == "completed")
        except CommandFailed as error:
            made_final(error)
            self._failed(job, error)
        else:
            self._note(job, "completed" if counted else "lost", result=result)

    def _failed(self, job: ActiveJob, raised: Exception) -> None:
        error = checked(job, raised)
        if isinstance(error, JobSuspended):
            counted = self._report(fail_command(job, error), lambda: True)
            self._note(job, "suspended" if counted else "lost", error=error)
        elif isinstance(error, Postpone):
            counted = self._report(fail_command(job, error), lambda: self._job(job).state == "delayed")
            self._note(job, "postponed" if counted else "lost", error=error)
        else:
            counted = self._report(fail_command(job, error), lambda: self._job(job).attempts > job.attempts)
            self._note(job, "failed" if counted else "lost", error=error)

    def _ended(self, job: ActiveJob, ending: Ending) -> None:
        """Report a run that was stopped while its handler ran."""
        error = stopped(job, ending)
        if ending.why == CANCELLED:
            self._report(stop_command(job, error), lambda: True)
        self._note(job, "cancelled" if ending.why == CANCELLED else "timed out", error=error)

    def _report(self, command: Struct, was_done: Callable[[], bool]) -> bool:
        """Send a report until there is an answer, at most MAX_REPORTS times; return whether it counts.

        If an earlier one may have been carried out, `was_done` checks that.  Raises CommandFailed.
        """
        for tries in range(MAX_REPORTS):
            try:
                return not self._said(command, core.AckReply).data
            except WorkerDied:
                raise
            except ConnectionLost:
                continue
            except LockLost:
                return tries > 0 and was_done()
        return False

    def _job(self, job: ActiveJob) -> Job:
        """The current state of a job; a removed one counts as completed, with one more attempt."""
        try:
            return self._call(query.GetJob(id=job.id), OneJob).job
        except JobNotFound:
            gone = job.job()
            gone.state, gone.attempts = "completed", job.attempts + 1
            return gone

    def _note(self, job: ActiveJob, outcome: HowItEnded, *, result: Any = None, error: Any = None) -> None:
        at = int(job.job().started_at_ms or 0)
        attempt = job.attempts + 1
        self.done.append(Ran(job.queue, job.name, job.id, job.data, attempt, at, outcome, result, error))

    def _said(self, command: Struct, reply: type[R]) -> R:
        """Say something of a job. Raises WorkerDied if the test wants that."""
        fault = self._faults.dying(command)
        if fault is not None and not fault.stored:
            raise WorkerDied("the worker died before it could say that")
        answer = self._call(command, reply)
        if fault is not None:
            raise WorkerDied("the worker died when it had said that")
        return answer

    def _call(self, command: Struct, reply: type[R]) -> R:
        payload = self._session.call(self._handlers.outgoing(self._queue, command))
        payload = self._handlers.incoming(self._queue, payload, command, self._engine)
        return decode_reply(payload, reply, command, ADDRESS)

    # -- stopping a run

    def _heard(self, payload: bytes) -> None:
        notice, job = read_notice(payload), self._current
        if notice is not None and job is not None and (job.id, job.token) == (notice.id, notice.token):
            end(job, Ending(CANCELLED, notice.reason, notice.grace / 1000))
        elif job is not None and job.woken is not None and (news := read_wake(payload)) is not None:
            job.woken(news.number)

    def check_timeout(self) -> None:
        """Stop the current job if time has passed its timeout."""
        job = self._current
        if job is not None and job.timeout is not None:
            begun = int(job.job().started_at_ms or 0)
            if self._engine.clock.now_ms() - begun >= job.timeout:
                end(job, Ending(TIMED_OUT))

    # -- for handlers, see `JobChannel`

    @property
    def stopping(self) -> bool:
        return False

    def say(self, command: Struct) -> Awaitable[None]:
        self._call(command, Ok)
        return DONE

    def say_soon(self, command: Struct) -> None:
        with suppress(BunqueueError):
            self._call(command, Ok)

    # -- for workflows, see `FlowChannel`

    short_ms = 0.0  # time does not pass by itself

    @property
    def around_step(self) -> AroundStep | None:
        return None if self._current is None else around_steps(self._handlers.of(self._current).middleware)

    @property
    def observers(self) -> tuple[Middleware, ...]:
        return () if self._current is None else observing(self._handlers.of(self._current).middleware)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return portal().loop

    def record(self, job: ActiveJob, records: list[StepRecord]) -> asyncio.Future[Answers]:
        answers: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        try:
            reply = self._said(RecordSteps(queue=job.queue, steps=records), RecordStepsReply)
            answers.set_result(reply.results)
        except BunqueueError as error:
            answers.set_exception(error)
        return answers

    async def ask(self, command: Struct, reply: type[R]) -> R:
        return self._call(command, reply)

    async def in_thread(self, function: Callable[[], Any]) -> tuple[bool, Any]:
        """In this thread, as everything in a drain."""
        try:
            return True, function()
        except Exception as error:
            return False, error

    async def pause(self, seconds: float) -> None:
        """Time stands still."""
