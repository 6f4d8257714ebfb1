"""What a job may be added with, and how that is said on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import Raw

from bunqueue.client.connection.options import Duration, milliseconds, refused, shown, unfit, unknown_option
from bunqueue.client.conversion.encoding import STORABLE, encode
from bunqueue.client.conversion.unencodable import why
from bunqueue.client.options import checks
from bunqueue.client.options.backoff import backoff_map
from bunqueue.client.options.checks import nested
from bunqueue.client.options.errors_named import ErrorClass, class_names, some_class_names
from bunqueue.client.options.moments import PastMoment, When, epoch_ms, past_moment, time_left
from bunqueue.client.options.on_dead import MakesJob, on_dead
from bunqueue.client.options.plain_data import check_plain
from bunqueue.client.options.repeat import repeat_map
from bunqueue.client.options.retention import RETENTION, defaults_beside
from bunqueue.client.options.types import (
    POLICIES,
    Backoff,
    Debounce,
    Dedup,
    JobRef,
    OnFailure,
    Repeat,
    Unique,
)
from bunqueue.client.options.unique import dedup_of, keyed, names_of, unique, wire_dedup
from bunqueue.errors import OptionError, PayloadError
from bunqueue.protocol.commands import core
from bunqueue.protocol.measure import MAX_BYTES, MAX_DATA, SURELY_SMALL, measure


class CommonJobOptions(TypedDict, total=False):
    """Options of a job but for its group, which `@app.job` may compute."""

    on_dead: NewJob | MakesJob | None
    """A job that the server adds when this one has failed for good; its `cause` says which job that was, and
    how it failed. A `NewJob` goes to the same queue; what `job()` of a typed job gives, or a `FlowJob`, to
    its own."""
    priority: int | None
    """Higher is taken first; -1,000,000 to 1,000,000, default 0."""
    delay: When | None
    """Not before this much time has passed, or this moment; at most a year."""
    at: datetime | None
    """Not before this moment: another word for `delay`."""
    lifo: bool | None
    """Before others of its priority, the newest first."""
    max_attempts: int | None
    """How often it may run; 1 to 1000, default 3."""
    backoff: Duration | Sequence[Duration] | Backoff | None
    """The wait before the first retry, doubled with each further one, and up to a tenth longer or shorter; a
    list of all waits; or a `Backoff`. Without it the server's default holds: 1 to 3 s, then 2 to 6 s, ..."""
    retry_on: ErrorClass | Iterable[ErrorClass] | None
    """There is another attempt after exceptions of these classes only. Instead of a class its name will do,
    with its module or without: "httpx.ConnectTimeout", "ConnectTimeout"."""
    never_on: ErrorClass | Iterable[ErrorClass] | None
    """After exceptions of these classes the job is not retried: it is a dead letter at once. TimeoutError
    stands for a run that took longer than its `timeout`, too."""
    ttl: When | None
    """Dropped if not started within this time, or by this moment; at most a year."""
    timeout: Duration | None
    """An attempt that takes longer has failed; at most a day."""
    job_id: str | None
    """An id of your own instead of a generated one, unique over the whole server. While a job with this id
    waits or runs, adding another gives that one's handle."""
    unique_key: str | None
    """While a job of the queue with this key waits or runs, adding another gives that one's handle."""
    dedup: Dedup | None
    """What else may become of a job whose `unique_key` is taken."""
    unique: Unique | bool | None
    """One job for the same arguments, see `Unique`; True: while another one has not ended."""
    debounce: Debounce | None
    """Run only the last of several, when no other has come for a while."""
    remove_on_complete: bool | None
    """Forget the job and its result when it has completed."""
    remove_on_fail: bool | None
    """Forget the job when it has failed for good."""
    keep_completed: Duration | None
    """Remove it so long after it completed, whatever queue and server say; at most 10 years."""
    keep_failed: Duration | None
    """The same when it has failed for good."""
    durable: bool | None
    """Acknowledged only when it would survive a power loss."""
    tags: Iterable[str] | None
    """Words that are shown with it, and by which it is found (`Queue.find`)."""
    depends_on: Iterable[JobRef] | None
    """Jobs of any queues that must have completed before it may run: ids or handles, at most 10,000."""
    parent: JobRef | None
    """The job whose child it is; `JobHandle.set_parent` has that one wait for it, flows do both at once."""
    failure_policy: OnFailure | None
    """What its failure for good means for its parent; unless said otherwise that one waits on."""
    on_dead_dependency: OnFailure | None
    """What it means for this job when one of `depends_on` has failed for good, or was removed: unless said
    otherwise it waits on."""
    group_max_size: int | None
    """Refused while so many jobs of its group are queued."""
    repeat: Duration | Repeat | None
    """Added again each time it has completed: to run so much later."""
    stall_timeout: Duration | None
    """Taken from its worker when that was silent for so long, whatever the queue says; at most a day."""
    keep_logs: int | None
    """How many lines of its log are kept; at most 100, which is the default."""
    stack_trace_limit: int | None
    """How many lines of a traceback are kept, the last ones; default 10, at most 100."""
    size_limit: int | None
    """Refused as too large when its data takes more bytes than these."""
    timestamp: PastMoment | None
    """When it was made, if that is not now: a datetime with a time zone, a timedelta for so long ago, or ms
    since the epoch. A `delay` and a `ttl` that are spans count from then."""
    workflow: bool | None
    """It is a workflow: it takes signals, and is kept when it was cancelled. `@app.workflow` says so."""
    headers: Mapping[str, str] | None
    """For those on the way, such as a trace context; not part of the data. At most 16."""


class JobOptions(CommonJobOptions, total=False):
    """Options of a job. What is left out or None is not sent, and the server's default holds.

    Times are a number of milliseconds or a timedelta.
    """

    group: str | None
    """Groups take turns, and jobs of a group share limits: those of `Queue.set_group_defaults`, or its own,
    see `JobGroup`."""


class NewJob:
    """A job to be added: its name, data and options.

    `queue` and `id` are None until it is added; middleware sees them (`bunqueue.Middleware`).
    """

    __slots__ = ("data", "id", "name", "options", "queue")

    def __init__(self, name: str, data: object = None, **options: Unpack[JobOptions]) -> None:
        self.name = name
        self.data = data
        self.options = options
        self.queue: str | None = None
        self.id: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.data!r}, **{self.options!r})"


def _tags(value: Iterable[str], name: str) -> list[str]:
    try:
        return [value] if isinstance(value, str) else list(value)
    except TypeError:
        raise refused(name, value, "is not allowed; give a list of texts") from None


def _headers(value: Mapping[str, str], name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise refused(name, value, "is not allowed; give a dict of texts")
    return dict(value)


def _kind(kind: type) -> Callable[[Any, str], Any]:
    """A converter that takes what is of a kind, and refuses all else."""

    return lambda value, name: checks.one(name, value, kind)


def job_id(value: JobRef, name: str) -> str:
    """The id of a job that is named by it or by something that has it."""
    found = value if isinstance(value, str) else getattr(value, "id", None)
    if not isinstance(found, str) or not found:
        raise refused(name, value, "is no job; give a handle, or the id of one")
    return found


def _job_ids(value: Iterable[JobRef], name: str) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = [value]
    return [job_id(each, name) for each in value]


def _moment(value: datetime, name: str) -> float:
    if not isinstance(value, datetime):
        raise refused(name, value, "is no moment; give a datetime with a time zone, or delay")
    return time_left(value, name)


def _policy(value: OnFailure, name: str) -> str:
    if value not in POLICIES:
        raise refused(name, value, f"is not allowed; give one of {', '.join(POLICIES)}")
    return value


_CONVERT: dict[str, Callable[[Any, str], object]] = {
    "delay": time_left,
    "at": _moment,
    "ttl": time_left,
    "timeout": milliseconds,
    "stall_timeout": milliseconds,
    "keep_completed": milliseconds,
    "keep_failed": milliseconds,
    "backoff": backoff_map,
    "on_dead": lambda value, name: on_dead(value, name, wire_fields, job_data),
    "retry_on": some_class_names,
    "never_on": class_names,
    "tags": _tags,
    "headers": _headers,
    "unique_key": checks.text,
    "job_id": checks.text,
    "dedup": wire_dedup,
    "unique": unique,
    "debounce": _kind(Debounce),
    "repeat": repeat_map,
    "depends_on": _job_ids,
    "parent": job_id,
    "failure_policy": _policy,
    "on_dead_dependency": _policy,
    "timestamp": past_moment,
}
_WIRE_NAMES = {"group": "group_id", "parent": "parent_id"}
_MOMENTS = ("at", "delay", "ttl")
"""Options that may be moments."""
IDEMPOTENCY_KEY = "idempotency_key"  # goes beside the options
_SPREAD = frozenset({"at", "debounce", "failure_policy", "unique"})
"""Options that are several fields, or none."""
_KEYS = ("unique_key", "dedup", "unique")
"""Options about the unique key; `unique` stands for the others."""
_KNOWN = frozenset(JobOptions.__annotations__)
_TYPES = {field.name: field.type for field in msgspec.structs.fields(core.JobFields)}
_DECLARED = msgspec.defstruct(
    "_Declared", [(name, _TYPES[_WIRE_NAMES.get(name, name)], None) for name in sorted(_KNOWN - _SPREAD)]
)
"""The options as the wire has them, under their names in Python."""


def options_of(given: JobOptions | None, name: str) -> dict[str, Any]:
    """A map of options. Raises OptionError, which begins with `name`, for anything else."""
    if given is not None and not isinstance(given, Mapping):
        raise refused(name, given, "is not allowed; give a dict of options")
    return {**(given or {})}


def default_fields(options: JobOptions | None) -> Mapping[str, Any]:
    """The fields of `default_job_options`. OptionError."""
    found = options_of(options, "default_job_options")
    check_spans(found, "default_job_options")
    return wire_fields(found, {})


def check_spans(options: Mapping[str, object], what: str) -> None:
    """OptionError, which begins with `what`, for a moment in options that many jobs have."""
    for name in _MOMENTS:
        if isinstance(options.get(name), datetime):
            raise unfit(f"{what}: {name}", "a moment suits one job only; give a span of time")


def wire_fields(options: Mapping[str, object], defaults: Mapping[str, object]) -> Mapping[str, Any]:
    """`options` as fields of a command, over `defaults`, which already are.

    OptionError for unknown ones, and for values that are not allowed.
    """
    if not options:
        return defaults
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _KNOWN:
            raise _unknown(name)
        if value is not None:
            convert = _CONVERT.get(name)
            given[name] = convert(value, name) if convert else value
    if "priority" in given:  # the declaration leaves room for groups, which have bounds of their own
        checks.wire(core.PlainFields, {"priority": given["priority"]})
    if "timestamp" in given:
        _count_from(given, options)
    if not _SPREAD.isdisjoint(given):
        _spread(given)
    checks.wire(_DECLARED, given)
    for name, wire_name in _WIRE_NAMES.items():
        if name in given:
            given[wire_name] = given.pop(name)
    if "unique" in given or ("unique" in defaults and "unique_key" in given):
        defaults = {name: value for name, value in defaults.items() if name not in _KEYS}
    if not RETENTION.isdisjoint(given):
        defaults = defaults_beside(given, defaults)
    fields = {**defaults, **given}
    if fields.get("priority", 0) < 0 and fields.get("group_id"):
        fields["fair"] = True  # else it would be the priority of a BullMQ group, where lower is earlier
    if "dedup" in given and not (fields.get("unique_key") or "unique" in fields):
        raise unfit("dedup", "it says what becomes of a taken unique_key; give that, too")
    if "group_max_size" in given and not fields.get("group_id"):
        raise unfit("group_max_size", "it is the size of a group; give group, too")
    return fields


def _count_from(given: dict[str, Any], options: Mapping[str, object]) -> None:
    """Have spans until a moment begin where the server counts them from: at the `timestamp` of the job."""
    for name in _MOMENTS:
        if isinstance(moment := options.get(name), datetime):
            given[name] = max(0.0, epoch_ms(moment, name) - given["timestamp"])


def _debounced(value: Debounce) -> dict[str, object]:
    fields: dict[str, object] = {
        "unique_key": checks.text(value.key, "debounce: key"),
        "delay": milliseconds(value.wait, "debounce: wait"),
    }
    return nested(_DECLARED, fields, "debounce", unique_key="key", delay="wait")


def _unknown(name: str) -> OptionError:
    if name == IDEMPOTENCY_KEY:
        return unfit(name, "it is about a call, not a job; give it to add or add_bulk")
    return unknown_option("a job", name, _KNOWN | {IDEMPOTENCY_KEY})


def _spread(given: dict[str, Any]) -> None:
    """Put the fields in place of options that are several, or have another name."""
    if "at" in given:
        if "delay" in given:
            raise unfit("at", "delay says that already; leave out at or delay")
        given["delay"] = given.pop("at")
    debounce: Debounce | None = given.pop("debounce", None)
    if debounce is not None:
        for name in ("unique_key", "dedup", "delay"):
            if name in given:
                raise unfit(name, f"debounce says that already; leave out {name} or debounce")
        given |= {**_debounced(debounce), "dedup": {"replace": True}}
    wanted: Unique | None = given.pop("unique", None)
    if wanted is not None:
        for name in ("unique_key", "dedup"):
            if name in given:
                raise unfit(name, f"unique says that already; leave out {name} or unique")
        names_of(wanted)
        given |= {"unique": wanted, "dedup": wire_dedup(dedup_of(wanted), "unique", "within")}
    policy = POLICIES.get(given.pop("failure_policy", "wait"))
    if policy:
        given[policy] = True


def bulk_fields(
    index: int, job: object, name: str, payload: Raw, defaults: Mapping[str, object], secret: bytes = b""
) -> Mapping[str, Any]:
    """As `wire_fields`, for one job of many, with the key that `unique` asks for."""
    try:
        if isinstance(job, NewJob):
            return keyed(wire_fields(job.options, defaults), name, payload, secret)
        return keyed(defaults, name, payload, secret)
    except OptionError as error:
        raise error.within(f"job {index}", f"jobs[{index}]") from None


def pair(index: int, job: object) -> tuple[str, object]:
    """The name and the data of one job of many. OptionError."""
    if not isinstance(job, tuple | list) or len(job) != 2:
        text = f"job {index}: {shown(job)} is not allowed; give (name, data), or a bunqueue.NewJob"
        raise OptionError(text, field=f"jobs[{index}]", value=job)
    return job[0], job[1]


_ELSEWHERE = "keep large data elsewhere, send its place"


def check_size(data: Raw, fields: Mapping[str, Any], what: str) -> None:
    """PayloadError, which begins with `what`, when data is larger than its `size_limit` allows."""
    limit, size = fields.get("size_limit"), len(bytes(data))
    if limit is not None and size > limit:
        text = f"{what} has {size} bytes, its size_limit is {limit}; {_ELSEWHERE}"
        raise PayloadError(text, field="data", value=size, bound=limit)


def job_data(data: object, what: str, *, declared: bool = False) -> Raw:
    """As `encode_data`, for the data of a job: PayloadError, too, if it is larger than that may be, or has
    what would arrive as another type, unless its types are ``declared`` elsewhere."""
    encoded = _encoded(data, what)
    if not declared:
        check_plain(data, what)
    size = len(encoded)
    if size > SURELY_SMALL and (size > MAX_BYTES or measure(encoded, MAX_DATA).characters > MAX_DATA):
        text = f"{what} has {size} bytes, and as JSON it may have {MAX_DATA} at most; {_ELSEWHERE}"
        raise PayloadError(text, field="data", value=size, bound=MAX_DATA)
    return Raw(encoded)


def encode_data(data: object, what: str) -> Raw:
    """`data` as MessagePack. Raises PayloadError, which begins with `what`, if it cannot be encoded."""
    return Raw(_encoded(data, what))


def _encoded(data: object, what: str) -> bytes:
    try:
        return encode(data)
    except Exception as error:  # conversions of foreign types may raise anything
        wrong = why(data, error)
        text = f"{what} cannot be encoded: {wrong}; use {STORABLE}"
        raise PayloadError(text, field=f"data{wrong.path}", value=wrong.kind, bound=STORABLE) from error
