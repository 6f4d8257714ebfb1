"""What a job may be added with, and how that is said on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Raw, Struct

from bunqueue.client import checks
from bunqueue.client.connection_options import Duration, milliseconds, shown
from bunqueue.errors import OptionError, PayloadError
from bunqueue.protocol.commands import core

T = TypeVar("T", bound=type[Struct])

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before a retry: always about `delay`, or doubled with each attempt; at most an hour."""

    delay: Duration = 1000
    type: Literal["fixed", "exponential"] = "exponential"


class JobOptions(TypedDict, total=False):
    """Options of a job. What is left out or None is not sent, and the server's default holds.

    Times are a number of milliseconds or a timedelta.
    """

    priority: int | None
    """Higher is taken first; -1,000,000 to 1,000,000, default 0."""
    delay: Duration | None
    """Not before this much time has passed; at most a year."""
    lifo: bool | None
    """Before others of its priority, the newest first."""
    max_attempts: int | None
    """How often it may run; 1 to 1000, default 3."""
    backoff: Duration | Backoff | None
    """The wait before a retry, doubled with each attempt unless a `Backoff` says otherwise; default 1000."""
    ttl: Duration | None
    """Dropped if not started within this time; at most a year."""
    timeout: Duration | None
    """An attempt that takes longer has failed; at most a day."""
    unique_key: str | None
    """While a job with this key waits or runs, adding another gives that one's handle."""
    remove_on_complete: bool | None
    """Forget the job and its result when it has completed."""
    remove_on_fail: bool | None
    """Forget the job when it has failed for good."""
    durable: bool | None
    """Acknowledged only when it would survive a power loss."""
    tags: Iterable[str] | None
    """Words to find it by."""
    headers: Mapping[str, str] | None
    """For those on the way, such as a trace context; not part of the data. At most 16."""


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


def _backoff(value: Duration | Backoff, name: str) -> float | dict[str, object]:
    if isinstance(value, Backoff):
        fields: dict[str, object] = {"delay": milliseconds(value.delay, name), "type": value.type}
        try:
            checks.wire(core.BackoffMap, fields)
        except OptionError as error:
            raise OptionError(f"{name}: {error}") from None
        return fields
    if isinstance(value, dict):
        raise OptionError(f"{name}: {shown(value)} is not a time; give a bunqueue.Backoff, or milliseconds")
    return milliseconds(value, name)


def _tags(value: Iterable[str], name: str) -> list[str]:
    try:
        return [value] if isinstance(value, str) else list(value)
    except TypeError:
        raise OptionError(f"{name}: {shown(value)} is not allowed; give a list of texts") from None


def _headers(value: Mapping[str, str], name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise OptionError(f"{name}: {shown(value)} is not allowed; give a dict of texts")
    return dict(value)


_CONVERT: dict[str, Callable[[Any, str], object]] = {
    "delay": milliseconds,
    "ttl": milliseconds,
    "timeout": milliseconds,
    "backoff": _backoff,
    "tags": _tags,
    "headers": _headers,
}
_KNOWN = frozenset(JobOptions.__annotations__)
_DECLARED = msgspec.defstruct(
    "_Declared",
    [
        (field.name, field.type, None)
        for field in msgspec.structs.fields(core.JobFields)
        if field.name in _KNOWN
    ],
)
"""The options as the wire has them, under their names in Python."""


def wire_fields(options: Mapping[str, object], defaults: Mapping[str, object]) -> Mapping[str, Any]:
    """`options` as fields of a command, over `defaults`, which already are.

    TypeError for unknown ones, OptionError for values that are not allowed.
    """
    if not options:
        return defaults
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _KNOWN:
            raise TypeError(f"there is no job option {name!r}; there are {', '.join(sorted(_KNOWN))}")
        if value is not None:
            convert = _CONVERT.get(name)
            given[name] = convert(value, name) if convert else value
    if "priority" in given:  # the declaration leaves room for groups, which have bounds of their own
        checks.wire(core.PlainFields, {"priority": given["priority"]})
    checks.wire(_DECLARED, given)
    return {**defaults, **given}


def bulk_fields(index: int, job: NewJob, defaults: Mapping[str, object]) -> Mapping[str, Any]:
    """As `wire_fields`, for one job of many."""
    try:
        return wire_fields(job.options, defaults)
    except OptionError as error:
        raise OptionError(f"job {index}: {error}") from None


def encode_data(data: object, what: str) -> Raw:
    """`data` as MessagePack. Raises PayloadError, which begins with `what`, if it is none."""
    try:
        return Raw(_encode(data))
    except Exception as error:  # conversions of foreign types may raise anything
        raise PayloadError(
            f"{what} cannot be encoded as MessagePack ({type(error).__name__}: {error}); use dicts, lists, "
            f"text, numbers, bytes, dates, dataclasses or msgspec structs"
        ) from error
