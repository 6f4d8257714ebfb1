"""A run of a workflow: what it sends, what it waits for, and when it is suspended to wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw

from bunqueue.client import background, substitute
from bunqueue.client.callables import finished, is_async
from bunqueue.client.models.workflows import Step, StepPage
from bunqueue.errors import BunqueueError, CommandFailed, LockLost, WorkflowError
from bunqueue.model.workflow import CANCELLED, COMPLETED, FAILED, LEFT, SIGNAL, WAITING
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.keys import Reencode, ReencodedStep, ReencodeReply
from bunqueue.protocol.commands.workflows import GetSteps, StepAnswer, StepRecord
from bunqueue.protocol.framing import MAX_FRAME
from bunqueue.workflow import values
from bunqueue.workflow.context import StepRun
from bunqueue.workflow.core import Encode, FlowCore
from bunqueue.workflow.idle import Parked, Watch
from bunqueue.workflow.outcomes import SuspendRun, Unwind
from bunqueue.workflow.parking import Parking
from bunqueue.workflow.plans import Plan
from bunqueue.workflow.run_log import Claim, Conflict, base_of
from bunqueue.workflow.threads import Outcome, thread_var
from bunqueue.workflow.waits import Waits

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.workflow.channel import Answers, FlowChannel

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


class Runtime(FlowCore):
    """Made and used in one event loop."""

    def __init__(self, job: ActiveJob[Any], encode: Encode) -> None:
        super().__init__(job, encode)
        self._channel: FlowChannel = job.channel
        self._waits = Waits(self)
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop, self._is_waiting, self._idle)
        self._conflicts: list[tuple[Conflict, asyncio.Future[Claim]]] = []
        self._sending_soon: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._lingered: bool | None = None  # None: it has not begun to linger
        self._signals: dict[str, str] = {}  # signals that this run waits for, by step name
        self._left: bool | None = None  # whether waits missing from the code have ended; False: soon
        self._thread = threading.get_ident()
        self._calls: dict[asyncio.Future[Outcome], StepRun] = {}  # functions of steps that run in threads
        self._reopen()

    def _reopen(self) -> None:
        """Begin, or continue after `_stop`."""
        self._outcome = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._parking = Parking(self._loop, self._channel.short_ms, self._watch.look_soon)
        self.job.woken = self._parking.wake

    # -- records of earlier runs

    async def _load(self) -> None:
        if not self.job.workflow.steps:
            return
        after: int | None = 0
        while after is not None:
            command = GetSteps(queue=self.job.queue, id=self.job.id, after=after, max_result=LOADED)
            page = (await self._channel.ask(command, StepPage)).data
            await self._reencode(page.steps)
            for step in page.steps:
                self._log.enter(step)
            after = page.next
        if self.undoing:
            self._unseen = self._to_undo()

    async def _raw(self, step: Step) -> Raw:
        """The result of a step that has ended."""
        if step.raw_result is UNSET and step.size:
            step = await self._whole(step.name, step.number)
        return values.NIL if step.raw_result is UNSET else step.raw_result

    async def _answered(self, name: str, answer: StepAnswer) -> Raw:
        """The result in an answer, or the one that it left out."""
        if answer.left_out:
            return await self._raw(await self._whole(name, answer.number))
        return values.NIL if answer.result is UNSET else answer.result

    async def _whole(self, name: str, number: int) -> Step:
        """A step with its result and its cursor, whatever their sizes. Raises CommandFailed if no answer can
        hold them.
        """
        command = GetSteps(
            queue=self.job.queue, id=self.job.id, after=number - 1, limit=1, max_result=MAX_FRAME
        )
        found = (await self._channel.ask(command, StepPage)).data.steps
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
                await self._channel.ask(command, ReencodeReply)

    # -- sending

    async def _send(self, *own: StepRecord) -> list[StepAnswer]:
        """Store these records and everything pending before them; returns the answers. Raises what the server
        refuses; Unwind if the job's lock was lost.
        """
        pending, self._pending = self._pending, []
        for start in range(0, len(pending) - A_TIME, A_TIME):
            await self._told(pending[start : start + A_TIME])
        if len(pending) > A_TIME:
            pending = pending[-(len(pending) % A_TIME or A_TIME) :]
        records = [*pending, *own]
        if not records:
            return []
        answers = await self._told(records)
        for record, answer in zip(records, answers, strict=True):
            if answer is not None and answer.refused is not UNSET and record.status != CANCELLED:
                raise self._refused(record, answer)
        return [answer or StepAnswer(status=record.status) for record, answer in _last(records, answers, own)]

    async def _told(self, records: list[StepRecord]) -> Answers:
        """Send records; again if the worker got another lock in the meantime."""
        while True:
            token = self.job.token
            for record in records:
                record.token = token
            try:
                answers = await self._channel.record(self.job, records)
            except BunqueueError as error:
                self._stop(error)
                raise Unwind from None
            lost = next((each for each in answers if each is not None and _is_lost(each)), None)
            if lost is None:
                return answers
            if self.job.token == token:
                assert lost.refused is not UNSET
                text = f"workflow {self.job.id} is run by somebody else: {lost.refused.error}"
                about = {"queue": self.job.queue, "job_id": self.job.id}
                self._stop(LockLost(text, reason=lost.refused.error, **about))
                raise Unwind

    def _send_soon(self) -> None:
        if self._sending_soon is None:
            self._sending_soon = self._loop.call_later(SOON, self._send_pending)

    def _send_pending(self) -> None:
        self._sending_soon = None
        if self._pending and self._outcome is None:
            task = background.begin(self._loop, self._send_quietly())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _send_quietly(self) -> None:
        """Send pending records. A refusal is reported when the step itself is recorded."""
        try:
            await self._send()
        except (BunqueueError, Unwind):
            return

    # -- waiting

    async def _settled(self, given: Claim | Conflict) -> Claim:
        """The step of a claim. Raises StepChanged; Unwind if the run ends before the step is known."""
        claim = await self._recalled(given)
        cancelled = claim.known is not None and claim.known.status == CANCELLED
        return await self._anew(claim) if cancelled else claim

    async def _recalled(self, claim: Claim | Conflict) -> Claim:
        """The same, also for a step that was cancelled."""
        if isinstance(claim, Conflict):
            future: asyncio.Future[Claim] = Parked(loop=self._loop)
            self._conflicts.append((claim, future))
            self._watch.look_soon()
            claim = await future
        return claim

    async def _anew(self, claim: Claim) -> Claim:
        """Replace a step that was cancelled with its branch. Usually the branch is cancelled again in the
        meantime; if not, another step takes its place.
        """
        await self._parking.never()
        self._check()
        anew = Claim(self._log.new_name(base_of(claim.name)))
        self._note(anew.name)
        return anew

    async def _waited(
        self, given: Claim | Conflict, *, kind: str, judge: Judge | None = None, **fields: Any
    ) -> Ended:
        """Wait until a wait ends. A result that `judge` rejects is set aside, and the wait continues. Raises
        Unwind if the run ends before that.
        """
        claim = await self._settled(given)
        name, known = claim.name, claim.known
        if known is not None and not known.is_open:
            raw, error = await self._raw(known), known.error or ""
            ended = Ended(name, known.status, raw, error, known.child, known.child_queue, known.attempts)
            unfit = None if judge is None else judge(ended)
            if unfit is None:
                self._waits.found(known)
                return ended
            fields |= {"unfit": unfit, "attempts": known.attempts}
        if self.undoing:
            await self._parking.never()
        self._check()
        child = fields.get("child")
        told = {name: fields.get(name) for name in ("signal", "key")} | {"queue": child and child.queue}
        if known is None:
            fields["child"] = self._waits.begins(name, child)
        try:
            answer, ended = await self._until_fit(name, known, kind, judge, fields)
        except asyncio.CancelledError:  # by the code itself: the branch has lost
            if self._outcome is None:
                self._pending.append(self._record(name, kind=kind, status=CANCELLED))
                self._send_soon()
                self._waits.lost(name, kind, known, **told)
            raise
        self._waits.over(name, kind, known, answer, **told)
        return ended

    async def _until_fit(
        self, name: str, known: Step | None, kind: str, judge: Judge | None, fields: dict[str, Any]
    ) -> tuple[StepAnswer, Ended]:
        while True:
            answer = await self._wait(name, known, kind, dict(fields))
            raw = await self._answered(name, answer)
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
            left = None if known.until_ms is None else known.until_ms - self._server_ms()
            fields.pop("child", None)  # it is already started
            if not _is_news(known, fields) and (left is None or left > 0):
                await self._parking.wait({known.number: name}, left)
        while True:
            record = self._record(name, kind=kind, status=WAITING, **fields)
            (answer,) = await self._send(record)
            if answer.status != WAITING:
                return answer
            for told in ("child", "schema", "unfit", "attempts"):
                fields.pop(told, None)
            left = None if answer.wait is UNSET else answer.wait
            await self._parking.wait({answer.number: name}, left)

    def _is_waiting(self) -> bool:
        return bool(self._conflicts) or self._parking.is_used

    def _idle(self) -> None:
        """Everything waits."""
        if self._conflicts:
            self._settle_conflicts()
        elif self.undoing and self._parking.is_empty:
            self._stop(Replayed())
        elif self._parking.is_empty:
            self._parking.release()
        elif self._is_leaving():
            return
        elif self._lingered is None and self._worth_lingering():
            self._lingered = False
            self._loop.call_later(LINGER, self._linger_no_more)
        elif self._lingered is not False:
            self._stop(SuspendRun(self._parking.groups))

    def _is_leaving(self) -> bool:
        """Whether waits that are no longer in the code are being ended, now that all remaining ones are
        known.
        """
        if self._left is not None or self.undoing:
            return self._left is False
        records = [
            self._record(step.name, kind=SIGNAL, status=CANCELLED, error=LEFT)
            for step in self._log.left_open()
        ]
        open_ = dict(self._signals)
        for step in self._log.left_unused():
            heir = next((name for name, signal in open_.items() if signal == step.signal), None)
            if heir is not None:
                del open_[heir]
                records.append(self._record(heir, kind=SIGNAL, status=WAITING, instead=step.name))
        self._left = not records
        if records:
            task = background.begin(self._loop, self._leave(records))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        return bool(records)

    async def _leave(self, records: list[StepRecord]) -> None:
        """Give signals that these waits took, and no code has used, to waits in the code for the
        same signal.
        """
        try:
            answers = await self._send(*records)
        except (BunqueueError, Unwind):  # a refusal is reported with the next record
            answers = []
        self._left = True
        for answer in answers:
            if answer.status == COMPLETED:
                self._parking.wake(answer.number)
        self._watch.look_soon()

    def _linger_no_more(self) -> None:
        self._lingered = True
        self._watch.look_soon()

    def _worth_lingering(self) -> bool:
        """Whether several children are waited for one by one, so the run would begin again for each."""
        return self._channel.short_ms > 0 and len(self._parking.groups) > 1

    def _settle_conflicts(self) -> None:
        """Resolve steps that were only recorded with other arguments: to those that are free now,
        or to none.
        """
        conflicts, self._conflicts = self._conflicts, []
        found = [(conflict, future, self._log.settle(conflict)) for conflict, future in conflicts]
        any_settled = any(claim is not None for _, _, claim in found)
        for conflict, future, claim in found:
            if future.done():
                continue
            if claim is not None:
                self._note(claim.name)
                future.set_result(claim)
            elif any_settled:
                self._conflicts.append((conflict, future))
            else:
                future.set_exception(self._changed(conflict))

    # -- undoing

    def _saw(self, name: str) -> None:
        """An undoing run has reached a step. After the last one to undo no more of the code runs: raises
        Unwind.
        """
        self._unseen.discard(name)
        if not self._unseen:
            self._stop(Replayed())
            raise Unwind

    # -- its end

    def _check(self) -> None:
        super()._check()
        if self._channel.stopping and not self.undoing:
            self._stop(self.job.interrupt())
            raise Unwind

    def _stop(self, outcome: BaseException) -> None:
        if self._outcome is not None:
            return
        super()._stop(outcome)
        self._parking.close()
        for _, future in self._conflicts:
            if not future.done():
                future.set_exception(Unwind())
        self._conflicts.clear()
        if not self._ended.done():
            self._ended.set_result(None)

    # -- used by attempts of steps

    async def _call(self, plan: Plan, step: StepRun) -> Any:
        around, function = self._channel.around_step, plan.function
        if substitute.current is not None:
            function = substitute.current.step_function(self.job.name, base_of(step.name), function)
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

    async def _until_ended(self, step: StepRun) -> None:
        """Wait until no thread runs the function of an attempt any more."""
        if left := self._calls_of(step):
            await asyncio.wait(left)

    def _calls_of(self, step: StepRun) -> list[asyncio.Future[Outcome]]:
        return [call for call, of in self._calls.items() if of is step]

    async def _in_thread(self, function: Callable[[], Any]) -> Outcome:
        thread = thread_var.get()
        return await (self._channel.in_thread(function) if thread is None else thread.call(function))

    async def _pause(self, name: str, ms: float) -> None:
        """Wait for the next attempt of a step."""
        over = self._loop.time() + ms / 1000
        while (left := (over - self._loop.time()) * 1000) > 0:
            await self._parking.wait({self._unnumbered(): name}, left)

    def _unnumbered(self) -> int:
        """A number that no step has, for waits that end only by time."""
        self._below -= 1
        return self._below

    _below = 0

    def _from_anywhere(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Returns an awaitable in the loop; in another thread the work is done when this returns."""
        if threading.get_ident() == self._thread:
            return begin()
        asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
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
