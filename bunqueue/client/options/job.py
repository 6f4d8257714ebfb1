"""Options of a job, and their conversion to the wire format."""

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
from bunqueue.client.options.plain_data import check_plain, is_plain
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
from bunqueue.model.job_options import RARE_OPTIONS
from bunqueue.protocol.commands import core
from bunqueue.protocol.measure import MAX_BYTES, MAX_DATA, SURELY_SMALL, measure


class CommonJobOptions(TypedDict, total=False):
    """Options of a job, except its group, which `@app.job` may compute."""

    on_dead: NewJob | MakesJob | None
    """A job that the server adds when this one has failed for good. Its `cause` says which job failed, and
    how. A `NewJob` goes to the same queue; the result of a typed job's `job()`, or a `FlowJob`, goes to its
    own.
    """
    priority: int | None
    """Higher is taken first; -1,000,000 to 1,000,000, default 0."""
    delay: When | None
    """Run it after this span or at this moment, not earlier; at most a year."""
    at: datetime | None
    """Run it at this moment, not earlier: an alias for `delay`."""
    lifo: bool | None
    """Run it before others of its priority, the newest first."""
    max_attempts: int | None
    """How many attempts it has; 1 to 1000, default 3."""
    backoff: Duration | Sequence[Duration] | Backoff | None
    """The wait before the first retry, doubled for each later one, and varied by up to a tenth; a list of all
    waits; or a `Backoff`. Without it the server's default applies: 1 to 3 s, then 2 to 6 s, ...
    """
    retry_on: ErrorClass | Iterable[ErrorClass] | None
    """Retry only after exceptions of these classes. A class may be given by name, with or without its module:
    "httpx.ConnectTimeout", "ConnectTimeout".
    """
    never_on: ErrorClass | Iterable[ErrorClass] | None
    """Do not retry after exceptions of these classes: the job becomes a dead letter at once. TimeoutError
    also covers attempts that took longer than the job's `timeout`.
    """
    ttl: When | None
    """Drop it if it has not started within this span, or by this moment; at most a year."""
    timeout: Duration | None
    """An attempt that takes longer fails; at most a day."""
    job_id: str | None
    """An id of your own in place of a generated one, unique on the whole server. While a job with this id
    waits or runs, adding another returns the handle of the existing one.
    """
    unique_key: str | None
    """While a job of the queue with this key waits or runs, adding another returns that job's handle."""
    dedup: Dedup | None
    """Other ways to treat a job whose `unique_key` is taken."""
    unique: Unique | bool | None
    """One job for the same arguments; see `Unique`. True: until the other one has ended."""
    debounce: Debounce | None
    """Run only the last of several jobs, once no other has come for a while."""
    remove_on_complete: bool | None
    """Forget the job and its result once it has completed."""
    remove_on_fail: bool | None
    """Forget the job once it has failed for good."""
    keep_completed: Duration | None
    """Remove it this long after it completed, overriding the queue's and server's settings; at
    most 10 years.
    """
    keep_failed: Duration | None
    """The same, counted from when it failed for good."""
    durable: bool | None
    """Acknowledge it only once it would survive a power loss."""
    tags: Iterable[str] | None
    """Words that are shown with the job and can be searched for (`Queue.find`)."""
    depends_on: Iterable[JobRef] | None
    """Jobs of any queues that must complete before it may run: ids or handles, at most 10,000."""
    parent: JobRef | None
    """The job whose child it is. `JobHandle.set_parent` makes that job wait for it; flows do both at once."""
    failure_policy: OnFailure | None
    """What its final failure means for its parent; by default the parent keeps waiting."""
    on_dead_dependency: OnFailure | None
    """What happens to this job when one of `depends_on` has failed for good or was removed; by default it
    keeps waiting.
    """
    group_max_size: int | None
    """Refuse it while this many jobs of its group are queued."""
    repeat: Duration | Repeat | None
    """Add it again each time it has completed, to run after this delay."""
    stall_timeout: Duration | None
    """Take it from its worker after this much silence, overriding the queue's setting; at most a day."""
    keep_logs: int | None
    """The number of log lines to keep; at most 100, which is the default."""
    stack_trace_limit: int | None
    """The number of traceback lines to keep, the last ones; default 10, at most 100."""
    size_limit: int | None
    """Refuse it as too large if its data takes more bytes than this."""
    timestamp: PastMoment | None
    """Its creation time, if that is not now: a datetime with a time zone, a timedelta (so long ago), or ms
    since the epoch. A `delay` or `ttl` given as a span counts from this time.
    """
    workflow: bool | None
    """It is a workflow: it takes signals, and is kept when cancelled. `@app.workflow` sets this."""
    headers: Mapping[str, str] | None
    """For components in between, such as a trace context; not part of the data. At most 16."""


class JobOptions(CommonJobOptions, total=False):
    """Options of a job. Options that are left out or None are not sent, and the server's default applies.

    Durations are a number of milliseconds, a timedelta, or a text such as "5m".
    """

    group: str | None
    """Groups take turns. The jobs of a group share limits: those of `Queue.set_group_defaults`, or the
    group's own; see `JobGroup`.
    """


class NewJob:
    """A job to add: its name, data and options.

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
    """A converter that accepts instances of `kind` and refuses everything else."""

    return lambda value, name: checks.one(name, value, kind)


def job_id(value: JobRef, name: str) -> str:
    """The id of a job, from the id itself or from something that has it."""
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


_OF_KIND: dict[type, Callable[[Any, str], object]] = {float: milliseconds, str: checks.text}
_CONVERT: dict[str, Callable[[Any, str], object]] = {
    **{name: _OF_KIND[rare.kind] for name, rare in RARE_OPTIONS.items() if rare.kind in _OF_KIND},
    "delay": time_left,
    "at": _moment,
    "ttl": time_left,
    "timeout": milliseconds,
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
IDEMPOTENCY_KEY = "idempotency_key"  # is passed separately from the options
_SPREAD = frozenset({"at", "debounce", "failure_policy", "unique"})
"""Options that become several fields, or none."""
_KEYS = ("unique_key", "dedup", "unique")
"""Options about the unique key; `unique` replaces the others."""
_KNOWN = frozenset(JobOptions.__annotations__)
_TYPES = {field.name: field.type for field in msgspec.structs.fields(core.JobFields)}
_DECLARED = msgspec.defstruct(
    "_Declared", [(name, _TYPES[_WIRE_NAMES.get(name, name)], None) for name in sorted(_KNOWN - _SPREAD)]
)
"""The options with their wire types, under their Python names."""


def options_of(given: JobOptions | None, name: str) -> dict[str, Any]:
    """A map of options. Raises OptionError, beginning with `name`, for anything else."""
    if given is not None and not isinstance(given, Mapping):
        raise refused(name, given, "is not allowed; give a dict of options")
    return {**(given or {})}


def default_fields(options: JobOptions | None) -> Mapping[str, Any]:
    """The fields of `default_job_options`. Raises OptionError."""
    found = options_of(options, "default_job_options")
    check_spans(found, "default_job_options")
    return wire_fields(found, {})


def check_spans(options: Mapping[str, object], what: str) -> None:
    """Raise OptionError, beginning with `what`, for a moment in options that apply to many jobs."""
    for name in _MOMENTS:
        if isinstance(options.get(name), datetime):
            raise unfit(f"{what}: {name}", "a moment suits one job only; give a span of time")


def wire_fields(options: Mapping[str, object], defaults: Mapping[str, object]) -> Mapping[str, Any]:
    """`options` as fields of a command, on top of `defaults`, which already are fields.

    Raises OptionError for unknown options and invalid values.
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
    if "priority" in given:  # the declaration allows for groups, which have other bounds
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
    """Convert moments to spans from the job's `timestamp`, from which the server counts."""
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
    """Expand options that become several fields or have another name."""
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
    """Like `wire_fields`, for one job of many, with the key that `unique` asks for."""
    try:
        if isinstance(job, NewJob):
            return keyed(wire_fields(job.options, defaults), name, payload, secret)
        return keyed(defaults, name, payload, secret)
    except OptionError as error:
        raise error.within(f"job {index}", f"jobs[{index}]") from None


_PAIRS = (tuple, list)  # made once: `tuple | list` would be made for each job


def pair(index: int, job: object) -> tuple[str, object]:
    """The name and the data of one job of many. Raises OptionError."""
    if not isinstance(job, _PAIRS) or len(job) != 2:
        text = f"job {index}: {shown(job)} is not allowed; give (name, data), or a bunqueue.NewJob"
        raise OptionError(text, field=f"jobs[{index}]", value=job)
    return job[0], job[1]


_ELSEWHERE = "keep large data elsewhere, send its place"


def check_size(data: Raw, fields: Mapping[str, Any], what: str) -> None:
    """Raise PayloadError, beginning with `what`, if data is larger than its `size_limit`."""
    limit, size = fields.get("size_limit"), len(bytes(data))
    if limit is not None and size > limit:
        text = f"{what} has {size} bytes, its size_limit is {limit}; {_ELSEWHERE}"
        raise PayloadError(text, field="data", value=size, bound=limit)


def job_data(data: object, what: str | int, *, declared: bool = False) -> Raw:
    """Like `encode_data`, for the data of a job; `what` may be its index among many. Also raises PayloadError
    if the data is too large, or has values that would arrive as another type, unless their types are
    ``declared`` elsewhere.
    """
    try:
        encoded = encode(data)
    except Exception as error:  # conversions of foreign types may raise anything
        raise _unencodable(data, of_job(what), error) from error
    if not declared and not is_plain(data):
        check_plain(data, of_job(what))
    size = len(encoded)
    if size > SURELY_SMALL and (size > MAX_BYTES or measure(encoded, MAX_DATA).characters > MAX_DATA):
        text = f"{of_job(what)} has {size} bytes, and as JSON it may have {MAX_DATA} at most; {_ELSEWHERE}"
        raise PayloadError(text, field="data", value=size, bound=MAX_DATA)
    return Raw(encoded)


def of_job(what: str | int) -> str:
    """What errors call the data of a job, or of the job with this index among many."""
    return what if isinstance(what, str) else f"the data of job {what}"


def encode_data(data: object, what: str) -> Raw:
    """`data` as MessagePack. Raises PayloadError, beginning with `what`, if it cannot be encoded."""
    try:
        return Raw(encode(data))
    except Exception as error:  # conversions of foreign types may raise anything
        raise _unencodable(data, what, error) from error


def _unencodable(data: object, what: str, error: Exception) -> PayloadError:
    wrong = why(data, error)
    text = f"{what} cannot be encoded: {wrong}; use {STORABLE}"
    return PayloadError(text, field=f"data{wrong.path}", value=wrong.kind, bound=STORABLE)
