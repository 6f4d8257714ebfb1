"""The job object as clients get it: about 45 fields, most of them the same for most jobs.

A job object is made from two pieces: the options, encoded once for all jobs with equal options, and the job's
own fields.  Timestamps are sent as float64, like from every encoder of this protocol.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Annotated, Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.msgpack import Encoder
from msgspec.structs import fields

from bunqueue.model.dead_letters import CANCELLED
from bunqueue.model.decoders import decoder
from bunqueue.model.ids import UUID_LENGTH
from bunqueue.model.job import (
    ACTIVE,
    BLOCKED,
    COMPLETED,
    DEFAULT_NAME,
    NIL,
    STATE_NAMES,
    SUSPENDED,
    WAITING,
    Cause,
    Extra,
    Job,
    JobOptions,
    Report,
    SharedOptions,
)
from bunqueue.model.job_options import RARE_OPTIONS
from bunqueue.model.marks import MOMENTS, ON_DEAD, Mark
from bunqueue.model.workflow import STEP_ROWS, STUCK, Run
from bunqueue.protocol.commands.base import Content, ContentText, IdOf, NameOf, QueueOf
from bunqueue.protocol.commands.core import OnDead
from bunqueue.protocol.job_timeline import moments
from bunqueue.protocol.numbers import number

_encode = Encoder().encode
_decode_options = decoder(JobOptions).decode
decode_on_dead = decoder(OnDead).decode

MAX_SHARED = 1024  # option sets that are kept; jobs with other options do not share theirs


_WIRE_NAMES = {field.name: field.encode_name for field in fields(Extra)}
_EXTRA_NAMES = {name: _WIRE_NAMES[name] for name in Extra.ALWAYS_SHOWN}
_EXTRA_FIELDS = len(_EXTRA_NAMES) + 1
_SHOWN_IF_SET = {name: option for name, option in RARE_OPTIONS.items() if name not in _EXTRA_NAMES}


class _Undo(Struct, gc=False):
    """The outcome that a workflow will have when its undo is complete."""

    reason: str
    error: ContentText | None


class _Workflow(Struct, omit_defaults=True, gc=False):
    """What a worker must know before it runs a job with steps.  ``steps``: there may be recorded steps;
    ``suspended``: the number of runs that were suspended; ``waited``: if the last run did, the steps
    that it waited for, as the first and last number of each range; ``keys``: 1 if ":" and "%" in the job's id
    are written as "%3A" and "%25" in the keys of its steps."""

    generation: int = 0
    steps: bool = False
    undone: bool = False
    undoing: _Undo | None = None
    suspended: int = 0
    waited: list[int] | None = None
    keys: int = 0


class _Own(Struct, rename="camel", gc=False):
    """A job's own fields, in wire order."""

    id: IdOf
    created_at: float
    run_at: float
    started_at: float | None
    last_heartbeat: float
    timeline: Annotated[list[dict[str, Any]], MOMENTS]
    queue: QueueOf
    name: str
    data: Content
    priority: int
    completed_at: float | None
    attempts: int
    stall_count: int
    unique_key: str | None
    progress: float
    progress_message: ContentText | None
    # only if not empty
    headers: dict[str, Annotated[str, Mark.CONTENT]] | UnsetType = UNSET
    postponed: int | UnsetType = UNSET
    workflow: _Workflow | UnsetType = UNSET
    retry_on: list[str] | UnsetType = UNSET
    never_on: list[str] | UnsetType = UNSET
    cause: Cause | UnsetType = UNSET
    schedule: NameOf | UnsetType = UNSET  # the schedule that added the job; next, the time of the run
    scheduled_for: float | UnsetType = UNSET
    # only in answers to queries
    state: str | UnsetType = UNSET
    returnvalue: Content | UnsetType = UNSET
    failed_reason: ContentText | UnsetType = UNSET
    cancelling: bool | UnsetType = UNSET  # active, and asked to stop
    data_bytes: int | UnsetType = UNSET  # size of data that were left out
    returnvalue_bytes: int | UnsetType = UNSET  # size of a result that was left out
    unreadable: str | UnsetType = UNSET  # the file is damaged, so the other fields are not valid: says why
    last_report: Report | UnsetType = UNSET  # of an earlier run, while no run is active
    on_dead: Annotated[dict[str, Any], ON_DEAD] | UnsetType = UNSET  # added if this one fails for good


class JobView(_Own, gc=False):
    """A job object as far as it has parts of its own, with those of its options that come from an error or
    name jobs."""

    stacktrace: list[ContentText] = []
    custom_id: IdOf | None = None
    parent_id: IdOf | None = None
    depends_on: list[IdOf] = []
    children_ids: list[IdOf] = []


class _NamedCause(Struct):
    id: IdOf
    queue: QueueOf


class PulledJob(Struct, rename="camel", gc=False):
    """The names in a job object: whoever pulls a job may read the rest."""

    id: IdOf
    queue: QueueOf
    cause: _NamedCause
    schedule: NameOf
    on_dead: Annotated[dict[str, Any], ON_DEAD]
    custom_id: IdOf | None
    parent_id: IdOf | None
    depends_on: list[IdOf]
    children_ids: list[IdOf]


_OWN_FIELDS = 16  # the fields that are always present


def _option_fields(options: JobOptions) -> dict[str, Any]:
    config: dict[str, Any] = {"type": options.backoff_kind, "delay": options.backoff}
    if options.backoff_jitter is not None:
        config["jitter"] = options.backoff_jitter
    if options.backoff_max is not None:
        config["maxDelay"] = options.backoff_max
    if options.backoff_delays:
        config["delays"] = options.backoff_delays
    if options.backoff_retry_after:
        config["retryAfter"] = True
    view: dict[str, Any] = {
        "maxAttempts": options.max_attempts,
        "backoff": options.backoff,
        "backoffConfig": config if options.backoff_given_as_map else None,
        "ttl": options.ttl,
        "timeout": options.timeout,
        "lifo": options.lifo,
        "removeOnComplete": options.remove_on_complete,
        "removeOnFail": options.remove_on_fail,
        "durable": options.durable,
        "tags": options.tags,
    }
    if options.added_by is not None:
        view["addedBy"] = options.added_by
    return view


def share_options(options: JobOptions) -> SharedOptions:
    """The encodings of ``options``."""
    stored = None if options == JobOptions() else _encode(options)
    fields = _option_fields(options)
    pairs = _encode(fields)[_header_size(len(fields)) :] + _NO_EXTRA
    head = _header(_OWN_FIELDS + len(fields) + _EXTRA_FIELDS) + _FIRST
    return SharedOptions(options, pairs, len(fields) + _EXTRA_FIELDS, head, stored)


@lru_cache(maxsize=MAX_SHARED)
def plain_options(identity: str | None) -> SharedOptions:
    """Those of jobs without options that an identity has added; None: a client without one."""
    return DEFAULT_OPTIONS if identity is None else share_options(JobOptions(added_by=identity))


def _option_pairs(options: JobOptions) -> bytes:
    fields = _option_fields(options)
    return _encode(fields)[_header_size(len(fields)) :]


def _extra_pairs(extra: Extra) -> bytes:
    view = {wire_name: _shown(getattr(extra, name)) for name, wire_name in _EXTRA_NAMES.items()}
    return _encode({**view, "childrenCompleted": 0})[_header_size(_EXTRA_FIELDS) :]


def _set_options(extra: Extra) -> dict[str, Any]:
    """The options that a job object has only if they are set."""
    return {
        option.wire_name: _shown(value)
        for name, option in _SHOWN_IF_SET.items()
        if (value := getattr(extra, name)) != option.default
    }


def _shown(value: Any) -> Any:
    """A field in a form that every client can read."""
    if isinstance(value, dict):
        return {name: _shown(entry) for name, entry in value.items()}
    return number(value) if type(value) is int else value


def _header_size(fields: int) -> int:
    return 1 if fields < 16 else 3


def _header(fields: int) -> bytes:
    """Of a map with at least 16 fields."""
    return b"\xde" + fields.to_bytes(2, "big")


_NOTHING = Extra()
_NO_EXTRA = _extra_pairs(_NOTHING)
_FIRST = _encode("id") + b"\xd9\x24"  # the name of the first field, and the header of an id made by a shard
DEFAULT_OPTIONS = share_options(JobOptions())


@lru_cache(maxsize=MAX_SHARED)
def stored_options(stored: bytes | None) -> SharedOptions:
    """The options of a stored job."""
    return DEFAULT_OPTIONS if stored is None else share_options(_decode_options(stored))


def _stamp(ms: int | None) -> float | None:
    return None if ms is None else float(ms)


def _own(job: Job) -> _Own:
    lock, extra = job.lock, job.extra or _NOTHING
    return _Own(
        job.id,
        float(job.created_at),
        float(job.run_at),
        _stamp(job.started_at),
        float(lock.heartbeat_at if lock is not None else job.created_at),
        moments(job),
        job.queue,
        job.name,
        Raw(job.data),
        job.priority,
        _stamp(job.finished_at) if job.state == COMPLETED else None,
        job.attempts,
        job.stalls,
        job.unique_key,
        100 if job.state == COMPLETED else job.progress,
        job.progress_message,
        UNSET if extra.headers is None else extra.headers,
        extra.postponed or UNSET,
        UNSET if job.run is None else _workflow(job.run, steps=bool(job.stored & STEP_ROWS)),
        extra.retry_on or UNSET,
        extra.never_on or UNSET,
        UNSET if extra.cause is None else extra.cause,
        UNSET if extra.due is None else extra.due.schedule,
        UNSET if extra.due is None else float(extra.due.at),
    )


def _workflow(run: Run, *, steps: bool) -> _Workflow:
    undoing = None if run.undoing is None else _Undo(run.undoing.reason, run.undoing.error)
    return _Workflow(run.generation, steps, run.undone, undoing, run.suspended, run.waited, run.keys)


def _fields(own: _Own) -> int:
    rare = (own.headers, own.postponed, own.workflow, own.retry_on, own.never_on, own.cause)
    due = 0 if own.schedule is UNSET else 2  # with scheduled_for
    return _OWN_FIELDS + len(rare) - rare.count(UNSET) + due


def _assemble(own: bytes, fields: int, job: Job) -> bytes:
    rest = job.shared.wire
    if job.extra is not None:
        rest = _option_pairs(job.options) + _extra_pairs(job.extra)
        if options := _set_options(job.extra):
            fields += len(options)
            rest += _encode(options)[_header_size(len(options)) :]
    return _header(fields + job.shared.fields) + own[_header_size(fields) :] + rest


def pulled_job(job: Job) -> bytes:
    """The job object of PULL, PULLB and Dlq."""
    if _is_first_run(job):
        return _first_run(job)
    own = _own(job)
    return _assemble(_encode(own), _fields(own), job)


def queried_job(job: Job, state: str, data_limit: int | None = None) -> bytes:
    """The job object of GetJob and GetJobs, with state and outcome.  Data or a result larger than the limit
    (bytes) are replaced by their length."""
    own = _own(job)
    own.state = state
    fields = _fields(own) + 1
    if _is_over(job.data, data_limit):
        own.data, own.data_bytes = Raw(NIL), len(job.data)
        fields += 1
    if job.state == COMPLETED and job.result is not None:
        if _is_over(job.result, data_limit):
            own.returnvalue_bytes = len(job.result)
        else:
            own.returnvalue = Raw(job.result)
        fields += 1
    if job.error is not None and job.state != COMPLETED:  # else the attempts have the errors
        own.failed_reason = job.error
        fields += 1
    if job.extra is not None and job.extra.cancellation is not None:
        own.cancelling = True
        fields += 1
    if job.extra is not None and job.extra.last_report is not None and job.state not in (ACTIVE, COMPLETED):
        own.last_report = job.extra.last_report
        fields += 1
    if job.extra is not None and job.extra.on_dead is not None:
        own.on_dead = _called(job.extra.on_dead, job.queue)
        fields += 1
    return _assemble(_encode(own), fields, job)


def _called(on_dead: bytes, queue: str) -> dict[str, Any]:
    """The job that is added when this one dies, without its data."""
    found = decode_on_dead(on_dead)
    return {"queue": found.queue or queue, "name": found.name or DEFAULT_NAME}


def unreadable_job(job_id: str, queue: str, name: str, created_at: int, state: str, why: str) -> bytes:
    """The job object of an unreadable job: id, name and time, as far as they are known."""
    job = Job(0, job_id, queue, name, NIL, DEFAULT_OPTIONS, 0, created_at, created_at)
    own = _own(job)
    own.state, own.unreadable = state, why
    return _assemble(_encode(own), _fields(own) + 2, job)


def _is_over(value: bytes, limit: int | None) -> bool:
    return limit is not None and len(value) > limit


def size_beside_data(job: Job) -> int:
    """Approximate size in bytes of a job in an answer, without its data: the fields that may be long."""
    extra, texts = job.extra or _NOTHING, [moment.error or "" for moment in job.timeline or ()]
    texts += [*extra.depends_on, *extra.children_ids, *(extra.stacktrace or ())]
    return len(job.shared.wire) + sum(len(text.encode()) for text in texts)


# The usual case, a job on its first attempt, is packed in one call: the constant bytes between the variable
# values are prepared.  This is three times as fast as `_own`; a test checks that both give the same bytes.
_UNTOUCHED = {
    "priority": 0,
    "completedAt": None,
    "attempts": 0,
    "stallCount": 0,
    "uniqueKey": None,
    "progress": 0,
    "progressMessage": None,
}
_DOUBLE = b"\xcb"
_MOMENT = len(_encode(0.0)) - 1  # bytes of a float64 after the type byte
_PARTS: tuple[bytes, ...] = (
    DEFAULT_OPTIONS.head,
    _encode(_UNTOUCHED)[1:] + _encode("createdAt") + _DOUBLE,
    _encode("runAt") + _DOUBLE,
    _encode("startedAt") + _DOUBLE,
    _encode("lastHeartbeat") + _DOUBLE,
    _encode("timeline") + b"\x92" + _encode({"state": "waiting", "timestamp": 0.0})[:-_MOMENT],
    _encode({"state": "active", "timestamp": 0.0})[:-_MOMENT],
    _encode("queue"),
)
_sizes = [f"{len(part)}s" for part in _PARTS]
_pack_first = struct.Struct(f">{_sizes[0]}36s{'d'.join(_sizes[1:])}").pack
_, _CREATED, _RUN, _STARTED, _HEARTBEAT, _WAITED, _RAN, _QUEUE = _PARTS
_NAME, _DATA = _encode("name"), _encode("data")


def _is_first_run(job: Job) -> bool:
    return (
        job.state == ACTIVE
        and job.timeline is None
        and job.extra is None
        and job.run is None
        and job.priority == 0
        and job.unique_key is None
        and job.run_at == job.created_at
        and job.progress == 0
        and job.progress_message is None
        and len(job.id) == UUID_LENGTH
    )


def _first_run(job: Job) -> bytes:
    created, started = float(job.created_at), float(job.started_at or 0)  # once, not for each of its places
    head = _pack_first(
        job.shared.head,
        job.id.encode(),
        _CREATED,
        created,
        _RUN,
        created,
        _STARTED,
        started,
        _HEARTBEAT,
        started,
        _WAITED,
        created,
        _RAN,
        started,
        _QUEUE,
    )
    return b"".join((head, _encode(job.queue), _NAME, _encode(job.name), _DATA, job.data, job.shared.wire))


def job_list(jobs: list[bytes]) -> Raw:
    """Encoded jobs as one MessagePack list."""
    count = len(jobs)
    if count < 16:
        header = bytes((0x90 | count,))
    elif count < 0x10000:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return Raw(b"".join((header, *jobs)))


_OWN_NAMES = frozenset({CANCELLED, STUCK})  # reasons of dead letters that are shown as the state


def state_name(job: Job, version: int) -> str:
    """The name of the state in a protocol version.  Version 3 has a separate state for ready jobs with a
    priority.

    Both versions have separate names for dead letters that were stopped while they ran, and for workflows
    whose undo is stuck.
    """
    if version >= 3 and job.state == WAITING and job.priority > 0:
        return "prioritized"
    if version < 3 and job.state == BLOCKED:
        return STATE_NAMES[WAITING]
    if job.reason in _OWN_NAMES:
        return job.reason
    if job.state == SUSPENDED and job.run is not None and job.run.waits and not job.run.waits.signal:
        return STATE_NAMES[BLOCKED]
    return STATE_NAMES[job.state]
