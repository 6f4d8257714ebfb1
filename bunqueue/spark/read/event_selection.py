"""Conditions on events, which SQLite cannot check: where in the log to start, and which events match."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bunqueue.model.events import LOST, NAMES
from bunqueue.server.folder.shard_file import ShardFile
from bunqueue.server.folder.shard_values import to_json

from .arrow import array_of, type_of
from .conditions import Condition, microseconds
from .event_rows import COLUMNS, STORED, UNKNOWN, Arrays, Wanted, bounds, events, first_since, oldest

_COMPARE = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def selected(
    file: ShardFile,
    columns: Collection[str],
    conditions: Sequence[Condition],
    after: int = 0,
    until: int | None = None,
) -> Iterator[Arrays]:
    """Columns of the matching events with numbers above ``after``, up to ``until``, in order."""
    first = max([after + 1, *(_first(file, condition) for condition in conditions)])
    last = min([bounds(file).last if until is None else until, *_lasts(conditions)])
    tested = {condition.column for condition in conditions}
    expression = reduce(and_, map(_expression, conditions), pc.scalar(True))
    for arrays in events(file, Wanted(first - 1, last, {"seq", *columns, *tested}, _kinds(conditions))):
        found = pa.RecordBatch.from_pydict(arrays).filter(expression) if conditions else arrays
        if len(found["seq"]):
            yield {name: found[name] for name in arrays}


def gap(file: ShardFile, after: int, until: int) -> Arrays | None:
    """An event of the kind ``lost`` for those above ``after`` that the log no longer has, or None if it has
    all of them.  Events deleted on request do not count as missing."""
    found = oldest(file)
    if found is None or found[0] <= after + 1:
        return None
    last = min(found[0] - 1, until)
    fields = to_json({"first": after + 1, "last": last})
    values = {"seq": last, "at": found[1], "kind": LOST, "fields": fields}
    return {name: array_of(COLUMNS[name], [values.get(name)]) for name in STORED}


def _first(file: ShardFile, condition: Condition) -> int:
    """The number of the first event that may match."""
    column, value = condition.column, condition.value
    if condition.operator not in ("=", ">", ">="):
        return 1
    if column == "at":
        return first_since(file, microseconds(value) // 1000)
    return int(value) if column == "seq" else 1


def _lasts(conditions: Sequence[Condition]) -> list[int]:
    """Numbers above which no event matches."""
    return [
        condition.value
        for condition in conditions
        if condition.column == "seq" and condition.operator in ("=", "<", "<=")
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


def _expression(condition: Condition) -> pc.Expression:
    """A condition as Arrow has it."""
    field, value = pc.field(condition.column), condition.value
    match condition.operator:
        case "null":
            return field.is_null()
        case "not null":
            return field.is_valid()
        case "starts":
            return pc.starts_with(field, value)
        case "in":
            return field.isin(value)
        case operator:
            return _COMPARE[operator](field, pa.scalar(value, type_of(COLUMNS[condition.column])))
