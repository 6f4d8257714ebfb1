"""SQL that reads some columns of a table from a shard's file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .conditions import Condition, where
from .tables import Column, Table


class Span(NamedTuple):
    """A range of a table's key, both ends included."""

    first: int
    last: int


class Query(NamedTuple):
    """SQL and its parameters.  A row has the columns in their order."""

    sql: str
    parameters: list[Any]


def query(
    table: Table,
    columns: Sequence[Column],
    conditions: Sequence[Condition],
    span: Span | None,
    now: int,
) -> Query:
    """The rows of a table, or only those of ``span``.  ``now`` (epoch ms) decides which jobs are delayed.

    ``columns`` are those that SQLite can compute.  Without any, each row is a single null.
    """
    chosen = ", ".join(column.sql for column in columns) or "null"
    clause, parameters = where(table, conditions)
    clauses = [clause] if clause else []
    if span is not None:
        clauses.append(f"{table.key} between ? and ?")
        parameters += span
    sql = f"select {chosen} from {table.source}"
    if clauses:
        sql += f" where {' and '.join(clauses)}"
    return Query(sql.replace(":now", str(now)), parameters)


def spans(first: int, last: int, keys: int) -> list[Span]:
    """Split the keys ``first`` to ``last`` into ranges of about ``keys`` keys, never fewer."""
    count = last - first + 1
    pieces = max(1, count // keys)
    edges = [first + count * number // pieces for number in range(pieces + 1)]
    return [Span(edge, after - 1) for edge, after in pairwise(edges)]
