"""PUSH, PULL, ACK, FAIL and their batches: the hot path."""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.durations import YEAR_MS
from bunqueue.model.job import (
    DEFAULT_BACKOFF_MS,
    DEFAULT_LOCK_TTL_MS,
    NIL,
    UNDEFINED,
)
from bunqueue.model.job_options import RareOptions, Timeout
from bunqueue.model.marks import PULLED, PULLED_JOBS
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    AnsweredBy,
    Backoff,
    Command,
    Delay,
    Delays,
    ErrorTypes,
    IdOf,
    Ids,
    JobId,
    JobName,
    KeptIds,
    Key,
    LockTtl,
    Merge,
    OfJob,
    OfQueue,
    Ok,
    OwnAttempts,
    OwnDelay,
    OwnId,
    OwnPriority,
    OwnSwitch,
    PollTimeout,
    PullCount,
    QueueName,
    Refusal,
    Reply,
    RequestId,
    Route,
    ServerText,
    Tag,
    Text,
    Token,
    Tokens,
    Ttl,
    WorkerOf,
    command,
    http,
)
from bunqueue.protocol.commands.times import Repeat, Time
from bunqueue.protocol.notices import CancelNotice

PositiveInt = Annotated[int, Meta(ge=1, le=MAX_SAFE, extra={"problem": "must be a positive safe integer"})]
GroupId = Annotated[str, Meta(min_length=1, max_length=256)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=256)]
IdempotencyHash = Annotated[str, Meta(min_length=1, max_length=64)]
IdempotencyAge = Annotated[float, Meta(ge=0, le=YEAR_MS)]
# The bounds depend on the job and the version, so the shard checks them (handlers/push_checks.py).
AnyPriority = Annotated[
    int,
    Meta(
        ge=-(2**31),
        le=2**31 - 1,
        extra_json_schema={
            "default": 0,
            "minimum": -1_000_000,
            "maximum": 1_000_000,
            "description": "of a job in a group that is not `fair`, 0 to 2,097,151 from version 3 on",
        },
    ),
]

BackoffType = Annotated[
    Literal["fixed", "exponential", "linear"],
    Meta(extra={"problem": "must be 'fixed' or 'exponential'"}),  # the reference's text; the bound lists all
]


class BackoffMap(
    Struct, kw_only=True, rename="camel", repr_omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """The backoff of protocol 3: a type, and a delay in ms.

    With a ``jitter`` from 0 to 1, the first wait is ``delay``; with each further attempt, ``linear`` adds
    ``delay`` to the wait and ``exponential`` doubles it.  Each wait is longer or shorter by at most the
    fraction ``jitter``.  Without ``jitter``, as in the reference, ``fixed`` waits 0.8 to 1.2 times ``delay``,
    and ``exponential`` 0.5 to 1.5 times ``delay`` x 2^failures.  No wait is longer than ``maxDelay``, by
    default an hour.  ``delays`` lists the first waits; the rules above begin after them.  ``retryAfter`` is
    for workers: if an error says how long to wait, they send that time as ``delay`` in FAIL.
    """

    type: BackoffType = "exponential"
    delay: Backoff
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    max_delay: Delay | UnsetType = UNSET
    delays: Delays | UnsetType = UNSET
    retry_after: bool | UnsetType = UNSET


OwnBackoff = Annotated[
    Backoff | BackoffMap | UnsetType, Meta(extra_json_schema={"default": DEFAULT_BACKOFF_MS})
]

KeyState = Literal[
    "waiting",
    "delayed",
    "active",
    "waiting-children",
    "waiting-signal",
    "completed",
    "failed",
    "cancelled",
]
KeyStates = Annotated[list[KeyState], Meta(max_length=8)]


class Dedup(Struct, rename="camel", omit_defaults=True, gc=False):
    """What happens to a push whose unique key is taken, and for how long the key is held.

    With only ``ttl``, ``extend`` or ``replace``, the key is held as in the reference: until the job ends or
    fails an attempt, and for at most ``ttl`` ms.

    With ``onConflict`` or ``states``, the key is held for exactly ``ttl`` ms, however the job ends, unless it
    is cancelled or removed.  Without a ``ttl``, it is held until the job has ended, including retries.
    ``states`` lists instead the states in which the key is held; in any other state, another push can take
    it.  ``onConflict`` is one of:

    - ``keep`` (the default): the existing job stays, and nothing is added;
    - ``extend``: the same, and the key is held for another ``ttl``, counted from now;
    - ``reject``: the push is refused with the code DUPLICATE_KEY;
    - ``replace``: the new job replaces a waiting job; if the other job is active or has ended, the new one is
      added beside it and takes the key;
    - ``supersede``: like ``replace``, but an active job is asked to stop, with ``grace`` ms as in Cancel, and
      the new job starts when that job has ended.
    """

    ttl: Ttl | None = None
    extend: bool = False
    replace: bool = False
    on_conflict: Literal["keep", "replace", "extend", "reject", "supersede"] | None = None
    states: KeyStates | None = None
    grace: Timeout = 10_000


Headers = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=1024)]],
    Meta(max_length=16, description="at most 16 names of 64 characters, with values of 1024"),
]

DeadDependency = Literal["fail", "ignore", "continue", "remove", "wait"]


class AddedJob(RareOptions, kw_only=True, omit_defaults=True, repr_omit_defaults=True, gc=False):
    """The options of every job, whether a client, a schedule or the failure of another job adds it."""

    delay: OwnDelay = UNSET
    timeout: Timeout | None = None
    max_attempts: OwnAttempts = UNSET
    backoff: OwnBackoff = UNSET
    retry_on: ErrorTypes | None = None  # retried after errors of these classes only
    never_on: ErrorTypes | None = None  # not retried after errors of these classes
    ttl: Ttl | None = None
    tags: Annotated[list[Text], Meta(max_length=64)] | None = None
    lifo: OwnSwitch = UNSET
    remove_on_complete: OwnSwitch = UNSET
    remove_on_fail: OwnSwitch = UNSET
    durable: OwnSwitch = UNSET
    stack_trace_limit: Annotated[int, Meta(ge=0)] | None = None
    headers: Headers | None = None  # for middleware, such as W3C's traceparent; not part of the data


class OnDead(AddedJob, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A job that the server adds when another one has failed for good, in the same queue or in another.

    Its ``cause`` says which job failed, and how.  The fields are those of PUSH.
    """

    queue: QueueName | None = None
    name: JobName | None = None
    data: Raw = Raw(NIL)
    priority: OwnPriority = UNSET
    group_id: GroupId | None = None


class JobFields(AddedJob, kw_only=True, omit_defaults=True, gc=False):
    """The fields of one pushed job.  Times are in ms."""

    data: Raw = Raw(NIL)
    name: JobName | None = None
    group_id: GroupId | None = None
    priority: AnyPriority | UnsetType = UNSET
    unique_key: Key | None = None
    job_id: OwnId | None = None
    custom_id: OwnId | None = None  # an alias for job_id
    depends_on: KeptIds | None = None
    parent_id: OwnId | None = None
    children_ids: KeptIds | None = None
    group_max_size: Annotated[int, Meta(ge=1)] | None = None  # the push is refused when this many are queued
    fair: bool = False  # higher priority comes first within its group, as in the queue; for fair pulls
    repeat: Repeat | None = None
    dedup: Dedup | None = None
    debounce_id: Key | None = None
    debounce_ttl: Ttl | None = None
    size_limit: Annotated[int, Meta(ge=0)] | None = None
    timestamp: Time | None = None  # of the push
    workflow: bool = False  # it can receive signals, and is kept if it is cancelled
    fail_parent_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    on_dead: OnDead | None = None  # added when the job has failed for good
    on_dead_dependency: DeadDependency | None = None  # what the failure of a job in depends_on does to it


class PlainFields(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A subset of JobFields, enough for nearly all jobs.  Checking two dozen absent fields would take longer
    than storing the job.  Our own clients send these for the same reason."""

    data: Raw = Raw(NIL)
    name: JobName | None = None
    priority: OwnPriority = UNSET
    delay: OwnDelay = UNSET


class PlainPushBatch(
    Struct, kw_only=True, tag_field="cmd", tag="PUSHB", rename="camel", forbid_unknown_fields=True, gc=False
):
    """A PushBatch whose jobs are all PlainFields."""

    queue: QueueName
    jobs: Annotated[list[PlainFields], Meta(max_length=100_000)]
    idempotency_key: IdempotencyKey | None = None
    idempotency_age: IdempotencyAge = 0
    req_id: RequestId = UNSET


Action = Literal["kept", "extended", "replaced", "superseded"]


class Conflict(Struct, gc=False):
    """The job ``holder`` already had the unique key.  If ``action`` is kept or extended, nothing was added;
    if it is replaced or superseded, a new job was added."""

    action: Action
    holder: IdOf
    index: int | UnsetType = UNSET  # in a batch


class PushReply(Reply, kw_only=True):
    """``id`` is the id of the new job.  If another job already has that id or holds the unique key, it is
    that job's id, and ``existing`` is true.  ``conflict`` says what happened to a push with ``onConflict`` or
    ``states`` whose key was taken.  ``warnings`` says what is wrong with a job that its function cannot run:
    see DeclareFunctions.
    """

    id: IdOf
    existing: bool | UnsetType = UNSET
    conflict: Conflict | UnsetType = UNSET
    warnings: list[ServerText] | UnsetType = UNSET


class PlainPush(
    PlainFields,
    AnsweredBy[PushReply],
    kw_only=True,
    omit_defaults=True,
    tag_field="cmd",
    tag="PUSH",
    gc=False,
):
    """A Push that has only the fields of PlainFields."""

    queue: QueueName
    idempotency_key: IdempotencyKey | None = None
    idempotency_age: IdempotencyAge = 0
    req_id: RequestId = UNSET


class PushBatchReply(Reply, kw_only=True):
    """One id per job, in the order of the request; ``existing`` has the indexes of jobs that are not new.
    ``conflicts`` says what happened to jobs with ``onConflict`` or ``states`` whose key was taken.
    ``warnings`` is as for PUSH, for at most five of the jobs.
    """

    ids: list[IdOf]
    existing: list[int] | UnsetType = UNSET
    conflicts: list[Conflict] | UnsetType = UNSET
    warnings: list[ServerText] | UnsetType = UNSET


class PullReply(Reply, kw_only=True):
    """``job`` is null if none was available; ``token`` is present if the request named an owner."""

    job: Annotated[Raw | None, PULLED]
    token: str | UnsetType | None = UNSET


class PullBatchReply(Reply, kw_only=True):
    """At most ``count`` jobs, fewer if they are large; with ``tokens`` if the request named an owner."""

    jobs: Annotated[Raw, PULLED_JOBS]  # encoded by protocol.job_view
    tokens: list[str] | UnsetType = UNSET


class Applied(Struct, gc=False):
    """``applied`` is false if the job already had another outcome."""

    applied: bool
    reason: ServerText


class AckReply(Reply, kw_only=True):
    """``data`` is present only when the report came too late to count."""

    data: Applied | UnsetType = UNSET


class FailReply(AckReply, kw_only=True):
    """``delay``: the ms until the next attempt, if the request asked for it and there is one."""

    delay: float | UnsetType = UNSET


class Ignored(Struct, rename="camel", gc=False):
    """The jobs of a batch whose report came too late to count."""

    ignored_ids: list[IdOf]
    ignored_indices: list[int]


class AckBatchReply(Reply, kw_only=True):
    """``data`` is present only when some reports came too late to count."""

    data: Ignored | UnsetType = UNSET


@http("POST /queues/{queue}/jobs", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.ADD, writes=True, grows=True, plain=PlainPush)
class Push(JobFields, AnsweredBy[PushReply], kw_only=True, tag_field="cmd", tag="PUSH", gc=False):
    """Add one job to a queue.

    With an ``idempotencyKey`` the push can be repeated safely: for five minutes, another push to the queue
    with the same key adds nothing, and its answer has the id of the first job, marked as ``existing``.  If
    both pushes have an ``idempotencyHash`` of their content and the hashes differ, the second is refused.  A
    client that repeats a push because the answer was lost sets ``idempotencyAge`` to the ms since it first
    sent it.  It gets the original answer, or an error if that is longer ago than the server remembers.
    """

    queue: QueueName
    idempotency_key: IdempotencyKey | None = None
    idempotency_hash: IdempotencyHash | None = None
    idempotency_age: IdempotencyAge = 0
    req_id: RequestId = UNSET  # a struct has only one base, so Command's field is repeated here


@http("POST /queues/{queue}/jobs/bulk", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.ADD, writes=True, grows=True, plain=PlainPushBatch)
class PushBatch(OfQueue[PushBatchReply], tag="PUSHB"):
    """Add many jobs to a queue: all of them, or none if one is refused.  For idempotency keys, see PUSH."""

    jobs: Annotated[list[JobFields], Meta(max_length=100_000)]
    idempotency_key: IdempotencyKey | None = None
    idempotency_hash: IdempotencyHash | None = None
    idempotency_age: IdempotencyAge = 0


class GroupLimit(Struct, gc=False):
    """At most ``max`` jobs of a group within ``duration`` ms, counted from the first of them."""

    CALLED: ClassVar[str] = "an object"

    max: PositiveInt
    duration: PositiveInt


class GroupRule(Struct, gc=False):
    """The limits of a pull for groups without limits of their own: at most ``concurrency`` active jobs, and
    at most the rate ``limit``.

    The default ``concurrency`` is 1 in version 2 and unlimited in version 3.  The queue's SetGroupDefaults
    override both.

    With ``fair``, the groups take turns in proportion to their weights, and the jobs without a group form one
    more group.  Within a group the order is that of the queue, with higher priority first.  A group's own
    limits apply to every pull.
    """

    CALLED: ClassVar[str] = "an object"  # in errors

    concurrency: PositiveInt | None = None
    limit: GroupLimit | None = None
    fair: bool = False


FAIR = GroupRule(fair=True)
"""The rule in the pulls of this package."""


@http("GET /queues/{queue}/jobs", Tag.JOBS_OF_A_QUEUE)
@http("POST /queues/{queue}/jobs/pull", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.RUN, writes=True, parks=True)
class Pull(OfQueue[PullReply], tag="PULL"):
    """Take the next job, waiting up to ``timeout`` ms for one.

    With an ``owner`` the job is locked for ``lockTtl`` ms, and later commands for it need its token.
    With ``detach`` it stays active when the connection ends, because another process works on it.
    With ``signals`` the connection is notified when one of its jobs must stop.
    With ``ownTimeouts`` the worker itself ends a run that exceeds the job's timeout, and reports it with
    ``timedOut``.  The server does not end the run while the lock is renewed, so no other run begins before
    this one has ended.
    """

    timeout: PollTimeout = 0
    owner: WorkerOf | None = None
    lock_ttl: LockTtl = DEFAULT_LOCK_TTL_MS
    detach: bool = False
    group: GroupRule | None = None
    signals: bool = False
    own_timeouts: bool = False


@http("POST /queues/{queue}/jobs/pull-bulk", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.RUN, writes=True, parks=True)
class PullBatch(OfQueue[PullBatchReply], tag="PULLB"):
    """Take up to ``count`` jobs, waiting up to ``timeout`` ms for the first.  For the rest see PULL."""

    count: PullCount
    timeout: PollTimeout = 0
    owner: WorkerOf | None = None
    lock_ttl: LockTtl = DEFAULT_LOCK_TTL_MS
    detach: bool = False
    group: GroupRule | None = None
    signals: bool = False
    own_timeouts: bool = False


@http("POST /jobs/{id}/ack", Tag.JOBS)
@command(Route.ID, Verb.RUN, writes=True)
class Ack(OfJob[AckReply], tag="ACK"):
    """Complete a job.  With ``removeOnComplete`` nothing of it is kept, whatever its own options say."""

    result: Raw = Raw(UNDEFINED)
    token: Token | None = None
    remove_on_complete: bool = False


@http("POST /jobs/ack", Tag.JOBS)
@command(Route.IDS, Verb.RUN, merge=Merge.FIRST_ERROR, writes=True)
class AckBatch(Command[AckBatchReply], tag="ACKB"):
    """Complete many jobs.  A wrong token refuses all jobs of its shard; an unknown id, only that job."""

    ids: Ids
    results: Annotated[list[Raw], Meta(max_length=10_000)] | None = None
    tokens: Tokens | None = None
    remove_on_completes: Annotated[list[bool | None], Meta(max_length=10_000)] | None = None


class FailFields(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """The outcome of an attempt without a result."""

    error: Annotated[str, Meta(description="cut after 64 KiB")] | None = None
    unrecoverable: bool = False
    stack: str | Annotated[list[str], Meta(max_length=10_000)] | None = None
    remove_on_fail: bool = False
    interrupted: bool = False
    timed_out: bool = False
    delay: Delay | None = None
    wants_delay: bool = False
    error_types: ErrorTypes | None = None
    app_version: Text | None = None


@http("POST /jobs/{id}/fail", Tag.JOBS)
@command(Route.ID, Verb.RUN, writes=True)
class Fail(FailFields, AnsweredBy[FailReply], kw_only=True, tag_field="cmd", tag="FAIL", gc=False):
    """Report a failed attempt: the job is retried after its backoff, or becomes a dead letter.

    With ``unrecoverable`` it becomes a dead letter at once.  With ``removeOnFail`` nothing of it is kept if
    this was its last attempt.  With ``interrupted`` the attempt does not count: the worker returns the job
    because it is stopping, and the job takes its old position in the queue at once; the eleventh and every
    later time counts as a stall.  With ``timedOut`` the run took longer than the job's timeout.  With
    ``delay`` the next attempt begins after that many ms instead of the backoff.  With ``wantsDelay`` the
    answer says when it begins.  ``errorTypes`` lists the class of the error and its base classes, the most
    specific first; the job's ``retryOn`` and ``neverOn`` are matched against them, and the attempt keeps the
    first one.  For ``appVersion`` see ListErrors.
    """

    id: JobId
    token: Token | None = None
    req_id: RequestId = UNSET  # a struct has only one base, so Command's field is repeated here


class FailAnswer(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """The answer to one of several reports: as for FAIL, or ``refused``."""

    delay: float | UnsetType = UNSET  # ms
    data: Applied | UnsetType = UNSET
    refused: Refusal | UnsetType = UNSET


class FailBatchReply(Reply, kw_only=True):
    """One answer per job, in the order of the ids."""

    results: list[FailAnswer]


@http("POST /jobs/fail", Tag.JOBS)
@command(Route.IDS, Verb.RUN, merge=Merge.PLACED, writes=True)
class FailBatch(Command[FailBatchReply], tag="FAILB"):
    """Report many failed attempts, each as in FAIL.  A refused report does not affect the others."""

    ids: Ids
    failures: Annotated[list[FailFields], Meta(max_length=10_000)]
    tokens: Tokens | None = None


class Alive(Struct, gc=False):
    ok: bool = True
    cancelled: list[CancelNotice] | UnsetType = UNSET


class HeartbeatReply(Reply, kw_only=True):
    """``cancelled`` is present only if the job must stop."""

    data: Alive


class AliveCount(Struct, gc=False):
    count: int
    ok: bool = True
    cancelled: list[CancelNotice] | UnsetType = UNSET


class HeartbeatBatchReply(Reply, kw_only=True):
    """``count`` is the number of jobs that are active and, if a token was given, locked with it.
    ``cancelled`` is present only if some of them must stop.
    """

    data: AliveCount


@http("POST /jobs/{id}/heartbeat", Tag.JOBS)
@command(Route.ID, Verb.RUN, writes=True, repeatable=True)
class JobHeartbeat(OfJob[HeartbeatReply], tag="JobHeartbeat"):
    """Report that a job is still running; with its token, renew the lock for ``duration`` ms or its TTL.

    A job that was returned to its queue is locked again with its old token, unless another worker took it.
    """

    token: Token | None = None
    duration: LockTtl | None = None


class ExtendedReply(Reply, kw_only=True):
    """``count`` is the number of renewed locks."""

    count: int


@http("POST /jobs/{id}/extend-lock", Tag.JOBS)
@command(Route.ID, Verb.RUN, writes=True, repeatable=True, since=3)
class ExtendLock(OfJob[Ok], tag="ExtendLock"):
    """Renew the lock of a job for ``duration`` ms."""

    duration: LockTtl
    token: Token | None = None


@http("POST /jobs/extend-locks", Tag.JOBS)
@command(Route.IDS, Verb.RUN, merge=Merge.COUNT, writes=True, repeatable=True, since=3)
class ExtendLocks(Command[ExtendedReply], tag="ExtendLocks"):
    """Renew the locks of many jobs; those with a wrong token are not counted."""

    ids: Ids
    tokens: Tokens
    durations: Annotated[list[LockTtl], Meta(max_length=10_000)]


@http("POST /jobs/heartbeat", Tag.JOBS)
@command(Route.IDS, Verb.RUN, merge=Merge.COUNT, writes=True, repeatable=True)
class JobHeartbeatBatch(Command[HeartbeatBatchReply], tag="JobHeartbeatB"):
    """Send a JobHeartbeat for many jobs; unknown ones are not counted.  For ``ownTimeouts`` see PULL."""

    ids: Ids
    tokens: Tokens | None = None
    own_timeouts: bool = False
