"""The commands that the workers of a drain send to the engine, their own and those of their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bunqueue.client.connection.background_loop import portal
from bunqueue.client.connection.replies import R, decode_reply
from bunqueue.client.connection.requests import spec_of
from bunqueue.errors import BunqueueError, CommandFailed, ConnectionLost, LockLost
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.workflows import RecordSteps, RecordStepsReply, StepRecord
from bunqueue.protocol.notices import read_notice, read_wake
from bunqueue.worker.active_job import CANCELLED, ActiveJob, Ending
from bunqueue.worker.job_channel import DONE
from bunqueue.worker.job_runner import end
from bunqueue.worker.middleware import around_steps, observing
from bunqueue.worker.reporting.retrying_caller import passes
from bunqueue.worker.threads import Outcome, Threads
from bunqueue.workflow.channel import Answers

from .faults import REPORTS
from .sessions import SandboxSession

if TYPE_CHECKING:
    from .engine import SandboxEngine
    from .faults import Faults
    from .sources import WorkerSpec

ADDRESS = "the sandbox"
MAX_REPORTS = 10  # attempts to report an outcome, for tests in which every attempt fails


class WorkerDied(ConnectionLost):
    """The worker died while it sent a command, as the test planned."""


class SandboxChannel:
    """The `JobChannel` of a worker of a drain. Its commands are carried out before the call returns."""

    stopping = False
    short_ms = 0.0  # time passes only on request

    def __init__(
        self, engine: SandboxEngine, faults: Faults, spec: WorkerSpec, threads: Threads | None
    ) -> None:
        """`threads`: where plain functions run; with None, each runs in a thread of its own."""
        self.held: dict[str, ActiveJob] = {}
        """The jobs that the worker holds, by id."""
        self.has_died = False
        """Whether the worker has died: nothing that it sends arrives any more."""
        self.on_error: Callable[[BunqueueError], None] = lambda error: None
        """Called when a report did not arrive and is sent again."""
        self._engine = engine
        self._faults = faults
        self._spec = spec
        self._threads = threads
        self.around_step = around_steps(spec.run.middleware)
        self.observers = observing(spec.run.middleware)
        self._here = asyncio.get_running_loop()
        self._session = SandboxSession(engine, faults, self._on_frame)

    def has_lock(self, job: ActiveJob) -> bool:
        """Whether the worker holds a job."""
        return self.held.get(job.id) is job

    def release(self, job: ActiveJob) -> None:
        """Forget a job that is finished."""
        self.held.pop(job.id, None)

    # -- the session

    def call(self, command: Struct, reply: type[R]) -> R:
        """The answer to a command. Raises BunqueueError."""
        if self.has_died:
            raise WorkerDied("the worker has died")
        payload = self._session.call(self._spec.outgoing(command))
        payload = self._spec.incoming(payload, command, self._engine)
        return decode_reply(payload, reply, command, ADDRESS)

    def _report(self, command: Struct, reply: type[R]) -> R:
        """Send a report about a job. Raises WorkerDied if the test planned that."""
        if self.has_died or spec_of(type(command)).name not in REPORTS:
            return self.call(command, reply)
        fault = self._faults.dying(command)
        if fault is not None and not fault.stored:
            self.has_died = True
            raise WorkerDied("the worker died before it could say that")
        answer = self.call(command, reply)
        if fault is not None:
            self.has_died = True
            raise WorkerDied("the worker died when it had said that")
        return answer

    async def persist(self, command: Struct, reply: type[R]) -> tuple[R | CommandFailed, bool]:
        """Like `RetryingCaller.ask`, but without pauses and with a limited number of attempts."""
        unsure = False
        for _ in range(MAX_REPORTS):
            try:
                return self._report(command, reply), unsure
            except WorkerDied:
                break
            except BunqueueError as error:
                if isinstance(error, CommandFailed) and not passes(error):
                    return error, unsure
                unsure = unsure or isinstance(error, ConnectionLost)
                self.on_error(error)
        lost = "the server cannot be told, and knows the token no more"
        return LockLost(lost, reason=lost), False

    def die(self, *, renewed: bool) -> None:
        """Kill the worker and replace it with another one like it."""
        self._engine.kill(self._session, renewed=renewed)
        self.held.clear()
        self.has_died = False
        self._session = SandboxSession(self._engine, self._faults, self._on_frame)

    def leave(self) -> None:
        """Return held jobs to their queues."""
        self._engine.leave(self._session)

    def _on_frame(self, payload: bytes) -> None:
        notice, news = read_notice(payload), read_wake(payload)
        sent = notice or news
        job = None if sent is None else self.held.get(sent.id)
        if sent is None or job is None or job.token != sent.token:
            return
        if notice is not None:
            end(job, Ending(CANCELLED, notice.reason, notice.grace / 1000))
        elif news is not None and job.woken is not None:
            job.woken(news.number)

    # -- for handlers, see `JobChannel`

    def send(self, command: Struct) -> Awaitable[None]:
        self.call(command, Ok)
        return DONE

    def send_nowait(self, command: Struct) -> None:
        with suppress(BunqueueError):
            self.call(command, Ok)

    # -- for workflows, see `FlowChannel`

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return portal().loop

    def record(self, job: ActiveJob, records: list[StepRecord]) -> asyncio.Future[Answers]:
        answers: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        try:
            reply = self._report(RecordSteps(queue=job.queue, steps=records), RecordStepsReply)
            answers.set_result(reply.results)
        except BunqueueError as error:
            answers.set_exception(error)
        return answers

    async def ask(self, command: Struct, reply: type[R]) -> R:
        return self.call(command, reply)

    async def in_thread(self, function: Callable[[], Any], *, of_its_own: bool = False) -> Outcome:
        in_loop = asyncio.get_running_loop() is self._here
        if not in_loop or (self._threads is None and not of_its_own):
            return _outcome(function)  # steps run one after the other, like everything in a drain
        threads = self._threads or Threads(1)
        try:
            return await threads.run(_call, function)
        finally:
            threads.stop()

    async def pause(self, seconds: float) -> None:
        """Return at once: the clock is stopped."""


def _call(function: Callable[[], Any]) -> Any:
    return function()


def _outcome(function: Callable[[], Any]) -> Outcome:
    try:
        return True, function()
    except BaseException as error:
        return False, error
