"""Compare added jobs with the job that a test expects, and describe the differences.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.msgpack import Decoder

from bunqueue.app.task import Task
from bunqueue.client.connection.options import shown
from bunqueue.client.conversion.encoding import STORABLE, encode, is_pydantic
from bunqueue.client.options.job import NewJob, job_data, wire_fields
from bunqueue.client.options.unique import keyed

from .engine import Added

UNSET: Any = object()  # matches anything
MAX_MISSES = 3  # near misses to show
MAX_DIFFERENCES = 4  # differences to show of one job
FAR = 100  # the number of differences that another name or queue counts as

_decode = Decoder().decode


class Expected:
    """The expected queue, name, data and options of a job."""

    def __init__(self, queue: str, name: str | None, data: object, options: Mapping[str, Any]) -> None:
        """Raises OptionError or TypeError for unknown options."""
        self._queue = queue
        self._name = name
        self._data = data if data is UNSET else plain(data)
        fields = wire_fields(options, {})
        if "unique" in fields and name is not None and data is not UNSET:
            fields = keyed(fields, name, job_data(data, "the data"))
        # A job does not say what happens when its key is taken.
        self._options = {name: each for name, each in fields.items() if name not in ("dedup", "unique")}

    def __str__(self) -> str:
        about = [f"data {shown(self._data)}"] if self._data is not UNSET else []
        about += [f"{name} {shown(value)}" for name, value in self._options.items()]
        job = "job" if self._name is None else f"job {self._name!r}"
        return f"{job} in queue {self._queue!r}" + (f" with {', '.join(about)}" if about else "")

    def differences(self, added: Added) -> list[str]:
        """The differences in words, empty if the job matches."""
        job = added.job
        found = []
        if job.queue != self._queue:
            found.append(_differ("queue", job.queue, self._queue))
        if self._name is not None and job.name != self._name:
            found.append(_differ("name", job.name, self._name))
        if self._data is not UNSET:
            found += _unequal("data", job.data, self._data)
        for name, value in self._options.items():
            actual = _actual(name, added.view, value)
            if actual != value:
                found.append(_differ(name, actual, value))
        return found

    def is_another(self, added: Added) -> bool:
        """Whether the job has another name or queue, which makes it an unlikely match."""
        return added.job.queue != self._queue or (self._name is not None and added.job.name != self._name)


What = str | NewJob | Task[..., Any]
"""A queue, a job that should have been added, or a type of job."""


def expected_of(what: What, name: str | None, data: object, options: Mapping[str, Any]) -> Expected:
    """The job that the arguments of an assertion describe."""
    if isinstance(what, NewJob):
        if name is not None or data is not UNSET:
            raise TypeError("a job has its name and its data already: give it alone, or with options")
        return Expected(str(what.queue), what.name, what.data, {**what.options, **options})
    if isinstance(what, Task):
        return Expected(what.queue, name or what.name, data, options)
    return Expected(what, name, data, options)


def plain(value: object) -> Any:
    """``value`` after a round trip over the wire.  A value that cannot be encoded but defines its own
    equality, as `mock.ANY` does, is left as it is.  Raises TypeError for a value that equals nothing a job
    can carry."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    try:
        return _decode(encode(value))
    except Exception:  # conversions of foreign types may raise anything
        fields = _fields(value)
    if fields is not None:
        return {name: plain(each) for name, each in fields.items()}
    if type(value).__eq__ is object.__eq__:
        raise TypeError(
            f"no job has {shown(value)}: it cannot be sent; give {STORABLE}, or mock.ANY"
        ) from None
    return value


def _fields(value: object) -> dict[str, Any] | None:
    """The fields of a record by their wire names, for a record that cannot be encoded as a whole because a
    field is `mock.ANY`."""
    kind: Any = type(value)
    if hasattr(kind, "__struct_fields__"):
        names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    elif hasattr(kind, "__attrs_attrs__"):
        names = {each.name: each.name for each in kind.__attrs_attrs__}
    elif hasattr(kind, "__dataclass_fields__"):
        names = {name: name for name in kind.__dataclass_fields__}
    elif is_pydantic(kind) and hasattr(kind, "model_fields"):
        names = {name: name for name in kind.model_fields}
    else:
        return None
    return {name: getattr(value, attribute) for name, attribute in names.items()}


def _unequal(path: str, actual: object, expected: object) -> Iterator[str]:
    """The differences between two values.  Maps must have the expected keys, anything else must be equal."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            if key in actual:
                yield from _unequal(f"{path}[{key!r}]", actual[key], value)
            else:
                yield f"{path} has no {key!r}"
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, value in enumerate(expected):
            yield from _unequal(f"{path}[{index}]", actual[index], value)
    elif actual != expected:
        yield _differ(path, actual, expected)


def _differ(what: str, actual: object, expected: object) -> str:
    return f"{what} is {shown(actual)}, not {shown(expected)}"


def _delay(view: Mapping[str, Any], expected: object) -> object:
    return view["runAt"] - view["createdAt"]


def _backoff(view: Mapping[str, Any], expected: object) -> object:
    return view["backoffConfig"] or view["backoff"] if isinstance(expected, dict) else view["backoff"]


def _tags(view: Mapping[str, Any], expected: object) -> object:
    return list(view["tags"] or ())


_SPECIAL: dict[str, Callable[[Mapping[str, Any], object], object]] = {
    "delay": _delay,
    "backoff": _backoff,
    "tags": _tags,
}
_OF_ANOTHER_NAME = {"job_id": "id", "stack_trace_limit": "stackTraceLimit"}


def _actual(name: str, view: Mapping[str, Any], expected: object) -> object:
    """The value of an option in the job."""
    special = _SPECIAL.get(name)
    if special is not None:
        return _whole(special(view, expected))
    head, *rest = _OF_ANOTHER_NAME.get(name, name).split("_")
    return _whole(view.get(head + "".join(word.capitalize() for word in rest)))


def _whole(value: object) -> object:
    """Turn whole floats into ints: times are floats on the wire, but tests write them as ints."""
    if isinstance(value, dict):
        return {key: _whole(entry) for key, entry in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def near_misses(expected: Expected, jobs: Sequence[Added]) -> str:
    """The closest jobs, with their differences."""
    if not jobs:
        return "No job was added at all."
    misses = [(expected.differences(added), added) for added in jobs]
    ranked = sorted(misses, key=lambda miss: expected.is_another(miss[1]) * FAR + len(miss[0]))
    lines = ["Near misses:"]
    for differences, added in ranked[:MAX_MISSES]:
        more = len(differences) - MAX_DIFFERENCES
        text = "; ".join(differences[:MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        lines.append(f"  - {added.job.name!r} in queue {added.job.queue!r}: {text}")
    if len(ranked) > MAX_MISSES:
        lines.append(f"  and {len(ranked) - MAX_MISSES} other jobs")
    return "\n".join(lines)
