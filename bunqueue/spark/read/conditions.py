"""Conditions on rows as SQLite's SQL, so that it reads fewer rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from .tables import Column, Table

Operator = Literal["=", "<", "<=", ">", ">=", "in", "null", "not null", "starts"]

OPERATORS: tuple[Operator, ...] = get_args(Operator)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
MAX_IN = 500  # values; SQLite takes some thousand parameters


@dataclass(frozen=True, slots=True)
class Condition:
    """``column operator value``.  Times are aware; ``in`` has a list.  `clause_of` must know it."""

    column: str
    operator: Operator
    value: Any = None

    def __str__(self) -> str:
        value = self.value.isoformat() if isinstance(self.value, datetime) else self.value
        return f"{self.column} {self.operator}" + ("" if value is None else f" {value!r}")


Clause = tuple[str, list[Any]]  # SQL and its parameters


def where(table: Table, conditions: Sequence[Condition]) -> Clause:
    """All conditions combined."""
    parts: list[str] = []
    parameters: list[Any] = []
    for condition in conditions:
        clause = clause_of(table, condition)
        assert clause is not None, condition
        parts.append(f"({clause[0]})")
        parameters += clause[1]
    return " and ".join(parts), parameters


def clause_of(table: Table, condition: Condition) -> Clause | None:
    """A condition as SQL, or None if SQLite would not compare as Spark does."""
    column = table.column(condition.column)
    if column is None or not column.sql or column.decode is not None:
        return None
    if column.type in ("binary", "array<string>"):
        return None
    sql, operator, value = f"({column.sql})", condition.operator, condition.value
    if operator == "null":
        return f"{sql} is null", []
    if operator == "not null":
        return f"{sql} is not null", []
    if operator == "in":
        return _among(column, sql, value)
    if operator == "starts":
        fits = column.type == "string" and isinstance(value, str)
        return (f"substr({sql}, 1, ?) = ?", [len(value), value]) if fits else None
    if column.type == "timestamp":
        return _moment(sql, operator, value)
    return (f"{sql} {operator} ?", [value]) if _is_comparable(column, value) else None


def _among(column: Column, sql: str, values: Sequence[Any]) -> Clause | None:
    if (
        column.type != "timestamp"
        and len(values) <= MAX_IN
        and all(_is_comparable(column, v) for v in values)
    ):
        return f"{sql} in ({', '.join('?' * len(values))})", list(values)
    return None


def _is_comparable(column: Column, value: Any) -> bool:
    """Whether SQLite compares the value with the column as Spark does."""
    if column.type == "string":
        return isinstance(value, str)
    if column.type == "boolean":
        return isinstance(value, bool)
    if column.type in ("int", "bigint"):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return False  # doubles: SQLite orders NaN and -0.0 differently


def _moment(sql: str, operator: str, value: Any) -> Clause | None:
    """Compare epoch ms with a time in microseconds, without losing the microseconds."""
    if not isinstance(value, datetime):
        return None
    low, beyond = divmod(microseconds(value), 1000)
    if operator == "=":
        return ("0", []) if beyond else (f"{sql} = ?", [low])
    if operator in ("<", ">="):
        return f"{sql} {operator} ?", [low + (beyond > 0)]
    return f"{sql} {operator} ?", [low]


def microseconds(value: datetime) -> int:
    """Since the epoch."""
    return (value - _EPOCH) // _MICROSECOND
