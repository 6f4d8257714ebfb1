"""Conditions on events that SQLite cannot check: where in the log to start, and which events match."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from bunqueue.model.events import LOST, NAMES
from bunqueue.server.folder.shard_file import ShardFile
from bunqueue.server.folder.shard_values import to_json

from .conditions import Condition, microseconds
from .event_rows import UNKNOWN, EventRow, bounds, events, first_since

Test = Callable[[EventRow], bool]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def selected(
    file: ShardFile, conditions: Sequence[Condition], after: int = 0, until: int | None = None
) -> Iterator[EventRow]:
    """The matching events with numbers above ``after``, up to ``until``, in order.  Kinds of conditions that
    cannot be checked here are ignored."""
    first = max([after + 1, *(_first(file, condition) for condition in conditions)])
    last = min([bounds(file).last if until is None else until, *_lasts(conditions)])
    tests = [test for condition in conditions if (test := _test(condition)) is not None]
    for event in events(file, first - 1, last, _kinds(conditions)):
        if all(test(event) for test in tests):
            yield event


def gap(file: ShardFile, after: int, until: int) -> EventRow | None:
    """An event of the kind ``lost`` for those above ``after`` that the log no longer has, or None if it has
    all of them.  Events deleted on request do not count as missing."""
    oldest = bounds(file).first
    found = None if file.is_empty else file.one("select at from events order by first_seq limit 1")
    if oldest <= after + 1 or found is None:
        return None
    last = min(oldest - 1, until)
    fields = to_json({"first": after + 1, "last": last})
    return EventRow(last, found[0], LOST, None, None, None, None, fields)


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


def _test(condition: Condition) -> Test | None:
    column, value = condition.column, condition.value
    if column not in EventRow._fields:
        return None
    place = EventRow._fields.index(column)
    if condition.operator == "in" and column != "at":
        among = frozenset(value)
        return lambda event: event[place] in among
    compare = _COMPARE.get(condition.operator)
    if compare is None or column not in ("seq", "at", "kind", "queue", "job_id"):
        return None
    if column == "at":
        if not isinstance(value, datetime):
            return None
        moment = microseconds(value)
        return lambda event: compare(event.at * 1000, moment)
    return lambda event: event[place] is not None and compare(event[place], value)
