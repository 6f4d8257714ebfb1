"""Conditions on events, which SQLite cannot check: where in the log to start, and which events match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bunqueue.model.events import LOST, NAMES
from bunqueue.server.folder.shard_file import ShardFile
from bunqueue.server.folder.shard_values import to_json

from .arrow import array_of, type_of
from .conditions import Condition, microseconds
from .event_rows import COLUMNS, STORED, UNKNOWN, Arrays, Wanted, bounds, events, first_since

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "starts": lambda array, scalar: pc.starts_with(array, scalar.as_py()),
}


def selected(
    file: ShardFile,
    columns: Collection[str],
    conditions: Sequence[Condition],
    after: int = 0,
    until: int | None = None,
) -> Iterator[Arrays]:
    """Columns of the matching events with numbers above ``after``, up to ``until``, in order.  Kinds of
    conditions that cannot be checked here are ignored."""
    first = max([after + 1, *(_first(file, condition) for condition in conditions)])
    last = min([bounds(file).last if until is None else until, *_lasts(conditions)])
    tested = {condition.column for condition in conditions if condition.column in STORED}
    for arrays in events(file, Wanted(first - 1, last, {"seq", *columns, *tested}, _kinds(conditions))):
        mask = None
        for condition in conditions:
            matches = _matches(arrays, condition)
            if matches is not None:
                mask = matches if mask is None else pc.and_(mask, matches)
        found = arrays if mask is None else {name: array.filter(mask) for name, array in arrays.items()}
        if len(found["seq"]):
            yield found


def gap(file: ShardFile, after: int, until: int) -> Arrays | None:
    """An event of the kind ``lost`` for those above ``after`` that the log no longer has, or None if it has
    all of them.  Events deleted on request do not count as missing."""
    oldest = bounds(file).first
    found = None if file.is_empty else file.one("select at from events order by first_seq limit 1")
    if oldest <= after + 1 or found is None:
        return None
    last = min(oldest - 1, until)
    fields = to_json({"first": after + 1, "last": last})
    values = (last, found[0], LOST, None, None, None, None, fields)
    return {name: array_of(COLUMNS[name], [value]) for name, value in zip(STORED, values, strict=True)}


def _first(file: ShardFile, condition: Condition) -> int:
    """The number of the first event that may match."""
    column, value = condition.column, condition.value
    if condition.operator not in ("=", ">", ">="):
        return 1
    if column == "at" and isinstance(value, datetime):
        return first_since(file, microseconds(value) // 1000)
    return value if column == "seq" and isinstance(value, int) else 1


def _lasts(conditions: Sequence[Condition]) -> list[int]:
    """Numbers above which no event matches."""
    return [
        condition.value
        for condition in conditions
        if condition.column == "seq"
        and condition.operator in ("=", "<", "<=")
        and isinstance(condition.value, int)
    ]


def _kinds(conditions: Sequence[Condition]) -> frozenset[int] | None:
    """The numbers of the only kinds that may match, or None when any may."""
    asked: list[Sequence[Any]] = [
        condition.value if condition.operator == "in" else [condition.value]
        for condition in conditions
        if condition.column == "kind" and condition.operator in ("=", "in")
    ]
    names = set(NAMES).intersection(*asked)
    if not asked or all(UNKNOWN in each for each in asked):
        return None
    return frozenset(number for number, name in enumerate(NAMES) if name in names)


def _matches(arrays: Arrays, condition: Condition) -> pa.Array | None:
    """Which events match; or None when that cannot be checked here."""
    if condition.column not in STORED:
        return None
    array, kind = arrays[condition.column], type_of(COLUMNS[condition.column])
    if condition.operator == "null":
        return pc.is_null(array)
    if condition.operator == "not null":
        return pc.is_valid(array)
    try:
        if condition.operator == "in":
            return pc.is_in(array, pa.array([_aware(each) for each in condition.value], kind))
        return _COMPARE[condition.operator](array, pa.scalar(_aware(condition.value), kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # of another type than the column
        return None


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
