"""A run of a workflow: what it has recorded, what it sends and waits for, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec import UNSET, Raw

from bunqueue.client import background, engine_override
from bunqueue.client.callables import finished, is_async
from bunqueue.client.connection.replies import Refusal, refusal
from bunqueue.client.conversion.raised import causes_of, is_a, made_final
from bunqueue.client.models.workflows import Step, StepPage
from bunqueue.client.options.moments import elapsed_ms
from bunqueue.errors import (
    BunqueueError,
    ChildFailed,
    CommandFailed,
    LockLost,
    SignalTimeout,
    StepChanged,
    StepFailed,
    WorkflowError,
)
from bunqueue.model.workflow import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LEFT,
    RETRYING,
    SIGNAL,
    SKIPPED,
    UNAMBIGUOUS,
    UNDO_MARK,
    VALUE,
    WAITING,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.keys import Reencode, ReencodedStep, ReencodeReply
from bunqueue.protocol.commands.workflows import GetSteps, RecordSteps, StepAnswer, StepRecord
from bunqueue.protocol.framing import MAX_FRAME
from bunqueue.workflow import values
from bunqueue.workflow.context import StepRun, step_var
from bunqueue.workflow.idle import Parked, Watch
from bunqueue.workflow.outcomes import SuspendRun, Unwind
from bunqueue.workflow.pending_waits import PendingWaits
from bunqueue.workflow.plans import Order, Plan, Undo
from bunqueue.workflow.reported_waits import Waits
from bunqueue.workflow.run_log import Claim, Conflict, RunLog, base_of, checked_name, key_of
from bunqueue.workflow.threads import Outcome, thread_var

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.workflow.channel import Answers, FlowChannel

Encode = Callable[[tuple[Any, ...], Mapping[str, Any]], Raw]
"""Converts the checked arguments of a workflow to the data of its job."""

branch_var: ContextVar[tuple[list[str], ...]] = ContextVar("bunqueue.branch", default=())
"""The enclosing branches of races, outermost first; they collect the names of their steps."""

DECIDED, PATCH = "decided", "patch"  # for values, in place of the arguments' fingerprint

T = TypeVar("T")
Op = Coroutine[Any, Any, T]

RAISE: Any = object()
"""In place of a default: raise an error."""


LOADED = 64 << 10  # bytes of results that are read before a run begins; larger ones are read on demand
A_TIME = 500  # records in one command
SOON = 0.05  # seconds after which a new state is sent
LINGER = 0.2  # seconds for which a run with several children waits for another child to end


class Replayed(BaseException):
    """Ends the first part of an undoing run: everything that was recorded has been replayed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A wait that has ended."""

    name: str
    status: str
    raw: Raw
    error: str
    child: str | None
    child_queue: str | None
    attempts: int = 1


Judge = Callable[[Ended], str | None]
"""Why a run cannot use the result of a wait, in words; None if it can."""


class Run:
    """One run of a workflow, or of the steps of a job: its log, what is pending, and how it ends. It is made
    and used in one event loop.
    """

    def __init__(self, job: ActiveJob[Any], encode: Encode) -> None:
        self.job = job
        """The job of the workflow: its id, queue, attempts, and so on."""
        self.log = RunLog()
        self.pending: list[StepRecord] = []  # sent with the next record, before it
        self.undos: list[tuple[Step, Undo, Any]] = []  # steps reached in this run that can be undone
        self.unseen: set[str] = set()  # steps that an undoing run must reach before it stops running code
        self._state: Any = None
        self._operations: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()
        """For each operation the name of its step, and whether it is only a wait."""
        self.encode = encode
        self.outcome: BaseException | None = None  # how the run ends, if not by its function
        self._pulled_at = job.pulled_at  # by the server's clock
        self._began = elapsed_ms()
        self.channel: FlowChannel = job.channel
        self.waits = Waits(self)
        self.loop = asyncio.get_running_loop()
        self.watch = Watch(self.loop, self._is_waiting, self._idle)
        self._conflicts: list[tuple[Conflict, asyncio.Future[Claim]]] = []
        self._sending_soon: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._lingered: bool | None = None  # None: it has not begun to linger
        self._signals: dict[str, str] = {}  # signals that this run waits for, by step name
        self._left: bool | None = None  # whether waits missing from the code have ended; False: soon
        self._thread = threading.get_ident()
        self._calls: dict[asyncio.Future[Outcome], StepRun] = {}  # functions of steps that run in threads
        self.reopen()

    @property
    def undoing(self) -> bool:
        """Whether this run only undoes what earlier ones have done: finished steps return their results, and
        nothing new begins.
        """
        return self.job.workflow.undoing is not None

    def key_of(self, name: str) -> str:
        run = self.job.workflow
        return key_of(self.job.id, name, run.generation, unambiguous=run.keys >= UNAMBIGUOUS)

    def server_ms(self) -> float:
        """The time by the server's clock, epoch ms."""
        return self._pulled_at + elapsed_ms() - self._began

    def decided(self, name: str, decide: Callable[[], Any], kind: Any, what: str = DECIDED) -> Any:
        """A value that is stored with the next step. Whatever depends on the value comes after that, so
        nobody has to wait for it. `what` separates kinds of values that may have the same name.
        """
        self.check()
        claim = self.log.claim_own(checked_name(name), VALUE, what)
        self._note(claim.name)
        if claim.known is not None and claim.known.raw_result is not UNSET:
            return values.value_of(claim.known.raw_result, values.converter_of(kind, name), claim.name)
        if self.undoing:  # nothing that was recorded depends on it
            return decide()
        decision = decide()
        fields = {"kind": VALUE, "arguments": what, "result": values.stored(decision, name)}
        self.pending.append(self.record(claim.name, **fields))
        return decision

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        raw = values.stored_state(value)
        self._state = value
        if self.outcome is None and not self.undoing:
            self.pending = [record for record in self.pending if record.kind != "state"]
            self.pending.append(self.record("", kind="state", result=raw))
            self.send_soon()

    # -- steps

    def claim(self, base: str, kind: str, arguments: str | None) -> Claim | Conflict:
        claim = self.log.claim(checked_name(base), kind, arguments)
        if isinstance(claim, Claim):
            self._note(claim.name)
        return claim

    def claim_own(self, base: str, kind: str, arguments: str | None) -> Claim:
        claim = self.log.claim_own(base, kind, arguments)
        self._note(claim.name)
        return claim

    def _note(self, name: str) -> None:
        for names in branch_var.get():
            names.append(name)

    def changed(self, conflict: Conflict) -> StepChanged:
        return StepChanged(
            f"step {conflict.recorded!r} was recorded with other arguments than it is called with now. To "
            f"have the changed call run, give the step another name, or retry the workflow from this step",
            step=conflict.recorded,
            queue=self.job.queue,
            job_id=self.job.id,
        )

    def record(self, name: str, **fields: Any) -> StepRecord:
        return StepRecord(id=self.job.id, token=self.job.token, name=name, **fields)

    def _refused(self, record: StepRecord, answer: StepAnswer) -> BunqueueError:
        refused = answer.refused
        assert refused is not UNSET
        if refused.code == Code.STEP_CONFLICT:
            return StepChanged(
                f"{refused.error}; give the step another name, or retry the workflow from it",
                step=record.name,
                queue=self.job.queue,
                job_id=self.job.id,
            )
        said = Refusal(
            ok=False,
            error=f"step {record.name!r}: {refused.error}" if record.name else refused.error,
            code=refused.code,
            field=None if refused.field is UNSET else refused.field,
            value=None if refused.value is UNSET else refused.value,
            bound=None if refused.bound is UNSET else refused.bound,
        )
        return refusal(said, RecordSteps(queue=self.job.queue, steps=[]), "the server")

    def pause_left(self, known: Step | None) -> float:
        """The ms that the next attempt of a step has to wait."""
        if known is None or known.status != RETRYING or known.until_ms is None:
            return 0.0
        return max(0.0, known.until_ms - self.server_ms())

    def operation(self, coroutine: Op[T], claim: Claim | Conflict, *, waits: bool = False) -> Op[T]:
        """Note what an operation is: it may be given to `gather` or `race` as a branch."""
        name = claim.name if isinstance(claim, Claim) else claim.base
        self._operations[coroutine] = name, waits
        return coroutine

    def is_wait(self, branch: Any) -> bool:
        """Whether a branch is a wait, and nothing else."""
        return isinstance(branch, Coroutine) and self._operations.get(branch, ("", False))[1]

    def names_of(self, branch: Any) -> list[str]:
        """The step that a branch consists of, if it is one."""
        known = self._operations.get(branch) if isinstance(branch, Coroutine) else None
        return [] if known is None else [known[0]]

    # -- failures

    def child_result(self, ended: Ended, order: Order) -> Any:
        """The result of a child. Raises ChildFailed."""
        if ended.status == COMPLETED:
            return values.value_of(ended.raw, order.converting, ended.name)
        error = ended.error or ended.status
        raise made_final(self.child_failed(ended.name, error, ended.child, order.job.queue))

    def step_failed(self, name: str, error: str, attempts: int) -> StepFailed:
        often = f" after {attempts} attempts" if attempts > 1 else ""
        return StepFailed(
            f"step {name!r} failed{often}: {error}",
            step=name,
            error=error,
            attempts=attempts,
            queue=self.job.queue,
            job_id=self.job.id,
        )

    def child_failed(self, name: str, error: str, child: str | None, queue: str | None) -> ChildFailed:
        return ChildFailed(
            f"child {name!r} (job {child}) failed: {error}",
            step=name,
            error=error,
            child_id=child,
            child_queue=queue,
            queue=self.job.queue,
            job_id=self.job.id,
        )

    def signal_timeout(self, signal: str, name: str) -> SignalTimeout:
        text = f"no signal {signal!r} came in time"
        return SignalTimeout(text, step=name, queue=self.job.queue, job_id=self.job.id)

    def reopened(self, error: BaseException) -> list[StepRecord]:
        """The steps that made an attempt fail: the next attempt runs them again, with all their retries."""
        failures: list[StepFailed] = [each for each in causes_of(error) if is_a(each, StepFailed)]  # type: ignore[misc]
        found = {each.step: each for each in failures if not is_a(each, ChildFailed)}
        return [
            self.record(name, status=RETRYING, attempts=0, error=each.error, result=Raw(values.NIL))
            for name, each in found.items()
            if name and each.job_id == self.job.id
        ]

    def _to_undo(self) -> set[str]:
        """The steps that have to be undone: those that have finished, and those that were interrupted."""
        return {
            step.name
            for step in self.log.steps.values()
            if step.undo and (step.status == COMPLETED or (step.is_open and not step.has_failed))
            if not self._is_undone(step.name)
        }

    def _is_undone(self, name: str) -> bool:
        """Whether nothing is left to do to undo a step."""
        undo = self.log.steps.get(UNDO_MARK + name)
        return undo is not None and undo.status in (COMPLETED, SKIPPED)

    def reopen(self) -> None:
        """Begin, or continue after `stop`."""
        self.outcome = None
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.pending_waits = PendingWaits(self.loop, self.channel.short_ms, self.watch.check_soon)
        self.job.woken = self.pending_waits.wake

    # -- records of earlier runs

    async def load(self) -> None:
        if not self.job.workflow.steps:
            return
        after: int | None = 0
        while after is not None:
            command = GetSteps(queue=self.job.queue, id=self.job.id, after=after, max_result=LOADED)
            page = (await self.channel.ask(command, StepPage)).data
            await self._reencode(page.steps)
            for step in page.steps:
                self.log.enter(step)
            after = page.next
        if self.undoing:
            self.unseen = self._to_undo()

    async def raw(self, step: Step) -> Raw:
        """The result of a step that has ended."""
        if step.raw_result is UNSET and step.size:
            step = await self.whole(step.name, step.number)
        return values.NIL if step.raw_result is UNSET else step.raw_result

    async def answered(self, name: str, answer: StepAnswer) -> Raw:
        """The result in an answer, or the one that it left out."""
        if answer.left_out:
            return await self.raw(await self.whole(name, answer.number))
        return values.NIL if answer.result is UNSET else answer.result

    async def whole(self, name: str, number: int) -> Step:
        """A step with its result and its cursor, whatever their sizes. Raises CommandFailed if no answer can
        hold them.
        """
        command = GetSteps(
            queue=self.job.queue, id=self.job.id, after=number - 1, limit=1, max_result=MAX_FRAME
        )
        found = (await self.channel.ask(command, StepPage)).data.steps
        if not found or found[0].number != number:
            raise WorkflowError(f"step {name!r} is not there any more", step=name, job_id=self.job.id)
        await self._reencode(found)
        return found[0]

    async def _reencode(self, steps: Sequence[Step]) -> None:
        """Store results that are encrypted with an older key again; the codec encrypts them with
        the new one.
        """
        results = [
            ReencodedStep(step.name, step.raw_result)
            for step in steps
            if step.outdated and step.raw_result is not UNSET
        ]
        if results:
            with suppress(CommandFailed):  # they stay as they are
                command = Reencode(id=self.job.id, token=self.job.token, steps=results)
                await self.channel.ask(command, ReencodeReply)

    # -- sending

    async def send(self, *own: StepRecord) -> list[StepAnswer]:
        """Store these records and everything pending before them; returns the answers. Raises what the server
        refuses; Unwind if the job's lock was lost.
        """
        pending, self.pending = self.pending, []
        for start in range(0, len(pending) - A_TIME, A_TIME):
            await self._send_records(pending[start : start + A_TIME])
        if len(pending) > A_TIME:
            pending = pending[-(len(pending) % A_TIME or A_TIME) :]
        records = [*pending, *own]
        if not records:
            return []
        answers = await self._send_records(records)
        for record, answer in zip(records, answers, strict=True):
            if answer is not None and answer.refused is not UNSET and record.status != CANCELLED:
                raise self._refused(record, answer)
        return [answer or StepAnswer(status=record.status) for record, answer in _last(records, answers, own)]

    async def _send_records(self, records: list[StepRecord]) -> Answers:
        """Send records; again if the worker got another lock in the meantime."""
        while True:
            token = self.job.token
            for record in records:
                record.token = token
            try:
                answers = await self.channel.record(self.job, records)
            except BunqueueError as error:
                self.stop(error)
                raise Unwind from None
            lost = next((each for each in answers if each is not None and _is_lost(each)), None)
            if lost is None:
                return answers
            if self.job.token == token:
                assert lost.refused is not UNSET
                text = f"workflow {self.job.id} is run by somebody else: {lost.refused.error}"
                about = {"queue": self.job.queue, "job_id": self.job.id}
                self.stop(LockLost(text, reason=lost.refused.error, **about))
                raise Unwind

    def send_soon(self) -> None:
        if self._sending_soon is None:
            self._sending_soon = self.loop.call_later(SOON, self._send_pending)

    def _send_pending(self) -> None:
        self._sending_soon = None
        if self.pending and self.outcome is None:
            task = background.begin(self.loop, self._send_quietly())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _send_quietly(self) -> None:
        """Send pending records. A refusal is reported when the step itself is recorded."""
        try:
            await self.send()
        except (BunqueueError, Unwind):
            return

    # -- waiting

    async def resolved(self, given: Claim | Conflict) -> Claim:
        """The step of a claim. Raises StepChanged; Unwind if the run ends before the step is known."""
        claim = await self.recalled(given)
        cancelled = claim.known is not None and claim.known.status == CANCELLED
        return await self.anew(claim) if cancelled else claim

    async def recalled(self, claim: Claim | Conflict) -> Claim:
        """The same, also for a step that was cancelled."""
        if isinstance(claim, Conflict):
            future: asyncio.Future[Claim] = Parked(loop=self.loop)
            self._conflicts.append((claim, future))
            self.watch.check_soon()
            claim = await future
        return claim

    async def anew(self, claim: Claim) -> Claim:
        """Replace a step that was cancelled with its branch. Usually the branch is cancelled again in the
        meantime; if not, another step takes its place.
        """
        await self.pending_waits.never()
        self.check()
        anew = Claim(self.log.new_name(base_of(claim.name)))
        self._note(anew.name)
        return anew

    async def waited(
        self, given: Claim | Conflict, *, kind: str, judge: Judge | None = None, **fields: Any
    ) -> Ended:
        """Wait until a wait ends. A result that `judge` rejects is set aside, and the wait continues. Raises
        Unwind if the run ends before that.
        """
        claim = await self.resolved(given)
        name, known = claim.name, claim.known
        if known is not None and not known.is_open:
            raw, error = await self.raw(known), known.error or ""
            ended = Ended(name, known.status, raw, error, known.child, known.child_queue, known.attempts)
            unfit = None if judge is None else judge(ended)
            if unfit is None:
                self.waits.found(known)
                return ended
            fields |= {"unfit": unfit, "attempts": known.attempts}
        if self.undoing:
            await self.pending_waits.never()
        self.check()
        child = fields.get("child")
        told = {name: fields.get(name) for name in ("signal", "key")} | {"queue": child and child.queue}
        if known is None:
            fields["child"] = self.waits.begins(name, child)
        try:
            answer, ended = await self._until_fit(name, known, kind, judge, fields)
        except asyncio.CancelledError:  # by the code itself: the branch has lost
            if self.outcome is None:
                self.pending.append(self.record(name, kind=kind, status=CANCELLED))
                self.send_soon()
                self.waits.lost(name, kind, known, **told)
            raise
        self.waits.over(name, kind, known, answer, **told)
        return ended

    async def _until_fit(
        self, name: str, known: Step | None, kind: str, judge: Judge | None, fields: dict[str, Any]
    ) -> tuple[StepAnswer, Ended]:
        while True:
            answer = await self._wait(name, known, kind, dict(fields))
            raw = await self.answered(name, answer)
            error = "" if answer.error is UNSET else answer.error
            child = None if answer.child is UNSET else answer.child
            attempts = 1 if answer.attempts is UNSET else answer.attempts
            ended = Ended(name, answer.status, raw, error, child, None, attempts)
            unfit = None if judge is None else judge(ended)
            if unfit is None:
                return answer, ended
            fields |= {"unfit": unfit, "attempts": attempts}

    async def _wait(self, name: str, known: Step | None, kind: str, fields: dict[str, Any]) -> StepAnswer:
        if kind != SIGNAL:
            return await self._ask_until_over(name, known, kind, fields)
        self._signals[name] = fields["signal"]
        if known is None and fields["schema"] == values.ANYTHING:
            del fields["schema"]
        try:
            return await self._ask_until_over(name, known, kind, fields)
        finally:
            del self._signals[name]

    async def _ask_until_over(
        self, name: str, known: Step | None, kind: str, fields: dict[str, Any]
    ) -> StepAnswer:
        """`fields` are sent with the first record; once the server knows the step, it is only asked."""
        if known is not None and "unfit" not in fields:
            left = None if known.until_ms is None else known.until_ms - self.server_ms()
            fields.pop("child", None)  # it is already started
            if not _is_news(known, fields) and (left is None or left > 0):
                await self.pending_waits.wait({known.number: name}, left)
        while True:
            record = self.record(name, kind=kind, status=WAITING, **fields)
            (answer,) = await self.send(record)
            if answer.status != WAITING:
                return answer
            for told in ("child", "schema", "unfit", "attempts"):
                fields.pop(told, None)
            left = None if answer.wait is UNSET else answer.wait
            await self.pending_waits.wait({answer.number: name}, left)

    def _is_waiting(self) -> bool:
        return bool(self._conflicts) or self.pending_waits.is_used

    def _idle(self) -> None:
        """Everything waits."""
        if self._conflicts:
            self._resolve_conflicts()
        elif self.undoing and self.pending_waits.is_empty:
            self.stop(Replayed())
        elif self.pending_waits.is_empty:
            self.pending_waits.release()
        elif self._is_leaving():
            return
        elif self._lingered is None and self._worth_lingering():
            self._lingered = False
            self.loop.call_later(LINGER, self._linger_no_more)
        elif self._lingered is not False:
            self.stop(SuspendRun(self.pending_waits.groups))

    def _is_leaving(self) -> bool:
        """Whether waits that are no longer in the code are being ended, now that all remaining ones are
        known.
        """
        if self._left is not None or self.undoing:
            return self._left is False
        records = [
            self.record(step.name, kind=SIGNAL, status=CANCELLED, error=LEFT) for step in self.log.left_open()
        ]
        open_ = dict(self._signals)
        for step in self.log.left_unused():
            heir = next((name for name, signal in open_.items() if signal == step.signal), None)
            if heir is not None:
                del open_[heir]
                records.append(self.record(heir, kind=SIGNAL, status=WAITING, instead=step.name))
        self._left = not records
        if records:
            task = background.begin(self.loop, self._leave(records))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        return bool(records)

    async def _leave(self, records: list[StepRecord]) -> None:
        """Give signals that these waits took, and no code has used, to waits in the code for the
        same signal.
        """
        try:
            answers = await self.send(*records)
        except (BunqueueError, Unwind):  # a refusal is reported with the next record
            answers = []
        self._left = True
        for answer in answers:
            if answer.status == COMPLETED:
                self.pending_waits.wake(answer.number)
        self.watch.check_soon()

    def _linger_no_more(self) -> None:
        self._lingered = True
        self.watch.check_soon()

    def _worth_lingering(self) -> bool:
        """Whether several children are waited for one by one, so the run would begin again for each."""
        return self.channel.short_ms > 0 and len(self.pending_waits.groups) > 1

    def _resolve_conflicts(self) -> None:
        """Resolve steps that were only recorded with other arguments: to those that are free now,
        or to none.
        """
        conflicts, self._conflicts = self._conflicts, []
        found = [(conflict, future, self.log.resolve(conflict)) for conflict, future in conflicts]
        any_resolved = any(claim is not None for _, _, claim in found)
        for conflict, future, claim in found:
            if future.done():
                continue
            if claim is not None:
                self._note(claim.name)
                future.set_result(claim)
            elif any_resolved:
                self._conflicts.append((conflict, future))
            else:
                future.set_exception(self.changed(conflict))

    # -- undoing

    def saw(self, name: str) -> None:
        """An undoing run has reached a step. After the last one to undo no more of the code runs: raises
        Unwind.
        """
        self.unseen.discard(name)
        if not self.unseen:
            self.stop(Replayed())
            raise Unwind

    # -- its end

    def check(self) -> None:
        """Raise Unwind if nothing more may happen in this run, and WorkflowError within a step."""
        if self.outcome is not None:
            raise Unwind
        if (step := step_var.get()) is not None:
            raise WorkflowError(
                f"step {step.name!r} uses the workflow that it is a step of; do that outside of steps, with "
                f"what the step returns",
                step=step.name,
                queue=self.job.queue,
                job_id=self.job.id,
            )
        if self.channel.stopping and not self.undoing:
            self.stop(self.job.interrupt())
            raise Unwind

    def stop(self, outcome: BaseException) -> None:
        """Let nothing more happen in this run; the first of several reasons counts."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self.pending_waits.close()
        for _, future in self._conflicts:
            if not future.done():
                future.set_exception(Unwind())
        self._conflicts.clear()
        if not self.ended.done():
            self.ended.set_result(None)

    # -- used by attempts of steps

    async def call(self, plan: Plan, step: StepRun) -> Any:
        around, function = self.channel.around_step, plan.function
        if engine_override.current is not None:
            function = engine_override.current.step_function(self.job.name, base_of(step.name), function)
        if around is None:
            return await self._run_function(function, plan, step)
        return await around(self.job, step, lambda: self._run_function(function, plan, step))

    async def _run_function(self, function: Callable[..., Any], plan: Plan, step: StepRun) -> Any:
        if is_async(function):
            return await function(*plan.args, **plan.kwargs)
        call = asyncio.ensure_future(self._in_thread(partial(function, *plan.args, **plan.kwargs)))
        self._calls[call] = step
        call.add_done_callback(self._calls.pop)
        self.job.calls = self._calls
        succeeded, value = await asyncio.shield(call)
        if not succeeded:
            raise value
        return await finished(value)

    async def until_ended(self, step: StepRun) -> None:
        """Wait until no thread runs the function of an attempt any more."""
        if left := self.calls_of(step):
            await asyncio.wait(left)

    def calls_of(self, step: StepRun) -> list[asyncio.Future[Outcome]]:
        return [call for call, of in self._calls.items() if of is step]

    async def _in_thread(self, function: Callable[[], Any]) -> Outcome:
        thread = thread_var.get()
        return await (self.channel.in_thread(function) if thread is None else thread.call(function))

    async def pause(self, name: str, ms: float) -> None:
        """Wait for the next attempt of a step."""
        over = self.loop.time() + ms / 1000
        while (left := (over - self.loop.time()) * 1000) > 0:
            await self.pending_waits.wait({self._unnumbered(): name}, left)

    def _unnumbered(self) -> int:
        """A number that no step has, for waits that end only by time."""
        self._below -= 1
        return self._below

    _below = 0

    def from_anywhere(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Returns an awaitable in the loop; in another thread the work is done when this returns."""
        if threading.get_ident() == self._thread:
            return begin()
        asyncio.run_coroutine_threadsafe(begin(), self.loop).result()
        return DONE

    final_status = FAILED
    """The status of a step without attempts left."""


class _Done:
    """An awaitable for callers that do not have to wait."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE = _Done()


def _is_news(known: Step, fields: dict[str, Any]) -> bool:
    """Whether a wait declares a different schema for its data than when it was recorded."""
    before = values.ANYTHING if known.raw_schema is UNSET else known.raw_schema
    return bytes(fields.get("schema", before)) != bytes(before)


def _is_lost(answer: StepAnswer) -> bool:
    return answer.refused is not UNSET and answer.refused.code == Code.LOCK_LOST


def _last(
    records: list[StepRecord], answers: Answers, own: tuple[StepRecord, ...]
) -> list[tuple[StepRecord, StepAnswer | None]]:
    pairs = list(zip(records, answers, strict=True))
    return pairs[len(pairs) - len(own) :]
