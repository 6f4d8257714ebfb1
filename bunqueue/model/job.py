"""The job: its fields, its states, and the legal transitions between them.

The transitions are implemented in `shardproc.engine.lifecycle`.  Its docstring has a table that says when
each one happens, and in which function.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Struct, field

from bunqueue.model.backoff import EXPONENTIAL
from bunqueue.model.dead_letters import AutoRetries
from bunqueue.model.job_options import RareOptions
from bunqueue.model.marks import Mark
from bunqueue.model.workflow import Run

# States are plain ints: they are compared on the hot path, and ints compare faster than enum members.
WAITING = 0
DELAYED = 1
ACTIVE = 2
COMPLETED = 3
FAILED = 4
REMOVED = 5
BLOCKED = 6  # jobs that it depends on have not completed
SUSPENDED = 7  # a workflow that waits for signals, or for jobs that it started

STATE_NAMES = (
    "waiting",
    "delayed",
    "active",
    "completed",
    "failed",
    "unknown",
    "waiting-children",
    "waiting-signal",
)

TRANSITIONS: dict[int, frozenset[int]] = {
    # COMPLETED: a late ack after a lost lock
    WAITING: frozenset({DELAYED, ACTIVE, COMPLETED, FAILED, REMOVED, BLOCKED}),
    DELAYED: frozenset({WAITING, FAILED, REMOVED, BLOCKED}),
    ACTIVE: frozenset({WAITING, DELAYED, COMPLETED, FAILED, REMOVED, BLOCKED, SUSPENDED}),
    COMPLETED: frozenset({WAITING, REMOVED, BLOCKED}),
    FAILED: frozenset({WAITING, REMOVED, BLOCKED}),  # BLOCKED: its flow is retried
    REMOVED: frozenset(),
    BLOCKED: frozenset({WAITING, DELAYED, FAILED, REMOVED}),
    SUSPENDED: frozenset({WAITING, FAILED, REMOVED}),
}

DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_BACKOFF_MS = 1000
DEFAULT_LOCK_TTL_MS = 30_000
DEFAULT_NAME = "default"
NIL = b"\xc0"  # MessagePack nil: a payload that is null or absent
UNDEFINED = b"\xd4\x00\x00"  # sent by some encoders for "no value"; as data it is stored as NIL

MAX_TIMELINE = 20  # entries kept in a job's timeline, as in the reference server


class JobOptions(Struct, frozen=True, gc=False, omit_defaults=True):
    """The options of a push, and who sent it; one object is shared by all jobs with equal options.

    Times are in ms; None means "not set".
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: float = DEFAULT_BACKOFF_MS
    backoff_kind: str = EXPONENTIAL
    backoff_given_as_map: bool = False  # the request had {type, delay}: shown as backoffConfig
    ttl: float | None = None  # the job may start until created_at + ttl
    timeout: float | None = None  # how long an attempt may take
    lifo: bool = False
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    durable: bool = False
    tags: tuple[str, ...] = ()
    backoff_jitter: float | None = None  # 0 .. 1; None: the formulas of the reference
    backoff_max: float | None = None  # no wait is longer; None: an hour
    backoff_delays: tuple[float, ...] = ()  # the first waits, one after the other
    backoff_retry_after: bool = False  # its worker requests the wait that an error names
    added_by: str | None = None  # the identity that added it, where clients have some; on the wire if set


class Cancellation(Struct, array_like=True, gc=False):
    """A request to stop an active job, which can then only end as cancelled."""

    until: int  # epoch ms; at this time the job ends, whether its worker has stopped or not
    reason: str | None = None


class FlowMark(Struct, array_like=True, gc=False):
    """Marks a job that appeared as part of a flow over several shards: when it appeared (epoch ms), and one
    job on each of the other shards, as (queue, id).  At that time all of these were stored, even if they had
    not appeared yet."""

    flow: str
    at: int
    others: list[tuple[str, str]]


class Cause(Struct, rename="camel", frozen=True, gc=False):
    """The job whose final failure made the server add another job: how and when (epoch ms) it failed."""

    id: Annotated[str, Mark.ID]
    queue: Annotated[str, Mark.QUEUE]
    name: str
    error: Annotated[str, Mark.CONTENT] | None
    error_type: str | None  # the class of its last error, if known
    reason: str  # why it is a dead letter
    attempts: int  # number of failed attempts
    at: float


class Due(Struct, frozen=True, gc=False):
    """The run of a schedule for which a job was added."""

    schedule: str
    at: int  # the scheduled time, epoch ms; for a manual run, the time of the request


class Report(Struct, frozen=True, gc=False):
    """The last reported progress of a job: 0 to 100, and a message."""

    progress: float
    message: Annotated[str, Mark.CONTENT] | None = None


class Extra(RareOptions, omit_defaults=True, gc=False):
    """Fields that few jobs have, kept separately so that the others need no memory for them.  Times are in
    ms.

    The names are those of the job object on the wire.
    """

    custom_id: str | None = None
    parent_id: str | None = None
    group_id: str | None = None
    depends_on: list[str] = field(default_factory=list)
    children_ids: list[str] = field(default_factory=list)
    repeat: dict[str, float | int | str | None] | None = None
    size_limit: int | None = None
    stack_trace_limit: int = 10
    stacktrace: list[Annotated[str, Mark.CONTENT]] | None = None
    fail_parent_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    deduplication_ttl: float | None = None
    debounce_id: str | None = None
    debounce_ttl: float | None = None
    deduplication_extend: bool = False
    deduplication_replace: bool = False
    headers: dict[str, str] | None = None  # on the wire if there are any
    # Not on the wire:
    own_id: bool = False  # the client chose the id
    parked: bool = False  # put back by its worker until its children complete; it may be childless
    pending: list[str] = field(default_factory=list)  # of depends_on, those that have not completed
    failures: dict[str, str] | None = None  # "queue:id" of a failed child -> its error
    ignored: dict[str, str] | None = None  # the same for children whose failure is ignored
    key_until: int | None = None  # epoch ms; after that another job may have the unique key
    auto_retries: AutoRetries | None = None  # from the dead letters
    repeated_by: str | None = None  # the next job of its repetition
    cancellation: Cancellation | None = None  # of an active job only
    watched: bool = False  # other shards wait for its outcome
    planned_at: int | None = None  # when run_at was set, if neither created_at nor the timeline says so
    flow: FlowMark | None = None
    postponed: int = 0  # how many times handlers put it back; on the wire if it is not 0
    drops: int = 0  # connections that ended while they held it, before any report about it
    interruptions: int = 0  # times that its worker returned it unfinished, without counting an attempt
    last_report: Report | None = None  # of a run that has ended without completing it
    lost_ttl: int = 0  # the TTL of the lock of `Job.lost_token`; 0: the default
    schedule: str | None = None  # the name of the schedule to notify when it ends
    key_states: int | None = None  # states that hold the key, (model.unique); None: until an attempt fails
    after: str | None = None  # the job that it supersedes, which has been asked to stop
    superseded_by: str | None = None  # the job that waits for the end of this one
    flow_id: str | None = None  # the flow that it is a node of; in its id, the node's name follows this
    gathering: bool | None = (
        None  # a node that waits for all others; True until CloseFlow has fixed the list of these
    )
    detached: bool = False  # started by a workflow, and outlives it
    closing: bool = False  # it gathers and accepts no new jobs, but its list of them is not complete yet
    on_dead_dependency: str | None = None  # what the failure of a job in depends_on means for it
    # On the wire if present:
    retry_on: list[str] = field(
        default_factory=list
    )  # classes of errors after which there is another attempt; empty: all
    never_on: list[str] = field(default_factory=list)  # classes of errors after which it is not retried
    on_dead: bytes | None = None  # the job that is added when it has failed for good, as MessagePack
    cause: Cause | None = None  # the failed job that caused its addition
    due: Due | None = None  # for a job that a schedule added

    def kept_for(self, state: int) -> float | None:
        """How long the job is kept in that state, overriding its queue; None: the queue's setting applies."""
        return self.keep_completed if state == COMPLETED else self.keep_failed

    @property
    def has_policy(self) -> bool:
        """Whether its failure affects its parent, or the jobs that follow it in its flow."""
        return (self.parent_id is not None or self.flow_id is not None) and (
            self.fail_parent_on_failure
            or self.remove_dependency_on_failure
            or self.continue_parent_on_failure
            or self.ignore_dependency_on_failure
        )

    @property
    def waits_for_jobs(self) -> bool:
        """Whether other jobs keep it from starting; this can also be true of an active job."""
        return bool(self.pending or self.parked or self.after or self.gathering)

    ALWAYS_SHOWN: ClassVar = (
        "custom_id",
        "parent_id",
        "group_id",
        "depends_on",
        "children_ids",
        "repeat",
        "stall_timeout",
        "keep_logs",
        "size_limit",
        "stack_trace_limit",
        "stacktrace",
        "fail_parent_on_failure",
        "remove_dependency_on_failure",
        "continue_parent_on_failure",
        "ignore_dependency_on_failure",
        "deduplication_ttl",
        "debounce_id",
        "debounce_ttl",
        "deduplication_extend",
        "deduplication_replace",
    )
    """The fields of every job object on the wire, as in the reference server."""


class Lock(Struct, gc=False):
    """The right to work on a job.  ``token`` is "" when it was pulled without an owner."""

    token: str
    owner: str
    ttl: int  # ms, restarted by every heartbeat that carries the token
    until: int  # epoch ms; after it the next sweep returns the job to its queue
    conn: int  # the connection that pulled it; 0: that connection is gone
    heartbeat_at: int
    renewed: bool = False  # renewed at least once, so it outlives its connection
    own_timeout: bool = False  # its worker ends the run when the timeout is over
    suspect: bool = False  # without a heartbeat in the last stall check; the next check takes the job back


class Moment(Struct, array_like=True, gc=False):
    """One entry of a job's timeline."""

    state: str
    at: int
    error: Annotated[str, Mark.CONTENT] | None = None
    attempt: int | None = None


class SharedOptions(Struct, frozen=True, gc=False, eq=False):
    """Options with their two encodings, which are computed once for all jobs that share them."""

    options: JobOptions
    wire: bytes  # their part of the job object that clients get
    fields: int  # the number of fields in it
    head: bytes  # how the object of a job begins that has only these fields
    stored: bytes | None  # the value of their column; None for the defaults


class Job(Struct, gc=False, eq=False):
    """A live or finished job.  Only ``engine.lifecycle`` writes ``state``.

    Payloads (``data``, ``result``) are MessagePack bytes, which the server never decodes.  Jobs are not
    tracked by the garbage collector: with a million of them, each pass would take a second, and they are not
    part of any lasting cycle.
    """

    seq: int  # order of arrival at its shard; the key of its rows
    id: str
    queue: str
    name: str
    data: bytes
    shared: SharedOptions
    priority: int
    created_at: int
    run_at: int
    state: int = WAITING
    attempts: int = 0  # failures so far
    stalls: int = 0
    unique_key: str | None = None
    holds_key: bool = False  # a failed attempt releases the key, but the job still shows it
    started_at: int | None = None
    finished_at: int | None = None
    lock: Lock | None = None
    worker: str = ""  # the worker that held it last
    lost_token: str | None = None  # of a lock that was lost; can still lock or complete the waiting job
    timed_out: bool = False  # the last attempt exceeded its timeout: late reports are ignored
    error: str | None = None  # of the last failed attempt
    reason: str | None = None  # why it is a dead letter
    progress: float = 0
    progress_message: str | None = None
    result: bytes | None = None
    timeline: list[Moment] | None = None  # None: the other time fields describe the whole history
    extra: Extra | None = None
    run: Run | None = None  # of a workflow, or of another job with steps
    # bookkeeping of the journal: which rows exist on disk, and which must be written
    stored: int = 0
    dirty: int = 0

    @property
    def options(self) -> JobOptions:
        return self.shared.options

    def __lt__(self, other: Job) -> bool:
        """A heap may have a stale and a current entry of the same job; their order does not matter."""
        return False
