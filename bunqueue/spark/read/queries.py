"""SQL that reads a table from a shard's file: whole columns of a range of rows, or the rows one by one.

SQLite makes a JSON array of each column, which costs half of what a Python object for each value does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from bunqueue.server.folder.shard_file import ROWS, ShardFile

from .conditions import Condition, where
from .tables import Column, Table

LARGE = 16 << 20  # bytes of large values that are read at once, if they are of several rows


class Span(NamedTuple):
    """A range of a table's key, both ends included."""

    first: int
    last: int


EVERYTHING = Span(0, (1 << 63) - 1)


class Query(NamedTuple):
    """SQL and its parameters."""

    sql: str
    parameters: list[Any]


def row_query(
    table: Table, columns: Sequence[Column], conditions: Sequence[Condition], span: Span, now: int
) -> Query:
    """The rows of a table in ``span``, with these columns as they are stored.  ``now`` (epoch ms) decides
    which jobs are delayed."""
    return _query(table, [column.sql for column in columns], conditions, span, now)


def column_query(
    table: Table, columns: Sequence[Column], conditions: Sequence[Condition], span: Span, now: int
) -> Query:
    """A single row: a JSON array for each of `carried`, of equal lengths; first one of nulls."""
    arrays = [f"json_group_array({sql})" for sql in ("null", *carried(columns))]
    return _query(table, arrays, conditions, span, now)


def carried(columns: Sequence[Column]) -> list[str]:
    """What is read for these columns: each expression once, as JSON can express it."""
    return list(dict.fromkeys(map(in_json, columns)))


def in_json(column: Column) -> str:
    """The expression of a column as something that JSON can express: a blob is hexadecimal, and a number with
    a fraction is text, as SQLite would round it."""
    sql = column.sql
    if column.decode is not None or column.type == "binary":
        return f"case when ({sql}) is not null then hex({sql}) end"
    if column.type == "double":
        return f"case when ({sql}) = cast(({sql}) as integer) then cast(({sql}) as integer) " + (
            f"when ({sql}) is not null then exact({sql}) end"
        )
    return sql


def _query(
    table: Table, chosen: Sequence[str], conditions: Sequence[Condition], span: Span, now: int
) -> Query:
    clause, given = where(table, conditions)
    clauses, parameters = [clause] if clause else [], [now, *given]
    if table.key:
        clauses.append(f"{table.key} between ? and ?")
        parameters += span
    sql = f"with moment(now) as (select ?) select {', '.join(chosen) or 'null'} from {table.source}"
    if clauses:
        sql += f" where {' and '.join(clauses)}"
    return Query(sql, parameters)


def fewer(table: Table, conditions: Sequence[Condition]) -> Table:
    """The table, from a source that has fewer rows, if the conditions allow one."""
    for condition in conditions:
        if condition.column == "state" and condition.operator in ("=", "in"):
            states = {condition.value} if condition.operator == "=" else set(condition.value)
            for one in table.fewer:
                if states <= one.states:
                    return replace(table, source=one.source, key=f"{one.first}.seq", key_of=(one.first,))
    return table


def blocks(file: ShardFile, table: Table, columns: Sequence[Column], span: Span) -> Iterator[Span]:
    """Divide a range into smaller ones of at most about ROWS rows and LARGE bytes each."""
    large = {column.sql: None for column in columns if column.is_large}
    weight = " + ".join(f"coalesce(length({sql}), 0)" for sql in large)
    for block in _by_rows(file, table, span) if table.key else (span,):
        if large and table.key:
            yield from _by_size(file, table, weight, block)
        else:
            yield block


def _by_rows(file: ShardFile, table: Table, span: Span) -> Iterator[Span]:
    first, last = span
    while first <= last:
        found = [
            file.one(f"select seq from {name} where seq >= ? order by seq limit 1 offset {ROWS - 1}", first)
            for name in table.key_of
        ]
        end = min([last, *(row[0] for row in found if row is not None)])
        yield Span(first, end)
        first = end + 1


def _by_size(file: ShardFile, table: Table, weight: str, block: Span) -> Iterator[Span]:
    sql = (
        f"select {table.key}, sum({weight}) from {table.source} where {table.key} between ? and ? "
        f"group by {table.key} order by {table.key}"
    )
    first, total = block.first, 0
    for rows in file.chunks(sql, block):
        for key, size in rows:
            total += size
            if total > LARGE and key > first:
                yield Span(first, key - 1)
                first, total = key, size
    yield Span(first, block.last)


def spans(first: int, last: int, keys: int) -> list[Span]:
    """Split the keys ``first`` to ``last`` into ranges of about ``keys`` keys, never fewer."""
    count = last - first + 1
    pieces = max(1, count // keys)
    edges = [first + count * number // pieces for number in range(pieces + 1)]
    return [Span(edge, after - 1) for edge, after in pairwise(edges)]
