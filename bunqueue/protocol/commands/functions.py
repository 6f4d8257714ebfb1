"""Functions that apps declare: the options, arguments and descriptions of the jobs of a name."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.functions import ACCEPT, MAX_ALIASES, MAX_DESCRIPTION, MAX_FUNCTIONS, InvalidJobs
from bunqueue.model.job import NIL
from bunqueue.model.marks import Holds
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    JobName,
    Merge,
    OfQueue,
    Ok,
    OwnPriority,
    QueueName,
    QueueOf,
    Reach,
    Reply,
    Route,
    Tag,
    Text,
    command,
    http,
)
from bunqueue.protocol.commands.core import AddedJob, DeadDependency, GroupId, OnDead
from bunqueue.protocol.moments import MaybeMoment, Moment


class FunctionOptions(AddedJob, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The options of a function's jobs, as in PUSH, where these leave them out."""

    priority: OwnPriority = UNSET
    group_id: GroupId | None = None
    group_max_size: Annotated[int, Meta(ge=1)] | None = None
    fair: bool = False
    size_limit: Annotated[int, Meta(ge=0)] | None = None
    workflow: bool = False
    on_dead: OnDead | None = None
    on_dead_dependency: DeadDependency | None = None


class FunctionFields(
    Struct, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A function as an app declares it.  ``schema`` is a JSON Schema of the data of its jobs, at most 16 KiB.

    Of a schema, types, bounds, properties, items, enumerations, alternatives and references within it are
    checked; ``pattern`` and other keywords are not.
    """

    name: JobName
    aliases: Annotated[list[JobName], Meta(max_length=MAX_ALIASES)] = []
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION)] = ""
    options: FunctionOptions | None = None
    schema: Raw = Raw(NIL)


Functions = Annotated[list[FunctionFields], Meta(max_length=MAX_FUNCTIONS)]


@http("PUT /queues/{queue}/functions", Tag.FUNCTIONS)
@command(Route.QUEUE, Verb.RUN | Verb.OPERATE, writes=True, repeatable=True)
class DeclareFunctions(OfQueue[Ok], tag="DeclareFunctions"):
    """Declare the functions with which an app runs the jobs of a queue, in place of what it declared before.

    The options of a function apply to all jobs of its name and its aliases, wherever they come from, except
    for fields that the push has.  ``invalidJobs`` says what happens to a push whose data does not fit the
    schema of its function, or whose name no app has declared: ``accept``; ``warn``, in ``warnings`` of the
    reply; or ``refuse``.  Of several apps, the strictest counts for unknown names; there are none if an app
    says ``anyName``.  A function that its app leaves out is known for another day.  The same name in
    several apps: the last declaration counts.
    """

    functions: Functions
    app: Text = ""
    version: Text | None = None
    by: Text | None = None
    invalid_jobs: InvalidJobs = ACCEPT
    any_name: bool = False


@http("DELETE /queues/{queue}/functions/{name}", Tag.FUNCTIONS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RemoveFunction(OfQueue[Ok], tag="RemoveFunction"):
    """Forget a function of a queue; its app declares it again when it starts."""

    name: Text


class FunctionView(Struct, rename="camel", kw_only=True, gc=False):
    """A function; times are in epoch ms.

    ``arguments`` describes the data of its jobs in words.  ``app`` is the app that declared it last, with the
    ``version`` of its program, ``by`` the program that did, and ``declared`` the time.  ``revision`` counts
    how many times its declaration has changed, at last at ``changed``.  ``retired`` is when its app left it
    out.
    """

    queue: QueueOf
    name: str
    aliases: list[str]
    description: str
    options: Annotated[dict[str, Any], Holds("options")]
    arguments: str
    schema: dict[str, Any] | UnsetType | None = UNSET
    app: str
    version: str | None
    by: str | None
    declared_ms: float = msgspec.field(name="declared")
    revision: int
    changed_ms: float = msgspec.field(name="changed")
    retired_ms: float | None = msgspec.field(name="retired")
    invalid_jobs: InvalidJobs

    declared = Moment("declared_ms")
    changed = Moment("changed_ms")
    retired = MaybeMoment("retired_ms")


class FunctionsReply(Reply, kw_only=True):
    functions: list[FunctionView]


@http("GET /queues/{queue}/functions", Tag.FUNCTIONS)
@http("GET /functions", Tag.FUNCTIONS)
@command(Route.ALL, Verb.SEE | Verb.READ, merge=Merge.CONCAT, heavy=True, reach=Reach.ALLOWED)
class ListFunctions(Command[FunctionsReply], tag="ListFunctions"):
    """List the functions of a queue, or of all queues, without their schemas."""

    queue: QueueName | None = None


class FunctionReply(Reply, kw_only=True):
    """``refused`` and ``warned`` count the invalid jobs of the queue since the shard started."""

    function: FunctionView
    refused: int
    warned: int


@http("GET /queues/{queue}/functions/{name}", Tag.FUNCTIONS)
@command(Route.QUEUE, Verb.SEE | Verb.READ)
class GetFunction(OfQueue[FunctionReply], tag="GetFunction"):
    """Get a function of a queue with its schema, by its name or an alias."""

    name: Text
