"""Workflows: steps that a job stores as they finish, signals, children, undo.

A worker that holds the lock of a job records its steps (RecordSteps), reads what earlier runs have recorded
(GetSteps) and ends a run in which everything waits (SuspendJob).  All else is for those who look at a
workflow, or have a say in it.  The states of a step are in docs/workflows.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job import NIL, UNDEFINED
from bunqueue.model.workflow import MAX_ERROR, MAX_STEP_NAME
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Command,
    Delay,
    JobId,
    Key,
    Merge,
    QueueName,
    Refusal,
    Reply,
    Route,
    Token,
    Ttl,
    command,
)
from bunqueue.protocol.commands.core import JobFields
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.framing import MAX_FRAME

StepName = Annotated[str, Meta(min_length=1, max_length=MAX_STEP_NAME)]
SignalName = Annotated[str, Meta(min_length=1, max_length=256)]
SignalKey = Annotated[str, Meta(min_length=1, max_length=1024)]
Fingerprint = Annotated[str, Meta(max_length=64)]
Number = Annotated[int, Meta(ge=0, le=MAX_SAFE)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]

Kind = Literal["step", "sleep", "signal", "child", "value", "undo", "state"]
Status = Literal["running", "retrying", "waiting", "completed", "failed", "cancelled"]


class ChildJob(Struct, kw_only=True, rename="camel", gc=False):
    """A job to start; ``input`` has the fields of a push.  With ``detached`` nobody waits for it, and it
    outlives the workflow."""

    queue: QueueName
    input: JobFields
    detached: bool = False


class StepRecord(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """One step of the job ``id``, which is locked with ``token``.

    ``arguments`` is a fingerprint of what the step was called with: a recorded step with another one is
    refused.  ``took`` is how many ms its last attempt has run, ``attempts`` how many there were.  ``delay``
    is how long to wait (ms): of a sleep, for a signal, or until the next attempt.  ``undo`` says that the
    step can be undone.  Of a wait for a signal, ``schema`` is the JSON Schema of its data, a map: data that
    does not fit is refused to who sends it.  ``unfit`` says why the data that such a step has is of no use:
    the signal is set aside, and the wait goes on.  ``instead`` is a wait for the same signal that is not in
    the code any more, and has taken a signal since: this step has it then.  A step of the kind "state" is no
    step: its result is what GetWorkflow shows as the state of the workflow.
    """

    id: JobId
    token: Token
    name: Annotated[str, Meta(max_length=MAX_STEP_NAME)]
    kind: Kind = "step"
    status: Status = "completed"
    arguments: Fingerprint | None = None
    attempts: Count = 1
    took: Delay = 0
    delay: Delay | None = None
    result: Raw = Raw(NIL)
    cursor: Raw = Raw(UNDEFINED)
    error: Annotated[str, Meta(description=f"cut after {MAX_ERROR} characters")] | None = None
    signal: SignalName | None = None
    key: SignalKey | None = None
    child: ChildJob | None = None
    undo: bool = False
    schema: Raw = Raw(NIL)
    unfit: Annotated[str, Meta(description=f"cut after {MAX_ERROR} characters")] | None = None
    instead: StepName | None = None


class StepAnswer(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """How a step stands now.  ``existing`` is true if it had ended before, and was left as it was;
    ``leftOut`` if its result would make the answer too large: GetSteps has it."""

    status: str = ""
    number: int = 0
    existing: bool = False
    left_out: bool = False
    attempts: int | UnsetType = UNSET
    until: float | UnsetType = UNSET  # epoch ms
    wait: float | UnsetType = UNSET  # ms that are left until then
    result: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    child: str | UnsetType = UNSET  # the id of the job
    refused: Refusal | UnsetType = UNSET


class RecordStepsReply(Reply, kw_only=True):
    """One answer per step, in their order; null where the step was recorded as it was given."""

    results: list[StepAnswer | None]


class StepView(Struct, kw_only=True, rename="camel", gc=False):
    """A recorded step.  Times are epoch ms.  A ``result`` or ``cursor`` that is larger than asked for is left
    out; ``size`` and ``cursorSize`` are their lengths in bytes, 0 if there is none.  ``schema`` is that of an
    open wait for a signal."""

    number: int
    name: str
    kind: str
    status: str
    attempts: int
    started_at: float
    ended_at: float | None = None
    until: float | None = None
    worker: str | None = None
    arguments: str | None = None
    signal: str | None = None
    key: str | None = None
    child: str | None = None
    child_queue: str | None = None
    undo: bool = False
    error: str | None = None
    size: int = 0
    cursor_size: int = 0
    cursor: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    schema: Raw | UnsetType = UNSET


class Steps(Struct, gc=False):
    """A page of steps in the order in which they were first recorded; ``next`` is the ``after`` of the next
    page, null on the last."""

    steps: list[StepView]
    next: int | None


class StepsReply(Reply, kw_only=True):
    data: Steps


class UndoView(Struct, rename="camel", gc=False):
    """Why a workflow is being undone, since when (epoch ms), and what it will have ended with."""

    reason: str
    error: str | None
    at: float


class KeptSignal(Struct, rename="camel", omit_defaults=True, gc=False):
    """A signal that the workflow has not waited for yet, or, with a ``problem``, one that was set aside
    because its data does not fit.  DropSignal removes it by its ``number``.  ``data`` that is larger than
    asked for is left out; ``size`` is its length in bytes."""

    name: str
    at: float
    size: int
    number: int = 0
    expires_at: float | None = None
    problem: str | None = None
    data: Raw | UnsetType = UNSET


class OpenWait(Struct, rename="camel", omit_defaults=True, gc=False):
    """A wait for a signal, or for a broadcast with that ``key``.  It ends by itself at ``until`` (epoch ms).
    ``schema`` is the JSON Schema of the data that it takes; any, if there is none."""

    step: str
    signal: str
    key: str | None = None
    until: float | None = None
    schema: Raw | UnsetType = UNSET


class WorkflowView(Struct, kw_only=True, rename="camel", gc=False):
    """A workflow as it is now.  ``generation`` counts how often its steps began again, ``suspended`` how
    often it has ended a run to wait.  ``value`` is what its code has set as its state; absent if it has set
    none.  ``waits`` are its first 100 open waits for signals, ``signals`` those that no wait has taken.
    ``steps`` and ``next`` are a page as of GetSteps."""

    id: str
    queue: str
    name: str
    state: str
    generation: int
    suspended: int
    undoable: bool
    undone: bool
    undoing: UndoView | None
    signals: list[KeptSignal]
    waits: list[OpenWait]
    steps: list[StepView]
    next: int | None
    value: Raw | UnsetType = UNSET


class WorkflowReply(Reply, kw_only=True):
    data: WorkflowView


class Delivered(Struct, omit_defaults=True, gc=False):
    """``delivered`` is true if a wait took the signal; else it is kept, one of ``kept``, and ``waiting`` are
    the names of the signals that the workflow waits for now, if there are any."""

    delivered: bool
    kept: int
    waiting: list[str] = []


class SignalReply(Reply, kw_only=True):
    data: Delivered


PageLimit = Annotated[int, Meta(ge=1, le=1000)]
MaxResult = Annotated[int, Meta(ge=0, le=MAX_FRAME)]


@command(Route.QUEUE, RecordStepsReply, writes=True, repeatable=True, grows=True)
class RecordSteps(Command, tag="RecordSteps"):
    """Record steps of jobs of a queue that the caller has locked; each is accepted or refused for itself.

    A step that has ended is never changed: the answer has what is stored.  So the command may be repeated.
    To ask whether a wait is over, record it again.
    """

    queue: QueueName
    steps: Annotated[list[StepRecord], Meta(max_length=1000)]


@command(Route.QUEUE, StepsReply)
class GetSteps(Command, tag="GetSteps"):
    """Get the recorded steps of a job with numbers above ``after``: all, or the named ones.

    Results and cursors of more than ``maxResult`` bytes are left out.  A page ends after ``limit`` steps, or
    some MB; one step is always on it.
    """

    queue: QueueName
    id: JobId
    after: Number = 0
    limit: PageLimit = 1000
    max_result: MaxResult = 1 << 20
    names: Annotated[list[StepName], Meta(max_length=1000)] | None = None


class WaitGroup(Struct, gc=False):
    """Steps that are waited for together: until all have ended, or one has failed."""

    steps: Annotated[list[StepName], Meta(max_length=100_000)]


@command(Route.QUEUE, writes=True)
class SuspendJob(Command, tag="SuspendJob"):
    """End a run in which everything waits: the job goes on when one of these groups of recorded steps is
    ready, or when the time of one of their steps has come.  Nothing is counted as an attempt."""

    queue: QueueName
    id: JobId
    token: Token
    groups: Annotated[list[WaitGroup], Meta(min_length=1, max_length=100_000)]


@command(Route.QUEUE, writes=True, grows=True)
class ContinueAsNew(Command, tag="ContinueAsNew"):
    """Begin a workflow again with other data and without its steps.  Its id and the signals that are kept for
    it stay."""

    queue: QueueName
    id: JobId
    token: Token
    data: Raw = Raw(NIL)


@command(Route.ID, SignalReply, writes=True, repeatable=True, grows=True)
class SendSignal(Command, tag="SendSignal"):
    """Send a signal to a workflow: the oldest wait for its name takes it, or it is kept for the next one, for
    ``ttl`` ms if that is given.  One that is sent again with the same ``signalId`` counts once.  It is
    refused when its data does not fit what the wait, or the workflow, says of it."""

    id: JobId
    name: SignalName
    data: Raw = Raw(NIL)
    ttl: Ttl | None = None
    signal_id: Key | None = None


@command(Route.ID, writes=True)
class DropSignal(Command, tag="DropSignal"):
    """Remove a signal that no wait of a workflow has taken, one that was set aside or not; `number` is that
    of GetWorkflow."""

    id: JobId
    number: Annotated[int, Meta(ge=1, le=MAX_SAFE)]


Schemas = Annotated[dict[SignalName, Raw], Meta(max_length=1000)]
Types = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=256)], Schemas],
    Meta(max_length=1000),
]


@command(Route.QUEUE, writes=True, repeatable=True)
class SetSignalTypes(Command, tag="SetSignalTypes"):
    """Declare which data the signals of workflows of a queue may have: for each name of a workflow, JSON
    Schemas by the names of signals.  What was declared for these workflows before is replaced; it comes
    before the schemas of single waits.  ``by`` is an id of the program that begins to work: what waits have
    said before that is not held against signals any more, as its code may have changed."""

    queue: QueueName
    workflows: Types
    by: Key = ""


@command(Route.ALL, CountReply, merge=Merge.COUNT, writes=True, repeatable=True, heavy=True, grows=True)
class Broadcast(Command, tag="Broadcast"):
    """Send a signal to every workflow that waits for this name and key, and for ``keep`` ms to those that
    wait for it later, each once, except waits that its data does not fit.  ``count`` is how many took it
    now.  With the same ``broadcastId`` it may be repeated."""

    name: SignalName
    key: SignalKey
    data: Raw = Raw(NIL)
    keep: Ttl | None = None
    broadcast_id: Key | None = None


@command(Route.ID, WorkflowReply)
class GetWorkflow(Command, tag="GetWorkflow"):
    """Get a workflow, live or finished, with a page of its steps, as of GetSteps."""

    id: JobId
    after: Number = 0
    limit: PageLimit = 100
    max_result: MaxResult = 1024


@command(Route.ID, writes=True)
class RetryWorkflow(Command, tag="RetryWorkflow"):
    """Run a workflow again that is not active: from ``step`` on, without all that was recorded since; or,
    without ``step``, from where it failed."""

    id: JobId
    step: StepName | None = None


@command(Route.ID, writes=True)
class UndoWorkflow(Command, tag="UndoWorkflow"):
    """Undo a workflow that has ended ("start"), or go on with an undo that is stuck: try again ("retry"), go
    on without undoing ``step`` ("skip"), or give its undo ``data`` instead of the step's result and try again
    ("edit")."""

    id: JobId
    action: Literal["start", "retry", "skip", "edit"] = "retry"
    step: StepName | None = None
    data: Raw = Raw(NIL)
