"""Flows: jobs that depend on each other, and what a parent can read about its children."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job_options import Timeout
from bunqueue.model.marks import PULLED_JOBS, Mark
from bunqueue.model.names import NAMESPACE
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    ContentText,
    Data,
    IdOf,
    JobId,
    Message,
    NameOf,
    OfJob,
    Ok,
    OwnId,
    QueueName,
    QueueOf,
    Reach,
    Reply,
    Route,
    Tag,
    Token,
    command,
    http,
)
from bunqueue.protocol.commands.core import JobFields

Pair = Annotated[str, Mark.PAIR]


class FlowJob(Struct, kw_only=True, rename="camel", gc=False):
    """One job of a flow; ``input`` has the fields of a push."""

    id: OwnId
    queue: Annotated[str, Mark.QUEUE]
    input: JobFields


class FlowJobs(Struct, gc=False):
    jobs: Annotated[Raw, PULLED_JOBS]  # encoded by protocol.job_view


class FlowReply(Reply, kw_only=True):
    data: FlowJobs


class ChildValues(Struct, gc=False):
    values: dict[Pair, Raw]  # "queue:id" -> result
    lost: list[IdOf] | UnsetType = (
        UNSET  # ids of children that completed, but whose results are not kept any more
    )


class ChildValuesReply(Reply, kw_only=True):
    data: ChildValues


class ChildErrorsReply(Reply, kw_only=True):
    values: dict[Pair, str]  # "queue:id" -> error


class RemovedReply(Reply, kw_only=True):
    removed: bool


@http("POST /flows", Tag.FLOWS)
@command(Route.FIRST, Verb.ADD, writes=True, since=3, grows=True, reach=Reach.ALLOWED)
class PushFlow(Command[FlowReply], tag="PUSHF"):
    """Push jobs that depend on each other, in any queues: all of them, or none if one is refused."""

    jobs: Annotated[list[FlowJob], Meta(max_length=10_000)]


@http("GET /jobs/{id}/children/results", Tag.FLOWS)
@command(Route.ID, Verb.RUN | Verb.READ)
class GetChildrenValues(OfJob[ChildValuesReply], tag="GetChildrenValues"):
    """Get the results of a job's children; those without a result are left out.

    The result of a removed child is kept for its parent; each shard keeps the last 50,000 of these results.
    ``lost``, if present, names the children whose results are gone."""


@http("GET /jobs/{id}/children/failures", Tag.FLOWS)
@command(Route.ID, Verb.RUN | Verb.READ, since=3)
class GetFailedChildrenValues(OfJob[ChildErrorsReply], tag="GetFailedChildrenValues"):
    """Get the errors of a job's children that failed and let their parent continue."""


@http("GET /jobs/{id}/children/ignored", Tag.FLOWS)
@command(Route.ID, Verb.RUN | Verb.READ, since=3)
class GetIgnoredChildrenFailures(OfJob[ChildErrorsReply], tag="GetIgnoredChildrenFailures"):
    """Get the errors of a job's children whose failure is ignored."""


@http("PUT /jobs/{childId}/parent", Tag.FLOWS)
@command(
    Route.FIRST,
    Verb.ADD | Verb.OPERATE,
    writes=True,
    repeatable=True,
    since=3,
    grows=True,
    reach=Reach.ALLOWED,
)
class UpdateParent(Command[Ok], tag="UpdateParent"):
    """Make one job the child of another, which then waits for it."""

    child_id: JobId
    parent_id: JobId


@http("DELETE /jobs/{id}/parent", Tag.FLOWS)
@command(Route.ID, Verb.OPERATE, writes=True, since=3)
class RemoveChildDependency(OfJob[RemovedReply], tag="RemoveChildDependency"):
    """Detach a job from its parent, which then no longer waits for it."""


class Moved(Struct, gc=False):
    moved: bool


@http("POST /jobs/{id}/wait-for-children", Tag.FLOWS)
@command(Route.ID, Verb.RUN, writes=True, since=3)
class MoveToWaitingChildren(OfJob[Data[Moved]], tag="MoveToWaitingChildren"):
    """Put an active job back until its children have completed."""

    token: Token | None = None


@http("DELETE /jobs/{id}/children", Tag.FLOWS)
@command(Route.ID, Verb.DESTROY, writes=True, repeatable=True, since=3)
class RemoveUnprocessedChildren(OfJob[Ok], tag="RemoveUnprocessedChildren"):
    """Remove those children of a job that have not started."""


# Flows with an id, whose jobs have names

_NAME = r"^[A-Za-z0-9_.-]{1,200}$"
FlowId = Annotated[str, Meta(pattern=_NAME, description="1 to 200 characters of [a-zA-Z0-9_.-]"), Mark.NAME]
KnownFlow = Annotated[  # with its namespace, for clients that live in none
    str,
    Meta(pattern=rf"^({NAMESPACE}/)?{_NAME[1:]}", description="1 to 200 characters of [a-zA-Z0-9_.-]"),
    Mark.NAME,
]
NodeName = Annotated[str, Meta(pattern=_NAME, description="1 to 200 characters of [a-zA-Z0-9_.-]")]
MAX_NODES = 10_000  # of one command, and of one answer


class FlowNode(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """One job of a flow, with its own name in the flow.  Its id is the flow's id, a colon, and that name.
    ``after`` has the names of the jobs that it waits for; ``input`` has the fields of a push.

    With ``gathers`` it waits until CloseFlow, and then for all jobs of the flow that do not gather; "success"
    fails when one of these does, "complete" runs in any case.  Its name is on-success or on-complete."""

    name: NodeName
    queue: QueueName
    after: Annotated[list[NodeName], Meta(max_length=MAX_NODES)] = []
    input: JobFields
    gathers: Literal["complete", "success"] | None = None


class FlowAdded(Struct, gc=False):
    """The ids of the jobs, in the order of the command."""

    ids: list[IdOf]


@http("POST /flows/{flow}", Tag.FLOWS)
@command(Route.FIRST, Verb.ADD, writes=True, grows=True, reach=Reach.ALLOWED)
class AddFlow(Command[Data[FlowAdded]], tag="AddFlow"):
    """Add a flow, or with ``grow`` more jobs to an existing flow: all of them, or none if one is refused.

    Any graph without cycles is allowed.  New jobs may wait for jobs that the flow already has, but not for
    jobs that were removed in the meantime: that is refused.  If a job fails, its policy fields, or the
    ``onDeadDependency`` of a job that waits for it, decide what that means for the waiting job; without both,
    that job keeps waiting.
    """

    flow: FlowId
    nodes: Annotated[list[FlowNode], Meta(min_length=1, max_length=MAX_NODES)]
    grow: bool = False


class NodeView(Struct, rename="camel", gc=False):
    """The current state of a job of a flow.  Times are in epoch ms.  ``after`` has the names of the jobs that
    it depends on, ``pending`` those that it is still waiting for."""

    name: str
    id: IdOf
    queue: QueueOf
    job: str  # the name of the job
    state: str
    after: list[str]
    pending: list[str]
    attempts: int
    max_attempts: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    error: ContentText | None
    gathers: Literal["complete", "success"] | None = None


class BatchView(Struct, rename="camel", gc=False):
    """A flow with jobs that gather.  It is ``open`` until CloseFlow.  ``jobs`` counts the jobs that do not
    gather, ``completed`` and ``failed`` (which includes cancelled) those of them that have ended.
    ``waiting`` has the names of the jobs that gather and have not ended."""

    open: bool
    jobs: int
    completed: int
    failed: int
    waiting: list[str]


class FlowView(Struct, rename="camel", gc=False):
    """``state`` is running while any job has not ended; then failed, cancelled or completed.  ``more``: there
    are more than 10,000 jobs, and the rest is left out.  ``batch`` is null unless some jobs gather."""

    id: NameOf
    state: str
    counts: dict[str, int]  # state -> jobs
    nodes: list[NodeView]
    more: bool
    batch: BatchView | None = None


@http("GET /flows/{flow}", Tag.FLOWS)
@command(Route.FIRST, Verb.SEE | Verb.READ, reach=Reach.ALLOWED)
class GetFlow(Command[Data[FlowView]], tag="GetFlow"):
    """Get the jobs of a flow with their states, errors and dependencies, oldest first.  Removed jobs are left
    out."""

    flow: KnownFlow


MAX_LISTED, COUNTED = 100, 1_000


class FlowLine(Struct, rename="camel", gc=False):
    """A flow in a list.  ``counts`` covers its first 1,000 jobs or slightly more; with ``more`` there are
    others, and ``state`` is null unless one of the counted jobs has not ended.  ``open`` is null if the flow
    is not a batch."""

    id: NameOf
    state: str | None
    counts: dict[str, int]  # state -> jobs
    created_at: float  # when its oldest job was added, epoch ms
    open: bool | None
    more: bool


class FlowList(Struct, rename="camel", gc=False):
    """``cursor``: the ``after`` of the next page; null on the last.  Any page may be shorter than its limit,
    or even empty."""

    flows: list[FlowLine]
    cursor: NameOf | None


@http("GET /flows", Tag.FLOWS)
@command(Route.FIRST, Verb.SEE, reach=Reach.ALLOWED)
class ListFlows(Command[Data[FlowList]], tag="ListFlows"):
    """List flows with ids, in alphabetical order: all of them, or those whose ids begin with ``prefix``, and
    that have a job in ``queue``."""

    prefix: Annotated[str, Meta(pattern=rf"^({NAMESPACE}/)?[A-Za-z0-9_.-]{{0,200}}$"), Mark.NAME] = ""
    queue: QueueName | None = None
    after: Annotated[str, Meta(max_length=1_000), Mark.ID] = ""  # of a flow, or a job of it
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20


@http("POST /flows/{flow}/close", Tag.FLOWS)
@command(Route.FIRST, Verb.ADD | Verb.OPERATE, writes=True, repeatable=True, reach=Reach.ALLOWED)
class CloseFlow(Command[Data[FlowAdded]], tag="CloseFlow"):
    """Make the jobs that gather wait for the jobs that the flow has now, and for no others.  The answer has
    the ids of these jobs."""

    flow: KnownFlow


class FlowStopped(Struct, gc=False):
    """``stopped``: the number of jobs that have ended as cancelled; ``running``: those that are about to."""

    stopped: int
    running: int


@http("POST /flows/{flow}/cancel", Tag.FLOWS)
@command(Route.FIRST, Verb.OPERATE, writes=True, repeatable=True, reach=Reach.ALLOWED)
class CancelFlow(Command[Data[FlowStopped]], tag="CancelFlow"):
    """Cancel all jobs of a flow that have not ended.  They become dead letters, so the flow can be retried.
    The workers of active jobs have ``grace`` ms to stop them."""

    flow: KnownFlow
    reason: Message | None = None
    grace: Timeout = 10_000


class FlowRetried(Struct, gc=False):
    """The names of the jobs that will run again."""

    names: list[str]


@http("POST /flows/{flow}/retry", Tag.FLOWS)
@command(Route.FIRST, Verb.OPERATE, writes=True, reach=Reach.ALLOWED)
class RetryFlow(Command[Data[FlowRetried]], tag="RetryFlow"):
    """Run the dead jobs of a flow again, each when the jobs that it waits for have completed.  With ``node``,
    run that job and all that follow it again, including completed ones."""

    flow: KnownFlow
    node: NodeName | None = None
