"""What the server returns: jobs, counts, numbers. Moments are datetimes in UTC, and epoch ms in the `..._ms`
fields; durations are ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from bunqueue.client.codecs.envelope import check_opened
from bunqueue.client.conversion.converter import converted
from bunqueue.client.conversion.mismatch import Mismatch
from bunqueue.client.models.workflows import RunInfo
from bunqueue.errors import ArgumentsError, ResultError
from bunqueue.model.decoders import decoder
from bunqueue.model.job_options import RareOptions
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.moments import MaybeMoment, Moment
from bunqueue.protocol.readable import reason, salvaged

if TYPE_CHECKING:
    Millis = int
else:
    # On the wire times are floats, JavaScript's only numbers; `__post_init__` makes them whole.
    Millis = int | float

T = TypeVar("T")

_TIMES = (
    "created_at_ms",
    "run_at_ms",
    "started_at_ms",
    "completed_at_ms",
    "last_heartbeat_ms",
    "scheduled_for_ms",
    "backoff",
    "ttl",
    "timeout",
)


class JobMoment(Struct, frozen=True):
    """A moment in the life of a job: its new state and, for a failed attempt, the attempt's
    number and error.
    """

    state: str
    timestamp_ms: float = msgspec.field(name="timestamp")
    error: str | None = None
    attempt: int | None = None

    timestamp = Moment("timestamp_ms")


class JobProgress(Struct, frozen=True):
    """The progress that a job has reported: 0 to 100, and the last message."""

    progress: float
    message: str | None = None


class Cause(Struct, rename="camel", frozen=True):
    """The job whose final failure made the server add another one."""

    id: str
    queue: str
    name: str
    reason: str
    """Why it is a dead letter, as in `JobOutcome`."""
    error: str | None = None
    error_type: str | None = None
    """The class of its last error, for example `httpx.ConnectTimeout`."""
    attempts: int = 0
    """The number of failed attempts."""
    at_ms: float = msgspec.field(default=0.0, name="at")

    at = Moment("at_ms")


class Callback(Struct, rename="camel", frozen=True):
    """The job that is added when another one has failed for good."""

    queue: str
    name: str


class Job(RareOptions, kw_only=True, repr_omit_defaults=True):
    """A job as it was on the server at the time of the query."""

    id: str
    queue: str
    name: str = "default"
    data: Any = None
    state: str | None = None
    """As in `JobHandle.state`; None in lists of dead letters."""
    priority: int = 0
    """Higher is taken first."""
    created_at_ms: Millis = msgspec.field(name="createdAt")
    run_at_ms: Millis = msgspec.field(name="runAt")
    """When it became or becomes ready."""
    started_at_ms: Millis | None = msgspec.field(default=None, name="startedAt")
    completed_at_ms: Millis | None = msgspec.field(default=None, name="completedAt")
    last_heartbeat_ms: Millis | None = msgspec.field(default=None, name="lastHeartbeat")
    schedule: str | None = None
    """The name of the schedule that added it."""
    scheduled_for_ms: Millis | None = msgspec.field(default=None, name="scheduledFor")
    """The time of the schedule that it was added for; for a manual run, the time of the request."""
    attempts: int = 0
    """Failed attempts so far."""
    postponed: int = 0
    """How often its handler put it back with `Postpone`."""
    max_attempts: int = 3
    backoff: Millis = 1000
    backoff_config: dict[str, Any] | None = None
    """All settings for the wait before a retry, in wire form, if more than a time was given."""
    retry_on: list[str] = msgspec.field(default_factory=list)
    """Classes of errors that are retried; empty: all are."""
    never_on: list[str] = msgspec.field(default_factory=list)
    """Classes of errors that are not retried."""
    on_dead: Callback | None = None
    """The job to add when it has failed for good; None in jobs that were pulled."""
    cause: Cause | None = None
    """The failed job that it was added for."""
    added_by: str | None = None
    """The identity that added it, on a server with identities."""
    ttl: Millis | None = None
    timeout: Millis | None = None
    stall_count: int = 0
    unique_key: str | None = None
    custom_id: str | None = None
    """The `job_id` that it was added with, which is also its id."""
    group: str | None = msgspec.field(default=None, name="groupId")
    parent_id: str | None = None
    depends_on: list[str] = msgspec.field(default_factory=list)
    """The ids of jobs that must complete, or had to, before it runs."""
    children_ids: list[str] = msgspec.field(default_factory=list)
    """The ids of its children, in a flow."""
    repeat: dict[str, Any] | None = None
    size_limit: int | None = None
    stack_trace_limit: int = 10
    tags: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Metadata for components in between, such as a trace context."""
    workflow: RunInfo | None = None
    """Workflow information apart from its steps, if it is a workflow or has steps."""
    lifo: bool = False
    durable: bool = False
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    progress: float = 0
    """0 to 100 in the current run; 100 once completed."""
    progress_message: str | None = None
    last_report: JobProgress | None = None
    """Its last report in an earlier run, while none is active."""
    result: Any = msgspec.field(default=None, name="returnvalue")
    """The handler's result; None before completion."""
    data_bytes: int | None = None
    """The size of `data` if it was left out of a list."""
    result_bytes: int | None = msgspec.field(default=None, name="returnvalueBytes")
    """The same for `result`, which is None then: `queue.get_result(id)` returns it."""
    error: str | None = msgspec.field(default=None, name="failedReason")
    """The error text of the last failed attempt."""
    stacktrace: list[str] | None = None
    """The last `stack_trace_limit` lines of its traceback."""
    unreadable: str | None = None
    """Why `data` or `result` is None although the job has one: an older server stored a value that cannot be
    decoded, or the server's file is damaged there. Then `id` may also be empty.
    """
    timeline: list[JobMoment] = msgspec.field(default_factory=list)
    """What happened to it, at most 20 moments, oldest first."""

    created_at = Moment("created_at_ms")
    run_at = Moment("run_at_ms")
    started_at = MaybeMoment("started_at_ms")
    completed_at = MaybeMoment("completed_at_ms")
    last_heartbeat = MaybeMoment("last_heartbeat_ms")
    scheduled_for = MaybeMoment("scheduled_for_ms")

    def data_as(self, kind: type[T]) -> T:
        """The data as a dataclass, an attrs class, a Pydantic model, a msgspec struct, or any other type that
        jobs can carry. Raises ArgumentsError.
        """
        return as_data(self.data, kind, self.id)

    def result_as(self, kind: type[T]) -> T:
        """The result, converted in the same way. Raises ResultError."""
        converted_result: T = as_result(self.result, kind, self.id)
        return converted_result

    def __post_init__(self) -> None:
        for name in _TIMES:
            value = getattr(self, name)
            if type(value) is float:
                setattr(self, name, int(value))


def decode_job(raw: Raw) -> Job:
    """Decode a job; sets `unreadable` if its payload cannot be decoded. Raises MsgspecError."""
    try:
        return _decode_job(raw)
    except DECODE_ERRORS:
        return msgspec.convert(salvaged(raw), Job)


_decode_job = decoder(Job).decode


class JobCounts(Struct, rename={"waiting_children": "waiting-children"}, frozen=True):
    """Jobs of a queue by state; `failed` counts the dead letters."""

    waiting: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    prioritized: int = 0
    waiting_children: int = 0
    paused: int = 0


class QueueInfo(Struct, frozen=True):
    """A queue in the list of all queues."""

    name: str
    waiting: int = 0
    delayed: int = 0
    active: int = 0
    paused: bool = False


class ServerStats(Struct, rename="camel", frozen=True):
    """Numbers for the whole server; the uptime is in ms."""

    waiting: int = 0
    active: int = 0
    delayed: int = 0
    dlq: int = 0
    completed: int = 0
    failed: int = 0
    uptime: float = 0
    push_per_sec: float = 0
    pull_per_sec: float = 0


# The SDK's reply types: jobs are decoded at once, or left encoded.


class OneJob(Reply, kw_only=True):
    job: Job


class ManyJobs(Reply, kw_only=True):
    """``more``: others that were asked for did not fit; ``cursor`` leads to them."""

    jobs: list[Job]
    more: bool = False
    cursor: str | None = None


class PulledJob(Reply, kw_only=True):
    """None: no job was available."""

    job: Job | None
    token: str | None = None


class PulledJobs(Reply, kw_only=True):
    """Each job is decoded separately later, so that one broken payload does not spoil the others."""

    jobs: list[Raw]
    tokens: list[str] = msgspec.field(default_factory=list)


class CountsOfJobs(Reply, kw_only=True):
    counts: JobCounts


class ProgressOfJob(Reply, kw_only=True):
    progress: float
    message: str | None = None


class NamesOfQueues(Reply, kw_only=True):
    """Servers of protocol 3 return only the names."""

    queues: list[QueueInfo | str]


class StatsOfServer(Reply, kw_only=True):
    stats: ServerStats


class Outcome(Reply, kw_only=True):
    """A missing result is None."""

    result: Any = None


def read_result(raw: Raw, kind: Any, job_id: str) -> Any:
    """Like `as_result`, for a result that is still encoded. Raises ResultError."""
    try:
        result = msgspec.msgpack.decode(raw)
    except DECODE_ERRORS as error:
        text = f"the result of job {job_id} cannot be read: {reason(error)}"
        raise ResultError(text, job_id=job_id, field="result") from None
    return as_result(result, kind, job_id)


def as_result(result: Any, kind: Any, job_id: str) -> Any:
    """A result converted to the type that a typed job declares. Raises ResultError, or CodecError for a
    result that is still encoded.
    """
    check_opened(result, f"the result of job {job_id}")
    if kind is Any:
        return result
    try:
        return converted(result, kind)
    except Mismatch as error:
        text = f"the result of job {job_id} is not what was expected: {error}"
        where = f"result.{error.path}" if error.path else "result"
        raise ResultError(text, job_id=job_id, field=where, bound=error.problem) from None


def as_data(data: Any, kind: type[T], job_id: str) -> T:
    """The data of a job converted to a type. Raises ArgumentsError, or CodecError for data that is still
    encoded.
    """
    check_opened(data, f"the data of job {job_id}")
    try:
        found: T = converted(data, kind)
    except Mismatch as error:
        raise ArgumentsError(
            f"the data of job {job_id} is not what was expected: {error}", argument=error.path
        ) from None
    return found
