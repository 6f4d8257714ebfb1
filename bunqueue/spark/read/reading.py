"""Rows of a shard as Arrow batches, for Spark's tasks and for plain Python.

A file that a server writes to is read at once, in one transaction, so all rows are of one moment.  During
that time SQLite cannot reset the server's log, which grows.  So a slow consumer must not prolong the read:
batches are collected first and handed out afterwards.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from bunqueue.server.folder.shard_file import (
    ROWS,
    Identity,
    ShardFile,
    check_kept,
    current,
    identity,
    opened,
)

from ..errors import EventsLost, UnreadableShard
from .arrow import array_of, batch_of, kept, schema_of
from .conditions import Condition
from .event_rows import Arrays, bounds
from .event_selection import gap, selected
from .folders import Shard
from .malformed import Mode, accepted, checked, is_of_a_value
from .queries import EVERYTHING, LARGE, Span, blocks, carried, column_query, fewer, in_json, row_query, spans
from .remote import fetched, is_remote, is_snapshot
from .tables import CORRUPT, Column, Table


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted rows and columns of a table.  ``now`` in epoch ms decides which jobs are delayed, ``mode``
    what becomes of rows with malformed values."""

    table: Table
    columns: tuple[Column, ...]
    conditions: tuple[Condition, ...] = ()
    now: int = 0
    mode: Mode = "PERMISSIVE"

    @property
    def read_columns(self) -> tuple[Column, ...]:
        """Those that come from the file."""
        return tuple(column for column in self.columns if column.sql)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True)
class Piece:
    """The input of one task: a shard, or a range of the table's key if nothing writes to the file."""

    shard: Shard
    identity: Identity | None = None
    span: Span | None = None
    planned_on: str = ""  # the machine that found it


def check_readable(shard: Shard) -> None:
    """Read a whole shard.  Raises UnreadableShard."""
    with fetched(shard.path) as path, current(path) as file:
        file.check_pages()


def pieces_of(shard: Shard, table: Table, *, rows: int) -> list[Piece]:
    """Split a shard into pieces of about ``rows`` rows.  Raises UnreadableShard."""
    here = socket.gethostname()
    if is_remote(shard.path) or is_snapshot(shard.path):  # each piece would have to fetch the whole file
        return [Piece(shard, planned_on=here)]
    path = Path(shard.path)
    check_kept(path)
    known = identity(path)
    if known is None:
        return [Piece(shard, known, planned_on=here)]
    with opened(path, known) as file:
        first, last = _ends(file, table)
    found = [] if first is None else spans(first, last, rows)
    if len(found) < 2:
        return [Piece(shard, known, planned_on=here)]
    return [Piece(shard, known, span, here) for span in found]


def _ends(file: ShardFile, table: Table) -> tuple[int | None, int]:
    """The smallest and the largest key, or None when the table need not be split."""
    if table.name == "events":
        return bounds(file)
    if file.is_empty or not table.key:
        return None, 0
    # Queried one by one, each is the end of an index; removed rows come before the first.
    sql = f"select (select min(seq) from {table.key_of[0]}), (select max(seq) from {table.key_of[0]})"
    return file.one(sql) or (None, 0)


def read(piece: Piece, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a piece.  Raises UnreadableShard when the shard cannot be read, or has changed since it was
    planned.  The text then names this machine, unless the shard was planned here."""
    batches = _read(piece, selection)
    try:
        yield from batches if piece.identity is not None else kept(batches, schema_of(selection.columns))
    except UnreadableShard as error:
        here = socket.gethostname()
        if not piece.planned_on or here == piece.planned_on:
            raise
        raise UnreadableShard(
            f"{error}. This task runs on {here}; {piece.planned_on}, which planned it, can read the shard: "
            f"mount {Path(piece.shard.path).parent} on {here} under the same path, or give the address of a "
            "copy that all machines reach"
        ) from None


def _read(piece: Piece, selection: Selection) -> Iterator[pa.RecordBatch]:
    table = selection.table
    with fetched(piece.shard.path) as path, current(path, piece.identity) as file:
        if file.is_empty:
            return
        if table.name == "events":
            first, last = piece.span or (1, None)
            found = selected(file, selection.names, selection.conditions, first - 1, last)
            yield from _joined(_event_batches(piece.shard, selection, found))
            return
        selection = replace(selection, table=fewer(table, selection.conditions))
        parts = blocks(file, selection.table, selection.read_columns, piece.span or EVERYTHING)
        yield from _joined(_block(file, piece.shard, selection, part) for part in parts)


def _block(file: ShardFile, shard: Shard, selection: Selection, span: Span) -> pa.RecordBatch:
    """The rows of a range: as columns, or, when one of its values cannot be decoded, one by one."""
    columns = selection.read_columns
    asked = (selection.table, columns, selection.conditions, span, selection.now)
    try:
        nulls, *found = file.arrays(*column_query(*asked))
        values = dict(zip(carried(columns), found, strict=True))
        arrays = {
            column.name: array_of(column, _plain(column, values[in_json(column)])) for column in columns
        }
        return _batch(shard, selection, arrays, len(nulls))
    except Exception as error:
        if not is_of_a_value(error):
            raise
    with file.tolerant():
        rows = [row for some in file.chunks(*row_query(*asked)) for row in some]
    return _batch(shard, selection, checked(columns, rows), len(rows))


def _plain(column: Column, values: list[Any]) -> list[Any]:
    """Values of a column, from what JSON has of them."""
    if column.decode is not None:
        found = {each: column.decode(bytes.fromhex(each)) for each in set(values) if each is not None}
        found[None] = column.decode(None)
        return [found[each] for each in values]
    if column.type == "binary":
        return [None if each is None else bytes.fromhex(each) for each in values]
    if column.type == "double":
        return [None if each is None else float(each) for each in values]
    return values


def _batch(shard: Shard, selection: Selection, arrays: Arrays, rows: int) -> pa.RecordBatch:
    """A batch of all columns, without the rows that the mode leaves out."""
    given: dict[str, Any] = {"host": shard.host, "shard": shard.number, CORRUPT.name: None, **arrays}
    if CORRUPT.name not in arrays:
        return batch_of(selection.columns, given, rows)
    everything = tuple(dict.fromkeys((*selection.columns, CORRUPT)))
    batch = batch_of(everything, given, rows)
    left = accepted(batch, selection.mode, f"{shard.path}: a row of {selection.table.name}")
    return left.select(selection.names)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, where they are small."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
        rows, size = sum(each.num_rows for each in waiting), sum(each.nbytes for each in waiting)
        if rows >= ROWS // 2 or size >= LARGE:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def read_events(
    shard: Shard, selection: Selection, after: int | None, until: int, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """The events with numbers above ``after`` (None: from the oldest), up to ``until``.

    If retention removed some of them: raises EventsLost if ``strict``, otherwise gives an event of the kind
    ``lost`` that names them.
    """
    return kept(_read_events(shard, selection, after, until, strict), schema_of(selection.columns))


def _read_events(
    shard: Shard, selection: Selection, after: int | None, until: int, strict: bool
) -> Iterator[pa.RecordBatch]:
    with current(Path(shard.path)) as file:
        lost = gap(file, after or 0, until) if after is not None else None
        if lost is not None and strict:
            raise EventsLost(
                f"{shard.path}: retention was faster with the events above {after}, up to {lost['seq'][0]}"
            )
        found = selected(file, selection.names, selection.conditions, after or 0, until)
        gone = (lost,) if lost is not None else ()
        yield from _joined(_event_batches(shard, selection, chain(gone, found)))


def _event_batches(shard: Shard, selection: Selection, found: Iterable[Arrays]) -> Iterator[pa.RecordBatch]:
    for arrays in found:
        yield _batch(shard, selection, arrays, len(arrays["seq"]))
