"""Which jobs of a range meet some conditions.

SQLite makes the comparisons that it can. Tags, groups and fields of data are in MessagePack, so SQLite only
checks whether their bytes occur, and Python checks the remaining rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.search.conditions import (
    AT_LEAST,
    AT_MOST,
    CONTAINS,
    EQUAL,
    LESS,
    MISSING,
    MORE,
    UNEQUAL,
    Condition,
    comparer,
    lower,
    matches,
    value_at,
)
from shardproc.engine.criteria import LIVE, Criteria, Finding

from ..rows import last_error_type
from .index import group_of, tags_of

_SIGNS = {EQUAL: "=", UNEQUAL: "<>", LESS: "<", AT_MOST: "<=", MORE: ">", AT_LEAST: ">="}
MAX_LISTED = 100  # queues in a query; if there are more, Python checks the rows

_STATE = """case when completed.seq is not null then 'completed' when dead_letters.reason in
('cancelled', 'stuck') then dead_letters.reason when dead_letters.seq is not null then 'failed' end"""
_ERROR_TYPE = f"""case when completed.seq is null and coalesce(dead_letters.error, jobs.error) is not null
then {last_error_type("jobs.seq")} end"""
_COLUMNS = {
    "state": _STATE,
    "name": "jobs.name",
    "worker": "nullif(coalesce(completed.worker, dead_letters.worker), '')",
    "error": "case when completed.seq is null then dead_letters.error end",
    "error_type": _ERROR_TYPE,
    "created": "jobs.created_at",
    "finished": "coalesce(completed.finished_at, dead_letters.finished_at)",
    "priority": "jobs.priority",
    "attempts": "coalesce(completed.attempts, dead_letters.attempts)",
    "workflow": "(jobs.run is not null)",
}
# The row of a live job has the same values as memory; the class of its last error is only in the file.
_FIXED = frozenset({"name", "created", "error_type"})
_SELECT = """select jobs.seq, jobs.queue_id,
case when completed.seq is not null then 3 when dead_letters.reason = 'cancelled' then -1
when dead_letters.seq is not null then 4 else 0 end,
jobs.options, jobs.extra, """  # the numbers are COMPLETED, STOPPED, FAILED and LIVE
_ALL = """ from jobs
left join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq
left join dead_letters on dead_letters.seq = jobs.seq
where jobs.seq between ? and ?"""
_COMPLETED = """ from completed cross join jobs on jobs.seq = completed.seq left join dead_letters on 0
where completed.queue_id = {queue:d} and completed.seq between ? and ?"""
_DEAD = """ from dead_letters cross join jobs on jobs.seq = dead_letters.seq left join completed on 0
where dead_letters.seq between ? and ?"""
_DEAD_OF = """ from dead_letters indexed by dead_letters_by_arrival
cross join jobs on jobs.seq = dead_letters.seq left join completed on 0
where dead_letters.queue_id = {queue:d} and dead_letters.seq between ? and ?"""

Test = Callable[[Sequence[Any]], bool]


class Search:
    """Conditions, prepared for reading one range after the other."""

    def __init__(self, criteria: Criteria) -> None:
        tests: list[str] = []
        self._parameters: list[Any] = []
        self._tests: list[Test] = []
        for condition in criteria.conditions:
            test, parameters = _sql(condition)
            if test:
                tests.append(test)
                self._parameters += parameters
            if condition.field in _PACKED:
                self._tests.append(_PACKED[condition.field](condition))
        if criteria.queues is not None and len(criteria.queues) > MAX_LISTED:
            self._tests.append(_of_queues(frozenset(criteria.queues)))
        has_data = any(condition.field == "data" for condition in criteria.conditions)
        select = f"{_SELECT} {'jobs.data' if has_data else 'null'}"
        rest = "".join(f" and {test}" for test in tests)
        self._queries = [f"{select} {source} {rest}" for source in _sources(criteria)]

    def read(self, db: sqlite3.Connection, first: int, last: int) -> list[Finding]:
        """The jobs found with numbers from ``first`` to ``last``, in ascending order. Live jobs are found by
        values that do not change."""
        found: list[Finding] = []
        for query in self._queries:
            numbers: tuple[int, ...] = (first, last)
            if first == last:  # a scan would also read the next row, which may be in a damaged page
                query, numbers = query.replace("between ? and ?", "= ?", 1), (first,)
            rows = db.execute(query, (*numbers, *self._parameters))
            found += [Finding(*row[:3]) for row in rows if all(test(row) for test in self._tests)]
        found.sort()
        return found


def _sources(criteria: Criteria) -> list[str]:
    """The sources of rows."""
    queues = criteria.queues
    if criteria.live or (criteria.completed and not criteria.by_queue):
        where = "" if criteria.live else " and (completed.seq is not null or dead_letters.seq is not null)"
        if queues is not None and len(queues) <= MAX_LISTED:
            where += f" and jobs.queue_id in ({','.join(map(str, queues))})"
        return [_ALL + where]
    if not criteria.by_queue:
        return [_DEAD]
    found = []
    for queue in queues or ():
        found += [_COMPLETED.format(queue=queue)] if criteria.completed else []
        found += [_DEAD_OF.format(queue=queue)] if criteria.dead else []
    return found


def _sql(condition: Condition) -> tuple[str, list[Any]]:
    """The part of a condition that SQLite tests: all of it for a column; for a MessagePack value, as much as
    it can."""
    column = _COLUMNS.get(condition.field)
    if column is None:
        return _occurs(condition)
    if condition.field == "worker" and condition.prefix:
        column = _without(column, condition.prefix)
    values = [_portable(value) for value in condition.values]
    if condition.field == "error_type" and condition.comparison != CONTAINS:
        return _of_class(column, values, condition.comparison)
    test = f"{column} {_SIGNS.get(condition.comparison)} ?"
    if condition.comparison in (EQUAL, UNEQUAL):
        marks = ",".join("?" * len(values))
        test = f"{column} in ({marks})"
        if condition.comparison == UNEQUAL:
            test = f"({column} is null or {column} not in ({marks}))"
    elif condition.comparison == CONTAINS:
        test, values = f"instr(lower({column}), ?) > 0", [lower(values[0])]
    if condition.field not in _FIXED:
        test = f"(coalesce(completed.seq, dead_letters.seq) is null or {test})"
    return test, values


def _without(column: str, prefix: str) -> str:
    """A column without the prefix of a namespace, which has only a-z, 0-9, - and /."""
    return f"iif({column} glob '{prefix}*', substr({column}, {len(prefix) + 1}), {column})"


def _of_class(column: str, values: list[Any], comparison: str) -> tuple[str, list[Any]]:
    """Whether a class has one of these names, with or without its module."""
    one = f"substr('.' || {column}, -length(?) - 1) = '.' || ?"
    test = " or ".join([one] * len(values))
    twice = [value for value in values for _ in range(2)]
    return (f"({test})" if comparison == EQUAL else f"not coalesce(({test}), 0)"), twice


def _portable(value: Any) -> Any:
    """A value that SQLite can bind: it has no larger integers."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _occurs(condition: Condition) -> tuple[str, list[Any]]:
    """Bytes without which a job cannot meet a condition."""
    if condition.comparison == UNEQUAL:
        return "", []
    if condition.field != "data":
        column = "jobs.options" if condition.field == "tag" else "jobs.extra"
        if condition.comparison != EQUAL:
            return f"{column} is not null", []
        tests = " or ".join([f"instr({column}, ?)"] * len(condition.values))
        return f"({tests})", [value.encode() for value in condition.values]
    needles = [step.encode() for step in condition.path if step and not step.isdigit()]
    value = condition.values[0]
    if condition.comparison == EQUAL and len(condition.values) == 1 and isinstance(value, str) and value:
        needles.append(value.encode())
    return " and ".join(["instr(jobs.data, ?)"] * len(needles)), needles


def _of_queues(queues: frozenset[int]) -> Test:
    return lambda row: row[1] in queues


def _tag(condition: Condition) -> Test:
    def test(row: Sequence[Any]) -> bool:
        return row[2] == LIVE or matches(condition, () if row[3] is None else tags_of(row[3]))

    return test


def _group(condition: Condition) -> Test:
    def test(row: Sequence[Any]) -> bool:
        return row[2] == LIVE or matches(condition, None if row[4] is None else group_of(row[4]))

    return test


def _data(condition: Condition) -> Test:
    path, meets = condition.path, comparer(condition)

    def test(row: Sequence[Any]) -> bool:
        if row[2] == LIVE:
            return True
        try:
            return meets(value_at(row[5], path))
        except DECODE_ERRORS:
            return meets(MISSING)

    return test


_PACKED: dict[str, Callable[[Condition], Test]] = {"tag": _tag, "group": _group, "data": _data}
