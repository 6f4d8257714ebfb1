"""Workflows: steps that a job stores as they finish, signals, children, undo.

A worker that holds the lock of a job records its steps (RecordSteps), reads what earlier runs have recorded
(GetSteps), and ends a run when everything in it is waiting (SuspendJob).  All other commands are for programs
and people that inspect or control a workflow.  The states of a step are in docs/workflows.md.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job import NIL, UNDEFINED
from bunqueue.model.rights import Verb
from bunqueue.model.workflow import MAX_ERROR, MAX_STEP_NAME
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Command,
    Content,
    ContentText,
    Data,
    Delay,
    IdOf,
    JobId,
    Key,
    Merge,
    NameOf,
    OfJob,
    OfQueue,
    Ok,
    QueueName,
    QueueOf,
    Refusal,
    Reply,
    Route,
    Tag,
    Token,
    Ttl,
    command,
    http,
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
    """A job to start; ``input`` has the fields of a push.  With ``detached`` the workflow does not wait for
    it, and it outlives the workflow."""

    queue: QueueName
    input: JobFields
    detached: bool = False


class StepRecord(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """One step of the job ``id``, which is locked with ``token``.

    ``arguments`` is a fingerprint of the step's arguments: if it differs from the recorded one, the record is
    refused.  ``took`` is the duration of the last attempt in ms, ``attempts`` the number of attempts.
    ``delay`` is how long to wait (ms): for a sleep, for a signal, or until the next attempt.  ``undo`` says
    that the step can be undone.  In a wait for a signal, ``schema`` is the JSON Schema of its data, a map: a
    signal whose data does not fit is refused.  ``unfit`` says why the worker cannot use the data that a wait
    has taken: that signal is quarantined, and the wait continues.  ``instead`` names a wait for the same
    signal that is not in the code any more; if it has taken a signal since then, this step gets that signal.
    A step of the kind "state" is not a real step: GetWorkflow shows its result as the state of the workflow.
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
    """The current state of a step.  ``existing`` is true if it had ended before, and was left unchanged;
    ``leftOut`` if its result would make the answer too large: GetSteps has it."""

    status: str = ""
    number: int = 0
    existing: bool = False
    left_out: bool = False
    attempts: int | UnsetType = UNSET
    until: float | UnsetType = UNSET  # epoch ms
    wait: float | UnsetType = UNSET  # remaining ms until then
    result: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    child: IdOf | UnsetType = UNSET  # the id of the job
    refused: Refusal | UnsetType = UNSET


class RecordStepsReply(Reply, kw_only=True):
    """One answer per step, in their order; null if the step was recorded as given."""

    results: list[StepAnswer | None]


class StepView(Struct, kw_only=True, rename="camel", gc=False):
    """A recorded step.  Times are epoch ms.  A ``result`` or ``cursor`` above the requested size is left out;
    ``size`` and ``cursorSize`` are their lengths in bytes, 0 if absent.  ``schema`` is that of an open wait
    for a signal."""

    number: int
    name: str
    kind: str
    status: str
    attempts: int
    started_at: float
    ended_at: float | None = None
    until: float | None = None
    worker: NameOf | None = None
    arguments: str | None = None
    signal: str | None = None
    key: str | None = None
    child: IdOf | None = None
    child_queue: QueueOf | None = None
    undo: bool = False
    error: ContentText | None = None
    size: int = 0
    cursor_size: int = 0
    cursor: Content | UnsetType = UNSET
    result: Content | UnsetType = UNSET
    schema: Raw | UnsetType = UNSET


class Steps(Struct, gc=False):
    """A page of steps, ordered by when they were first recorded; ``next`` is the ``after`` of the next page,
    null on the last."""

    steps: list[StepView]
    next: int | None


class StepsReply(Reply, kw_only=True):
    data: Steps


class UndoView(Struct, rename="camel", gc=False):
    """Why a workflow is being undone, since when (epoch ms), and its outcome when that is complete."""

    reason: str
    error: ContentText | None
    at: float


class KeptSignal(Struct, rename="camel", omit_defaults=True, gc=False):
    """A signal that the workflow has not waited for yet, or, with a ``problem``, one that is quarantined
    because its data does not fit.  DropSignal removes it by its ``number``.  ``data`` above the requested
    size is left out; ``size`` is its length in bytes."""

    name: str
    at: float
    size: int
    number: int = 0
    expires_at: float | None = None
    problem: ContentText | None = None
    data: Content | UnsetType = UNSET


class OpenWait(Struct, rename="camel", omit_defaults=True, gc=False):
    """A wait for a signal, or for a broadcast with that ``key``.  It times out at ``until`` (epoch ms).
    ``schema`` is the JSON Schema of the data that it accepts; without it, any data is accepted."""

    step: str
    signal: str
    key: str | None = None
    until: float | None = None
    schema: Raw | UnsetType = UNSET


class WorkflowView(Struct, kw_only=True, rename="camel", gc=False):
    """The current state of a workflow.  ``generation`` counts how many times its steps began again,
    ``suspended`` how many times it was suspended.  ``value`` is the state that its code has set,
    absent if it has not.  ``waits`` has its first 100 open waits for signals, ``signals`` the signals that no
    wait has taken.  ``steps`` and ``next`` are a page as in GetSteps."""

    id: IdOf
    queue: QueueOf
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
    value: Content | UnsetType = UNSET


class WorkflowReply(Reply, kw_only=True):
    data: WorkflowView


class Delivered(Struct, omit_defaults=True, gc=False):
    """``delivered`` is true if a wait took the signal.  If not, the signal is kept; ``kept`` is the number of
    kept signals, and ``waiting`` has the names of the signals that the workflow waits for now, if any."""

    delivered: bool
    kept: int
    waiting: list[str] = []


PageLimit = Annotated[int, Meta(ge=1, le=1000)]
MaxResult = Annotated[int, Meta(ge=0, le=MAX_FRAME)]


@http("POST /queues/{queue}/steps", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.RUN, writes=True, repeatable=True, grows=True)
class RecordSteps(OfQueue[RecordStepsReply], tag="RecordSteps"):
    """Record steps of jobs of a queue that the caller has locked; each is accepted or refused separately.

    A step that has ended is never changed: the answer has the stored step.  So the command may be repeated.
    To check whether a wait is over, record it again.
    """

    steps: Annotated[list[StepRecord], Meta(max_length=1000)]


@http("GET /queues/{queue}/jobs/{id}/steps", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.RUN | Verb.SEE | Verb.READ)
class GetSteps(OfQueue[StepsReply], tag="GetSteps"):
    """Get the recorded steps of a job with numbers above ``after``: all, or the named ones.

    Results and cursors of more than ``maxResult`` bytes are left out.  A page ends after ``limit`` steps or
    some MB, but always has at least one step if any remain.
    """

    id: JobId
    after: Number = 0
    limit: PageLimit = 1000
    max_result: MaxResult = 1 << 20
    names: Annotated[list[StepName], Meta(max_length=1000)] | None = None


class WaitGroup(Struct, gc=False):
    """Steps that a workflow waits for together: until all have ended, or one has failed."""

    steps: Annotated[list[StepName], Meta(max_length=100_000)]


@http("POST /queues/{queue}/jobs/{id}/suspend", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.RUN, writes=True)
class SuspendJob(OfQueue[Ok], tag="SuspendJob"):
    """End a run because everything in it is waiting.  The job resumes when one of these groups of recorded
    steps is ready, or when the time of one of their steps has come.  This does not count as an attempt."""

    id: JobId
    token: Token
    groups: Annotated[list[WaitGroup], Meta(min_length=1, max_length=100_000)]


@http("POST /queues/{queue}/jobs/{id}/continue-as-new", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.RUN, writes=True, grows=True)
class ContinueAsNew(OfQueue[Ok], tag="ContinueAsNew"):
    """Begin a workflow again with other data and without its steps.  It keeps its id and the signals that are
    stored for it."""

    id: JobId
    token: Token
    data: Raw = Raw(NIL)


@http("POST /workflows/{id}/signals/{name}", Tag.WORKFLOWS)
@http("POST /workflows/{id}/signals/{name}/raw", Tag.WORKFLOWS, whole="data")
@command(Route.ID, Verb.ADD | Verb.RUN | Verb.OPERATE, writes=True, repeatable=True, grows=True)
class SendSignal(OfJob[Data[Delivered]], tag="SendSignal"):
    """Send a signal to a workflow: the oldest wait for its name takes it, or it is kept for the next wait,
    for ``ttl`` ms if given.  Signals with the same ``signalId`` count once.  A signal is refused if its data
    does not fit the schema of the wait, or of the workflow."""

    name: SignalName
    data: Raw = Raw(NIL)
    ttl: Ttl | None = None
    signal_id: Key | None = None


@http("DELETE /workflows/{id}/signals/{number}", Tag.WORKFLOWS)
@command(Route.ID, Verb.OPERATE, writes=True)
class DropSignal(OfJob[Ok], tag="DropSignal"):
    """Remove a signal that no wait of a workflow has taken, quarantined or not; `number` is the one in
    GetWorkflow."""

    number: Annotated[int, Meta(ge=1, le=MAX_SAFE)]


Schemas = Annotated[dict[SignalName, Raw], Meta(max_length=1000)]
Types = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=256)], Schemas],
    Meta(max_length=1000),
]


@http("PUT /queues/{queue}/signal-types", Tag.LIMITS)
@command(Route.QUEUE, Verb.RUN, writes=True, repeatable=True)
class SetSignalTypes(OfQueue[Ok], tag="SetSignalTypes"):
    """Declare which data the signals of workflows of a queue may have: for each workflow name, JSON Schemas
    by signal name.  This replaces earlier declarations for these workflows, and takes precedence over the
    schemas of single waits.  ``by`` is an id of the program that is starting to work: schemas that waits
    declared before that are not applied any more, because its code may have changed."""

    workflows: Types
    by: Key = ""


@http("POST /signals/{name}", Tag.WORKFLOWS)
@http("POST /signals/{name}/raw", Tag.WORKFLOWS, whole="data")
@command(
    Route.ALL,
    Verb.ADD | Verb.RUN | Verb.OPERATE,
    merge=Merge.COUNT,
    writes=True,
    repeatable=True,
    heavy=True,
    grows=True,
)
class Broadcast(Command[CountReply], tag="Broadcast"):
    """Send a signal to every workflow that waits for this name and key, and during the next ``keep`` ms also
    to workflows that begin to wait for it.  Each gets it once.  Waits that its data does not fit do not get
    it.  ``count`` is how many took it now.  With the same ``broadcastId`` the command may be repeated."""

    name: SignalName
    key: SignalKey
    data: Raw = Raw(NIL)
    keep: Ttl | None = None
    broadcast_id: Key | None = None


@http("GET /workflows/{id}", Tag.WORKFLOWS)
@command(Route.ID, Verb.SEE | Verb.READ)
class GetWorkflow(OfJob[WorkflowReply], tag="GetWorkflow"):
    """Get a workflow, live or finished, with a page of its steps, as in GetSteps."""

    after: Number = 0
    limit: PageLimit = 100
    max_result: MaxResult = 1024


@http("POST /workflows/{id}/retry", Tag.WORKFLOWS)
@command(Route.ID, Verb.OPERATE, writes=True)
class RetryWorkflow(OfJob[Ok], tag="RetryWorkflow"):
    """Run an inactive workflow again: from ``step``, discarding everything that was recorded since; or,
    without ``step``, from where it failed."""

    step: StepName | None = None


@http("POST /workflows/{id}/undo", Tag.WORKFLOWS)
@command(Route.ID, Verb.OPERATE, writes=True)
class UndoWorkflow(OfJob[Ok], tag="UndoWorkflow"):
    """Undo a workflow that has ended ("start"), or continue an undo that is stuck: try again ("retry"),
    continue without undoing ``step`` ("skip"), or try again with ``data`` instead of the step's result
    ("edit")."""

    action: Literal["start", "retry", "skip", "edit"] = "retry"
    step: StepName | None = None
    data: Raw = Raw(NIL)
