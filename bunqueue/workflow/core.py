"""The part of a workflow that needs no waiting: names, records, answers, values decided once."""

from __future__ import annotations

import random as chance
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID, uuid4

from msgspec import UNSET, Raw

from bunqueue.client.connection.replies import Refusal, refusal
from bunqueue.client.conversion.raised import causes_of, is_a
from bunqueue.client.models.workflows import Step
from bunqueue.errors import (
    BunqueueError,
    ChildFailed,
    SignalTimeout,
    StepChanged,
    StepFailed,
    WorkflowError,
)
from bunqueue.model.workflow import COMPLETED, RETRYING, SKIPPED, UNAMBIGUOUS, UNDO_MARK, VALUE
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.workflows import RecordSteps, StepAnswer, StepRecord
from bunqueue.workflow import values
from bunqueue.workflow.context import step_var
from bunqueue.workflow.outcomes import ContinueRun, Unwind
from bunqueue.workflow.plans import Undo
from bunqueue.workflow.run_log import Claim, Conflict, RunLog, checked_name, key_of

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob

Encode = Callable[[tuple[Any, ...], Mapping[str, Any]], Raw]
"""Converts the checked arguments of a workflow to the data of its job."""

branch_var: ContextVar[tuple[list[str], ...]] = ContextVar("bunqueue.branch", default=())
"""The enclosing branches of races, outermost first; they collect the names of their steps."""

DECIDED, PATCH = "decided", "patch"  # for values, in place of the arguments' fingerprint

RAISE: Any = object()
"""In place of a default: raise an error."""


class FlowCore:
    """The part of a workflow that does not wait."""

    def __init__(self, job: ActiveJob[Any], encode: Encode) -> None:
        self.job = job
        """The job of the workflow: its id, queue, attempts, and so on."""
        self._log = RunLog()
        self._pending: list[StepRecord] = []  # sent with the next record, before it
        self._undo: list[tuple[Step, Undo, Any]] = []  # steps reached in this run that can be undone
        self._unseen: set[str] = set()  # steps that an undoing run must reach before it stops running code
        self._state: Any = None
        self._encode = encode
        self._outcome: BaseException | None = None  # how the run ends, if not by its function
        self._pulled_at = job.pulled_at  # by the server's clock
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"<workflow {self.job.name!r}, job {self.job.id}>"

    # -- identity

    @property
    def id(self) -> str:
        """The id of the workflow, which is that of its job."""
        return self.job.id

    @property
    def undoing(self) -> bool:
        """Whether this run only undoes what earlier ones have done: finished steps return their results, and
        nothing new begins.
        """
        return self.job.workflow.undoing is not None

    @property
    def key(self) -> str:
        """The idempotency key of the current step: the same in each of its attempts and runs, and different
        for every other step. Raises LookupError outside of steps.
        """
        step = step_var.get()
        if step is None:
            raise LookupError("flow.key: no step runs here; each step has a key of its own")
        return step.key

    def _key(self, name: str) -> str:
        run = self.job.workflow
        return key_of(self.job.id, name, run.generation, unambiguous=run.keys >= UNAMBIGUOUS)

    def _server_ms(self) -> float:
        """The time by the server's clock, epoch ms."""
        return self._pulled_at + (time.monotonic() - self._began) * 1000

    # -- values decided once

    def now(self, name: str = "now") -> datetime:
        """The time, in UTC: the same in every run."""
        found: datetime = self._decided(
            name, lambda: datetime.fromtimestamp(self._server_ms() / 1000, UTC), datetime
        )
        return found

    def random(self, name: str = "random") -> float:
        """A random number from 0 to 1: the same in every run."""
        found: float = self._decided(name, chance.random, float)
        return found

    def uuid(self, name: str = "uuid") -> UUID:
        """A random UUID: the same in every run."""
        found: UUID = self._decided(name, uuid4, UUID)
        return found

    def patched(self, name: str) -> bool:
        """Whether this workflow should take the new path of a code change: True if it had not passed this
        line when the change was deployed. The answer is the same in every run.
        """
        new = self._log.at_end  # before this line claims a step itself
        found: bool = self._decided(f"patched:{name}", lambda: new, bool, PATCH)
        return found

    def _decided(self, name: str, decide: Callable[[], Any], kind: Any, what: str = DECIDED) -> Any:
        """A value that is stored with the next step. Whatever depends on the value comes after that, so
        nobody has to wait for it. `what` separates kinds of values that may have the same name.
        """
        self._check()
        claim = self._log.claim_decided(checked_name(name), what)
        self._note(claim.name)
        if claim.known is not None and claim.known.raw_result is not UNSET:
            return values.value_of(claim.known.raw_result, values.converter_of(kind, name), claim.name)
        if self.undoing:  # nothing that was recorded depends on it
            return decide()
        decision = decide()
        fields = {"kind": VALUE, "arguments": what, "result": values.stored(decision, name)}
        self._pending.append(self._record(claim.name, **fields))
        return decision

    @property
    def state(self) -> Any:
        """The workflow's visible state, read with `handle.query()` during and after the run: any value that
        can be stored in 64 KB. It is sent soon, at the latest with the next step.
        """
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        raw = values.stored_state(value)
        self._state = value
        if self._outcome is None and not self.undoing:
            self._pending = [record for record in self._pending if record.kind != "state"]
            self._pending.append(self._record("", kind="state", result=raw))
            self._send_soon()

    def _send_soon(self) -> None:
        """Called when something is pending that others want to see."""

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start the workflow again with these arguments and without its steps, for long-running workflows.
        Its id and the signals that it has not waited for yet stay. Does not return. Raises ArgumentsError.
        """
        self._check()
        self._stop(ContinueRun(self._encode(args, kwargs)))
        raise Unwind

    # -- steps

    def _claim(self, base: str, kind: str, arguments: str | None) -> Claim | Conflict:
        claim = self._log.claim(checked_name(base), kind, arguments)
        if isinstance(claim, Claim):
            self._note(claim.name)
        return claim

    def _claim_own(self, base: str, kind: str, arguments: str | None) -> Claim:
        claim = self._log.claim_own(base, kind, arguments)
        self._note(claim.name)
        return claim

    def _note(self, name: str) -> None:
        for names in branch_var.get():
            names.append(name)

    def _changed(self, conflict: Conflict) -> StepChanged:
        return StepChanged(
            f"step {conflict.recorded!r} was recorded with other arguments than it is called with now. To "
            f"have the changed call run, give the step another name, or retry the workflow from this step",
            step=conflict.recorded,
            queue=self.job.queue,
            job_id=self.job.id,
        )

    def _record(self, name: str, **fields: Any) -> StepRecord:
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

    def _pause_left(self, known: Step | None) -> float:
        """The ms that the next attempt of a step has to wait."""
        if known is None or known.status != RETRYING or known.until_ms is None:
            return 0.0
        return max(0.0, known.until_ms - self._server_ms())

    # -- failures

    def _step_failed(self, name: str, error: str, attempts: int) -> StepFailed:
        often = f" after {attempts} attempts" if attempts > 1 else ""
        return StepFailed(
            f"step {name!r} failed{often}: {error}",
            step=name,
            error=error,
            attempts=attempts,
            queue=self.job.queue,
            job_id=self.job.id,
        )

    def _child_failed(self, name: str, error: str, child: str | None, queue: str | None) -> ChildFailed:
        return ChildFailed(
            f"child {name!r} (job {child}) failed: {error}",
            step=name,
            error=error,
            child_id=child,
            child_queue=queue,
            queue=self.job.queue,
            job_id=self.job.id,
        )

    def _signal_timeout(self, signal: str, name: str) -> SignalTimeout:
        text = f"no signal {signal!r} came in time"
        return SignalTimeout(text, step=name, queue=self.job.queue, job_id=self.job.id)

    def _reopened(self, error: BaseException) -> list[StepRecord]:
        """The steps that made an attempt fail: the next attempt runs them again, with all their retries."""
        failures: list[StepFailed] = [each for each in causes_of(error) if is_a(each, StepFailed)]  # type: ignore[misc]
        found = {each.step: each for each in failures if not is_a(each, ChildFailed)}
        return [
            self._record(name, status=RETRYING, attempts=0, error=each.error, result=Raw(values.NIL))
            for name, each in found.items()
            if name and each.job_id == self.job.id
        ]

    def _to_undo(self) -> set[str]:
        """The steps that have to be undone: those that have finished, and those that were interrupted."""
        return {
            step.name
            for step in self._log.steps.values()
            if step.undo and (step.status == COMPLETED or (step.is_open and not step.has_failed))
            if not self._is_undone(step.name)
        }

    def _is_undone(self, name: str) -> bool:
        """Whether nothing is left to do to undo a step."""
        undo = self._log.steps.get(UNDO_MARK + name)
        return undo is not None and undo.status in (COMPLETED, SKIPPED)

    # -- its end

    def _check(self) -> None:
        """Raise Unwind if nothing more may happen in this run, and WorkflowError within a step."""
        if self._outcome is not None:
            raise Unwind
        if (step := step_var.get()) is not None:
            raise WorkflowError(
                f"step {step.name!r} uses the workflow that it is a step of; do that outside of steps, with "
                f"what the step returns",
                step=step.name,
                queue=self.job.queue,
                job_id=self.job.id,
            )

    def _stop(self, outcome: BaseException) -> None:
        """Stop this run: nothing more may happen. The first of several reasons counts."""
        if self._outcome is None:
            self._outcome = outcome
