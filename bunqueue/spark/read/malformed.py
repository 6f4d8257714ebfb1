"""Values that cannot be decoded: damaged, of another type, or out of range.

Columns are read whole until a value fails.  The rows of that range are then read one by one and each value
is checked, so that a bad value costs a value, and not its shard.  What becomes of its row is the option
``mode``, as in Spark's own readers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from bunqueue.server.folder.shard_file import is_about_a_value
from bunqueue.server.folder.shard_values import REASON

from ..errors import UnreadableShard
from .arrow import array_of
from .tables import CORRUPT, Column, Type

logger = logging.getLogger("bunqueue.spark")

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: tuple[Mode, ...] = get_args(Mode)

_MAX_MS = (1 << 63) // 1000 - 1  # Spark's times are microseconds
_BITS: dict[Type, int] = {"int": 31, "bigint": 63}
_NAMES = ("seq", "id", "job_id", "queue")  # columns that tell people which row it is


def is_of_a_value(error: Exception) -> bool:
    """Whether an error is about a value and not about the file."""
    python = (pa.ArrowException, ValueError, TypeError, OverflowError)
    return is_about_a_value(error) or isinstance(error, python)


def checked(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> dict[str, pa.Array]:
    """The columns of rows as they are stored, with null for each value that does not fit its column; and the
    reasons, as the column CORRUPT."""
    values: list[list[Any]] = [[] for _ in columns]
    reasons: list[str | None] = []
    for row in rows:
        problems = []
        for column, value, into in zip(columns, row, values, strict=True):
            fit, problem = _fitted(column, value)
            into.append(fit)
            if problem:
                problems.append(f"{column.name}: {problem}")
        reasons.append("; ".join(problems) or None)
    arrays = {column.name: array_of(column, each) for column, each in zip(columns, values, strict=True)}
    return {**arrays, CORRUPT.name: array_of(CORRUPT, reasons)}


def accepted(batch: pa.RecordBatch, mode: Mode, of: str) -> pa.RecordBatch:
    """What ``mode`` leaves of a batch with the column CORRUPT.  ``of`` says in words where its rows are from.

    Raises UnreadableShard in the mode FAILFAST."""
    bad = batch.filter(pc.is_valid(batch.column(CORRUPT.name)))
    if not bad.num_rows:
        return batch
    first = bad.slice(0, 1).to_pylist()[0]
    named = "".join(f", {name} {first[name]}" for name in _NAMES if first.get(name) is not None)
    text = f"{of}{named}: {first[CORRUPT.name]}"
    if mode == "FAILFAST":
        raise UnreadableShard(
            f"{text}; mode=PERMISSIVE reads such values as null, mode=DROPMALFORMED leaves their rows out"
        )
    more = f" (and {bad.num_rows - 1} more rows near it)" if bad.num_rows > 1 else ""
    logger.warning("%s%s", text, more)
    return batch.filter(pc.is_null(batch.column(CORRUPT.name))) if mode == "DROPMALFORMED" else batch


def _fitted(column: Column, value: Any) -> tuple[Any, str | None]:
    """A stored value as one of its column; or None, and what is wrong with it."""
    if isinstance(value, bytes) and value.startswith(REASON):
        return None, value.removeprefix(REASON).decode(errors="replace")
    if column.decode is not None or column.type == "binary":
        if isinstance(value, str):
            value = value.encode(errors="surrogateescape")
        if not isinstance(value, bytes | None):
            return None, f"{value!r} is no binary"
        if column.decode is None:
            return value, None
        try:
            value = column.decode(value)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
    if value is None or _is_of(column.type, value):
        return value, None
    if isinstance(value, str) and column.type == "string":
        return None, f"{value.encode(errors='surrogateescape')[:60]!r} is not UTF-8"
    return None, f"{str(value)[:60]!r} is no {column.type}"


def _is_of(kind: Type, value: Any) -> bool:
    if kind == "timestamp":
        return isinstance(value, int) and abs(value) <= _MAX_MS
    if kind in _BITS:
        return isinstance(value, int) and -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]
    if kind == "double":
        return isinstance(value, int | float)
    if kind == "boolean":
        return isinstance(value, int)
    if kind == "array<string>":
        return isinstance(value, list) and all(_is_text(each) for each in value)
    return _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
