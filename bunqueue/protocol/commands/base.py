"""The building blocks of command declarations, and the table that holds the commands.

A command is declared once, as a class with typed, bounded fields and a decorator that says how it is routed
and answered.  The router, the shard, the SDK, the error texts and PROTOCOL.md are derived from that
declaration.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Generic, NamedTuple, TypeVar, get_args, get_origin

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct
from msgspec.msgpack import Ext
from msgspec.structs import fields

from bunqueue.model.durations import DAY_MS, YEAR_MS
from bunqueue.model.job import DEFAULT_MAX_ATTEMPTS
from bunqueue.model.marks import Mark
from bunqueue.model.rights import ANYBODY, SUPERVISING, Verb
from bunqueue.protocol.codes import Code, code_of_field

RequestId = Raw | UnsetType  # any value; the reply echoes it, or leaves it out if the request had none

P = TypeVar("P")
D = TypeVar("D")
if TYPE_CHECKING:
    import typing_extensions

    R = typing_extensions.TypeVar("R", bound="Reply", default="Reply", covariant=True)
else:
    R = TypeVar("R", covariant=True)

MAX_SHOWN = 64  # characters of a refused value that its refusal shows
MAX_SAFE = 2**53 - 1  # the largest integer that the numbers of every language can hold


class AnsweredBy(Generic[R]):
    """A command whose reply is R."""

    __slots__ = ()


class Command(
    Struct, AnsweredBy[R], kw_only=True, rename="camel", tag_field="cmd", omit_defaults=True, gc=False
):
    """A request.  ``req_id`` is echoed in its reply."""

    req_id: RequestId = UNSET


class Reply(Struct, kw_only=True, rename="camel", gc=False):
    """An answer; ``ok`` comes first on the wire."""

    ok: bool = True
    req_id: RequestId = UNSET


class Ok(Reply, kw_only=True):
    """The command succeeded."""


class Data(Reply, Generic[D], kw_only=True):
    """A reply with ``data`` alone.  One that is recognized by its type has a class of its own."""

    data: D


class Removed(Struct, gc=False):
    removed: bool  # whether there was something to remove


class ErrorReply(Reply, kw_only=True):
    """The command was refused or failed.  It changed nothing, except for other jobs of the same batch."""

    ok: bool = False
    error: Annotated[str, Mark.TEXT]
    code: Code  # for programs: see `bunqueue.protocol.codes`
    field: str | UnsetType = UNSET  # the refused field, as in "jobs[3].priority"
    value: Annotated[str | float | bool | UnsetType | None, Mark.TEXT] = UNSET  # the refused value, if short
    bound: str | float | UnsetType = UNSET  # what is allowed: a number, or a list of values
    retry_after: int | UnsetType = UNSET  # ms until the same command may succeed


class CommandError(Exception):
    """A refused command; everything in it goes into the error reply.

    ``field`` is the path of the wrong field, ``value`` what it held, ``bound`` what is allowed.
    ``retry_after`` is the number of ms until the same command may succeed.
    """

    def __init__(
        self,
        text: str,
        code: Code,
        *,
        field: str | UnsetType = UNSET,
        value: object = UNSET,
        bound: str | float | UnsetType = UNSET,
        retry_after: int | UnsetType = UNSET,
    ) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.code, self.field, self.value = code, field, _short(value)
        self.bound = _portable(bound)

    def within(self, text: str, path: str) -> "CommandError":
        """The same refusal for a nested field, with this text and path."""
        code = code_of_field(path) if self.code == Code.INVALID_FIELD else self.code
        return CommandError(
            text, code, field=path, value=self.value, bound=self.bound, retry_after=self.retry_after
        )


def invalid(
    field: str, problem: str, value: object = UNSET, bound: str | float | UnsetType = UNSET
) -> CommandError:
    """The refusal of a field; its text is the field's name followed by the ``problem``."""
    text = f"{field} {problem}" if field else problem
    return CommandError(text, code_of_field(field), field=field, value=value, bound=bound)


def path_of(field: str) -> str:
    """The path of a field, from the form "jobs[3]: data" that error texts use."""
    where, colon, name = field.rpartition(": ")
    return f"{where}.{name}" if colon and where.endswith("]") else name


def _short(value: object) -> str | float | bool | UnsetType | None:
    """The form of a value in a refusal: long text is cut, nested values are left out."""
    if isinstance(value, str):
        return value[:MAX_SHOWN]
    return _portable(value) if value is None or isinstance(value, bool | int | float) else UNSET


def _portable(value: P) -> P | float:
    """Convert large integers to floats: some clients cannot read integers beyond 32 bits."""
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        return float(value)
    return value


class Refusal(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Why one of several items of a command was refused; the fields are those of an error reply."""

    error: Annotated[str, Mark.TEXT]
    code: str
    field: str | UnsetType = UNSET
    value: Annotated[str | float | bool | UnsetType | None, Mark.TEXT] = UNSET
    bound: str | float | UnsetType = UNSET


def refusal(error: CommandError) -> Refusal:
    """The refusal of one of several items."""
    return Refusal(error=str(error), code=error.code, field=error.field, value=error.value, bound=error.bound)


def refused(error: CommandError, req_id: RequestId = UNSET) -> ErrorReply:
    """The reply to a command that is refused."""
    return ErrorReply(
        error=str(error),
        code=error.code,
        field=error.field,
        value=error.value,
        bound=error.bound,
        retry_after=error.retry_after,
        req_id=req_id,
    )


class Route(enum.Enum):
    """Which process answers a command."""

    QUEUE = "the shard of the queue"
    ID = "the shard of the job id"
    IDS = "the shards of the job ids, each with its part"
    ALL = "all shards, their answers merged"
    QUEUE_OR_ALL = "the shard of the queue, or without one all shards, their answers merged"
    QUEUE_OR_EACH = "the shard of the queue, or without one the shard that the cursor names"
    FIRST = "the first shard, which keeps what belongs to the whole server"
    ROUTER = "answered by the router itself"


class Merge(enum.Enum):
    """How the answers of several shards become one."""

    NONE = "one answer only"
    FIRST_ERROR = "ok when all are, else the first error in the order of the ids"
    PLACED = "the results, each at the place of its id"
    COUNT = "the sum of count, or of data.count"
    ANY = "the first that is ok, else the first error"
    CONCAT = "the lists one after the other"
    SORTED = "the lists one after the other, by the names in them"
    SUM = "the sums of the numbers"
    PAGE = "one page of the jobs of all, and a cursor for the next one"


@dataclass(frozen=True)
class Across:
    """How the values that several shards report for one field are merged.  Fields declare it with
    ``Annotated``; numbers without it are added up."""

    rule: str
    weight: str = ""  # for a mean: the wire name of the sibling field with the sample count


LARGEST, SMALLEST = Across("largest"), Across("smallest")


class Reach(enum.Enum):
    """What a command touches, for identities that are for some queues only."""

    NAMED = "the queues and jobs that its fields name"
    ALLOWED = "of all queues, those that the identity is for: its function asks the scope"
    SERVER = "the whole server: refused"


class Tag(enum.Enum):
    """The headings of the HTTP documentation, in its order."""

    QUEUES = "Queues"
    JOBS_OF_A_QUEUE = "Jobs of a queue"
    JOBS = "Jobs"
    FLOWS = "Flows"
    WORKFLOWS = "Workflows"
    DEAD_LETTERS = "Dead letters"
    LIMITS = "Limits"
    CIRCUIT_BREAKERS = "Circuit breakers"
    GROUPS = "Groups"
    CRON = "Cron"
    FUNCTIONS = "Functions"
    WORKERS = "Workers"
    CLUSTER = "Cluster"
    WEBHOOKS = "Webhooks"
    SERVER = "Server"


class HttpRoute(NamedTuple):
    """A method and path of the HTTP gateway: see `http`."""

    method: str
    path: str
    tag: Tag
    whole: str | None


@dataclass(frozen=True)
class Spec:
    """One row of the command table."""

    name: str
    request: type[Struct]
    route: Route
    verbs: Verb  # one of these allows it; none: every identity may use it
    reply: type[Reply]
    merge: Merge
    writes: bool  # changes state
    repeatable: bool  # doing it twice is the same as once
    parks: bool  # may be answered late, if its ``timeout`` is above 0
    heavy: bool  # may be answered late, because its work grows with the queue and is done in slices
    since: int  # protocol version
    key: str = ""  # the field that decides the shard
    plain: type[Struct] | None = None  # the same command with only its most common fields
    reach: Reach = Reach.SERVER
    subscribes: bool = False  # afterwards the shard sends events to the connection
    partial: bool = False  # the answers of the reachable shards are enough
    grows: bool = False  # needs more disk space than it frees: refused while the disk is full
    internal: bool = False  # only for the HTTP gateway; unknown to all other clients
    operational: bool = False  # about the server itself: answered even while its store is unavailable
    of_connection: bool = False  # about the connection it is sent over, so only the owner of that may send it
    by_action: Mapping[str, Verb] = field(
        default_factory=dict, compare=False
    )  # what it needs, by the field ``action``
    masked: Verb = ANYBODY  # who has one of these may use it over HTTP, where its secrets are masked
    http: list[HttpRoute] = field(default_factory=list, compare=False)

    @property
    def is_offered(self) -> bool:
        """Whether clients may send it by its name, over any connection."""
        return not (self.internal or self.of_connection)

    @cached_property  # read for every pull
    def is_audited(self) -> bool:
        """Whether it leaves an entry in the trail: it changes something, and is not part of adding or running
        jobs."""
        return self.writes and not self.internal and bool(self.verbs) and not self.verbs & ~SUPERVISING

    def verbs_of(self, action: object) -> Verb:
        """The verbs that allow a request with this ``action``, if it has one."""
        return self.by_action.get(action, self.verbs) if isinstance(action, str) else self.verbs

    @cached_property  # read for every pull
    def default_timeout(self) -> float:
        """The default ``timeout`` of a command that parks, in ms."""
        return next(float(field.default) for field in fields(self.request) if field.name == "timeout")

    def is_slow(self, timeout: object) -> bool:
        """Whether a request may be answered late, because it is a long poll or a heavy command.  A connection
        may have 50 of these in flight.  Router and shard must agree on this, because both count them.
        """
        if self.heavy or not self.parks:
            return self.heavy
        if timeout is None or isinstance(timeout, Ext):  # absent, or another language's "undefined"
            timeout = self.default_timeout
        return isinstance(timeout, int | float) and timeout > 0


COMMANDS: dict[str, Spec] = {}
_NAMING = frozenset({Route.QUEUE, Route.ID, Route.IDS})

C = TypeVar("C", bound=type[Struct])


def command(
    route: Route,
    verbs: Verb,
    *,
    merge: Merge = Merge.NONE,
    writes: bool = False,
    repeatable: bool | None = None,
    parks: bool = False,
    heavy: bool = False,
    since: int = 2,
    plain: type[Struct] | None = None,
    reach: Reach | None = None,
    subscribes: bool = False,
    partial: bool = False,
    grows: bool = False,
    internal: bool = False,
    operational: bool = False,
    of_connection: bool = False,
    by_action: Mapping[str, Verb] | None = None,
    masked: Verb = ANYBODY,
) -> Callable[[C], C]:
    """Add a command class to the table.  Commands that only read are repeatable.

    Without a ``reach``, a command for one queue or for jobs touches what its fields name, and any other
    touches the whole server."""

    def enter(cls: C) -> C:
        name = str(cls.__struct_config__.tag)
        if name in COMMANDS:
            raise TypeError(f"there are two commands {name}")
        again = not writes if repeatable is None else repeatable
        COMMANDS[name] = Spec(
            name,
            cls,
            route,
            verbs,
            _reply(cls),
            merge,
            writes,
            again,
            parks,
            heavy,
            since,
            _key(route, cls),
            plain,
            reach or (Reach.NAMED if route in _NAMING else Reach.SERVER),
            subscribes,
            partial,
            grows,
            internal,
            operational,
            of_connection,
            by_action or {},
            masked,
        )
        return cls

    return enter


def _reply(cls: type[Struct]) -> type[Reply]:
    """The reply that a command's class names: R of `AnsweredBy`."""
    for base in cls.__dict__.get("__orig_bases__", ()):
        for argument in get_args(base):
            if get_origin(argument) is Data:
                return _with_data(*get_args(argument))
            if isinstance(argument, type) and issubclass(argument, Reply):
                return argument
    raise TypeError(f"{cls.__name__} does not say which reply it has, as in Command[Ok]")


@cache
def _with_data(kind: type[Struct]) -> type[Reply]:
    """`Data` of this kind as a class of its own, for what is derived from the declarations."""
    made = defstruct(f"{kind.__name__}Reply", [("data", kind)], bases=(Reply,), kw_only=True)
    return made  # type: ignore[return-value]  # `bases` makes it a Reply


def http(route: str, tag: Tag, *, whole: str | None = None) -> Callable[[C], C]:
    """Offer a command of the table over HTTP, as "PUT /queues/{queue}/bounds".

    The names in the path are fields of the command, and so are those of a query (GET, DELETE) or of the body
    (POST, PUT).  ``whole``: the field that gets the whole body, which may be any JSON value; the other fields
    are in the query.
    """
    method, path = route.split()

    def enter(cls: C) -> C:
        routes = COMMANDS[str(cls.__struct_config__.tag)].http
        routes.insert(0, HttpRoute(method, path, tag, whole))  # decorators are applied from the last one on
        return cls

    return enter


def _key(route: Route, request: type[Struct]) -> str:
    """The field of a request that decides its shard; of several ids, the first valid one."""
    if route is Route.ID:
        return next(name for name in request.__struct_fields__ if name in ("id", "custom_id", "worker_id"))
    return {Route.QUEUE: "queue", Route.IDS: "ids"}.get(route, "")


Scalar = str | int | float | bool | None
"""A value without parts.  Lists and maps are refused by their first byte, before anything is built."""

AnyTimeout = Scalar | Ext  # the argument of `Spec.is_slow`


class Slow(Struct, gc=False):
    """The fields that decide whether a request may be answered late."""

    cmd: Scalar = None
    timeout: AnyTimeout = None


def is_slow(cmd: object, timeout: object) -> bool:
    """`Spec.is_slow` of the command with that name."""
    spec = COMMANDS.get(cmd) if isinstance(cmd, str) else None
    return spec is not None and spec.is_slow(timeout)


# Field types.  A queue name is checked when the queue is first used, not with every command.  When a value
# does not fit, the refusal is the field's name followed by the text in ``extra={"problem": ...}``.
QueueName = Annotated[str, Meta(description="1 to 256 characters of [a-zA-Z0-9_-.:]"), Mark.QUEUE]
JobId = Annotated[str, Meta(description="a job id"), Mark.JOB]
Token = Annotated[str, Meta(description="the lock token of the pull")]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Delay = Annotated[float, Meta(ge=0, le=YEAR_MS)]
Ttl = Annotated[float, Meta(ge=0, le=YEAR_MS)]
# In answers, what texts are: see `Mark`.
QueueOf = Annotated[str, Mark.QUEUE]
IdOf = Annotated[str, Mark.ID]
NameOf = Annotated[str, Mark.NAME]
ServerText = Annotated[str, Mark.TEXT]
Content = Annotated[Raw, Mark.CONTENT]
ContentText = Annotated[str, Mark.CONTENT]
MaxAttempts = Annotated[int, Meta(ge=1, le=1000)]
Backoff = Annotated[float, Meta(ge=0, le=DAY_MS)]
MAX_DELAYS, MAX_ERROR_TYPES = 100, 64
Delays = Annotated[list[Delay], Meta(min_length=1, max_length=MAX_DELAYS)]
ErrorTypes = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=256)]],
    Meta(max_length=MAX_ERROR_TYPES, description="classes of errors, such as httpx.ConnectTimeout"),
]
# Options of a job.  One that a push leaves out is that of its function (see DeclareFunctions), if that has
# declared one; else the default applies, which is only shown here.
OwnPriority = Annotated[Priority | UnsetType, Meta(extra_json_schema={"default": 0})]
OwnDelay = Annotated[Delay | UnsetType, Meta(extra_json_schema={"default": 0})]
OwnAttempts = Annotated[MaxAttempts | UnsetType, Meta(extra_json_schema={"default": DEFAULT_MAX_ATTEMPTS})]
OwnSwitch = Annotated[bool | UnsetType, Meta(extra_json_schema={"default": False})]
WaitTimeout = Annotated[float, Meta(ge=0, le=600_000)]
PollTimeout = Annotated[float, Meta(ge=0, le=60_000)]
LockTtl = Annotated[int, Meta(ge=1, le=DAY_MS)]
Text = Annotated[str, Meta(max_length=256)]  # names, tags
WorkerOf = Annotated[str, Meta(max_length=256), Mark.NAME]
MAX_JOB_NAME = 256
JobName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_JOB_NAME,
        extra={
            "label": "Job name",
            "problem": f"must be a non-empty string of at most {MAX_JOB_NAME} characters",
        },
    ),
]
MAX_ID = 1024
Key = Annotated[str, Meta(max_length=1024)]
OwnId = Annotated[str, Meta(max_length=MAX_ID), Mark.ID]
Message = Annotated[str, Meta(max_length=4096)]
PullCount = Annotated[int, Meta(ge=1, le=1000)]
Ids = Annotated[list[JobId], Meta(max_length=10_000)]
KeptIds = Annotated[list[OwnId], Meta(max_length=10_000)]  # stored and shown with a job
Tokens = Annotated[list[Token | None], Meta(max_length=10_000)]
PageSize = Annotated[int, Meta(ge=0, le=10_000)]
Offset = Annotated[int, Meta(ge=0, le=1_000_000_000)]
NumberText = Annotated[str, Meta(pattern=r"^[0-9]{1,15}$")]
Number = Annotated[float, Meta(ge=0, le=1e15)] | NumberText  # in a configuration, which checks bounds


class OfQueue(Command[R]):
    """A command about one queue."""

    queue: QueueName


class OfJob(Command[R]):
    """A command about one job."""

    id: JobId
