"""One condition on a job: a field, a comparison and values.

A search holds for the jobs that meet all its conditions.  Two values are compared only if they are of one
kind, as 7 and "7" are not: with any other, and with a field that the job does not have, only ``!=`` holds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec import MsgspecError, Raw, Struct, defstruct
from msgspec.msgpack import Decoder

from bunqueue.model.states import STATES
from bunqueue.protocol.heads import is_map
from bunqueue.protocol.pieces import WINDOW

EQUAL, UNEQUAL, LESS, AT_MOST, MORE, AT_LEAST, CONTAINS = "=", "!=", "<", "<=", ">", ">=", "~"

DEAD = frozenset({"failed", "cancelled", "stuck"})
LIVE = frozenset(STATES) - DEAD - {"completed"}

_decode = Decoder().decode
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""In place of the value of a field that a job does not have."""

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
        """Those that it allows."""
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
    "created": Kind.TIME,
    "finished": Kind.TIME,
    "priority": Kind.NUMBER,
    "attempts": Kind.NUMBER,
    "workflow": Kind.WORD,
    "data": Kind.ANY,
}


class Condition(Struct, frozen=True, gc=False):
    """``values``: = holds for any of them, != for none of them; others have one.  Times are in epoch ms.

    ``path`` leads to a field within the data, from the outside in."""

    field: str
    comparison: str
    values: tuple[Any, ...]
    path: tuple[str, ...] = ()


def lower(text: str) -> str:
    """Without regard to case, as SQLite sees it: of the letters A to Z only."""
    return text.translate(_LOWER)


def holds(condition: Condition, actual: Any) -> bool:
    """Whether a value meets a condition; of a job's tags, a tuple, whether one of them does."""
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
    """`holds` of one condition, for many values that are not tags."""
    if condition.comparison != EQUAL or len(condition.values) > 1:
        return partial(holds, condition)
    value = condition.values[0]
    is_bool = isinstance(value, bool)
    return lambda actual: actual == value and isinstance(actual, bool) is is_bool


def _same(actual: Any, value: Any) -> bool:
    """Python takes True for 1, and finds other values equal that are of two kinds."""
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
    """`at_path` of encoded data; of large data only what stands there is decoded.  Raises DECODE_ERRORS."""
    while path and len(data) > WINDOW and is_map(data):
        try:
            field = bytes(_field(path[0])(data).value)
        except MsgspecError:  # some names in it are no texts
            break
        if not field:
            return MISSING
        data, path = field, path[1:]
    return at_path(_decode(data), path)


@lru_cache(256)
def _field(name: str) -> Callable[[bytes], Any]:
    one = defstruct("Field", [("value", Raw, Raw())], rename={"value": name}, gc=False)
    return Decoder(one).decode


def at_path(data: Any, path: Sequence[str]) -> Any:
    """What stands at a path within data, or MISSING.  In a list a number is a place, from 0."""
    for name in path:
        if type(data) is dict:  # as msgspec decodes all maps
            data = data.get(name, MISSING)
        elif isinstance(data, list) and name.isascii() and name.isdigit() and len(name) < 10:
            place = int(name)
            data = data[place] if place < len(data) else MISSING
        else:
            return MISSING
    return data
