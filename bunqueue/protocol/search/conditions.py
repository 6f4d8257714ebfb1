"""One condition on a job: a field, a comparison and values.

A search finds the jobs that meet all its conditions.  Two values are compared only if they are of the same
kind; 7 and "7" are not.  For values of different kinds, and for a field that the job does not have, only
``!=`` holds.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec import MsgspecError, Raw, Struct, defstruct
from msgspec.msgpack import Decoder

from bunqueue.model.decoders import decoder
from bunqueue.model.states import STATES
from bunqueue.protocol.heads import is_map
from bunqueue.protocol.pieces import WINDOW

EQUAL, UNEQUAL, LESS, AT_MOST, MORE, AT_LEAST, CONTAINS = "=", "!=", "<", "<=", ">", ">=", "~"

DEAD = frozenset({"failed", "cancelled", "stuck"})
LIVE = frozenset(STATES) - DEAD - {"completed"}

_decode = Decoder().decode
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""The value of a field that a job does not have."""

_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class Kind(enum.Enum):
    """What a field holds, and how it is compared."""

    WORD = (EQUAL, UNEQUAL)
    TEXT = (EQUAL, UNEQUAL, CONTAINS)
    NUMBER = (EQUAL, UNEQUAL, LESS, AT_MOST, MORE, AT_LEAST)
    TIME = (LESS, AT_MOST, MORE, AT_LEAST)
    ANY = (EQUAL, UNEQUAL, LESS, AT_MOST, MORE, AT_LEAST, CONTAINS)

    @property
    def comparisons(self) -> tuple[str, ...]:
        """The comparisons that this kind allows."""
        found: tuple[str, ...] = self.value
        return found


FIELDS: Mapping[str, Kind] = {
    "queue": Kind.TEXT,
    "state": Kind.WORD,
    "name": Kind.TEXT,
    "tag": Kind.WORD,
    "group": Kind.TEXT,
    "worker": Kind.TEXT,
    "error": Kind.TEXT,
    "error_type": Kind.TEXT,
    "created": Kind.TIME,
    "finished": Kind.TIME,
    "priority": Kind.NUMBER,
    "attempts": Kind.NUMBER,
    "workflow": Kind.WORD,
    "data": Kind.ANY,
}


class Condition(Struct, frozen=True, gc=False):
    """``values``: = holds if any of them is equal, != if none is; other comparisons have one value.  Times
    are in epoch ms.

    ``path`` leads to a field in the data, from the outside in.  ``prefix`` is that of the client's namespace:
    names begin with it, and the client does not know it."""

    field: str
    comparison: str
    values: tuple[Any, ...]
    path: tuple[str, ...] = ()
    prefix: str = ""


def name_of(condition: Condition, name: str) -> str:
    """A name of the server as the client of a condition knows it."""
    return name.removeprefix(condition.prefix)


def lower(text: str) -> str:
    """Lower case, as in SQLite's case-insensitive comparison: only for the letters A to Z."""
    return text.translate(_LOWER)


def matches(condition: Condition, actual: Any) -> bool:
    """Whether a value meets a condition; for a job's tags (a tuple), whether one of them does."""
    comparison = condition.comparison
    if comparison in (EQUAL, UNEQUAL):
        found = actual if isinstance(actual, tuple) else (actual,)
        return any(_same(one, value) for one in found for value in condition.values) == (comparison == EQUAL)
    value = condition.values[0]
    if comparison == CONTAINS:
        return _contains(actual, value)
    if not _comparable(actual, value):
        return False
    if comparison in (LESS, AT_MOST):
        return bool(actual < value or (comparison == AT_MOST and actual == value))
    return bool(actual > value or (comparison == AT_LEAST and actual == value))


def comparer(condition: Condition) -> Callable[[Any], bool]:
    """`matches` for one condition and many values that are not tags."""
    if condition.comparison != EQUAL or len(condition.values) > 1:
        return partial(matches, condition)
    value = condition.values[0]
    is_bool = isinstance(value, bool)
    return lambda actual: actual == value and isinstance(actual, bool) is is_bool


def _same(actual: Any, value: Any) -> bool:
    """Equality between values of the same kind.  Python alone would say that True equals 1, for example."""
    return isinstance(actual, bool) == isinstance(value, bool) and bool(actual == value)


def _comparable(actual: Any, value: Any) -> bool:
    if isinstance(actual, bool) or isinstance(value, bool):
        return False
    numbers = isinstance(actual, int | float) and isinstance(value, int | float)
    return numbers or (isinstance(actual, str) and isinstance(value, str))


def _contains(actual: Any, value: Any) -> bool:
    if isinstance(actual, list):
        return any(_same(entry, value) for entry in actual)
    return isinstance(actual, str) and isinstance(value, str) and lower(value) in lower(actual)


def value_at(data: bytes, path: Sequence[str]) -> Any:
    """`at_path` for encoded data; in large data, only the value at the path is decoded.  Raises
    DECODE_ERRORS."""
    while path and len(data) > WINDOW and is_map(data):
        try:
            field = bytes(_field(path[0])(data).value)
        except MsgspecError:  # some keys are not text
            break
        if not field:
            return MISSING
        data, path = field, path[1:]
    return at_path(_decode(data), path)


@lru_cache(256)
def _field(name: str) -> Callable[[bytes], Any]:
    one = defstruct("Field", [("value", Raw, Raw())], rename={"value": name}, gc=False)
    return decoder(one).decode


def at_path(data: Any, path: Sequence[str]) -> Any:
    """The value at a path in data, or MISSING.  In a list, a number is an index from 0."""
    for name in path:
        if type(data) is dict:  # msgspec decodes all maps to this type
            data = data.get(name, MISSING)
        elif isinstance(data, list) and name.isascii() and name.isdigit() and len(name) < 10:
            place = int(name)
            data = data[place] if place < len(data) else MISSING
        else:
            return MISSING
    return data
