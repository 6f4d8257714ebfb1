"""Rows of a shard as Arrow batches, for Spark's tasks and for plain Python.

A file that a server writes to is read at once, in one transaction, so all rows are of one moment.  During
that time SQLite cannot reset the server's log, which grows.  So a slow consumer must not prolong the read:
batches are collected first and handed out afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from bunqueue.server.folder.shard_file import ROWS, Identity, check_kept, current, identity, opened

from ..errors import EventsLost, UnreadableShard
from .arrow import batcher, kept, schema_of
from .conditions import Condition
from .event_rows import EventRow
from .event_selection import gap, selected
from .folders import Shard
from .queries import Span, query, spans
from .remote import fetched, is_remote, is_snapshot
from .tables import Column, Table

logger = logging.getLogger("bunqueue.spark")


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted rows and columns of a table.  ``now`` in epoch ms decides which jobs are delayed."""

    table: Table
    columns: tuple[Column, ...]
    conditions: tuple[Condition, ...] = ()
    now: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The input of one task: a shard, or a range of the table's key if nothing writes to the file."""

    shard: Shard
    identity: Identity | None = None
    span: Span | None = None
    skip: bool = False  # leave out unreadable data


def pieces_of(shard: Shard, table: Table, *, rows: int, skip: bool = False) -> list[Piece]:
    """Split a shard into pieces of about ``rows`` rows.

    With ``skip``, an unreadable shard is left out completely, and logged.  Otherwise it raises
    UnreadableShard.
    """
    if is_remote(shard.path) or is_snapshot(shard.path):  # each piece would have to fetch the whole file
        return [Piece(shard, skip=skip)]
    path = Path(shard.path)
    try:
        check_kept(path)
        known = identity(path)
        if known is None or skip or not table.key:
            return [Piece(shard, known, skip=skip)]
        with opened(path, known) as file:
            # Queried one by one, each is the end of an index; removed rows come before the first.
            sql = f"select (select min(seq) from {table.key_of}), (select max(seq) from {table.key_of})"
            ends = None if file.is_empty else file.one(sql)
    except UnreadableShard as error:
        if not skip:
            raise
        logger.warning("skipped: %s", error)
        return []
    first, last = ends or (None, None)
    found = [] if first is None else spans(first, last, rows)
    return [Piece(shard, known, span) for span in found] if len(found) > 1 else [Piece(shard, known)]


def read(piece: Piece, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows of a piece.  Raises UnreadableShard when the shard cannot be read, or has changed since it was
    planned."""
    batches = _read(piece, selection)
    if piece.identity is not None and not piece.skip:
        return batches
    whole = kept(batches, schema_of(selection.columns))
    return _readable(whole) if piece.skip else whole


def _readable(whole: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All batches, or no batches if the shard cannot be read.  That is known before the first batch."""
    try:
        yield from whole
    except UnreadableShard as error:
        logger.warning("skipped: %s", error)


def _read(piece: Piece, selection: Selection) -> Iterator[pa.RecordBatch]:
    table = selection.table
    with fetched(piece.shard.path) as path, current(path, piece.identity) as file:
        if file.is_empty:
            return
        if table.name == "events":
            yield from _event_batches(piece.shard, selection, selected(file, selection.conditions))
            return
        known = [column for column in selection.columns if column.sql]
        asked = query(table, known, selection.conditions, piece.span, selection.now)
        batch = batcher(selection.columns, _given(piece.shard))
        for rows in file.chunks(asked.sql, asked.parameters):
            yield batch(rows)


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
                f"{shard.path}: retention was faster with the events above {after}, up to {lost.seq}"
            )
        found = selected(file, selection.conditions, after or 0, until)
        if lost is not None:
            found = chain((lost,), found)
        yield from _event_batches(shard, selection, found)


def _event_batches(shard: Shard, selection: Selection, found: Iterator[EventRow]) -> Iterator[pa.RecordBatch]:
    given = _given(shard)
    asked = [EventRow._fields.index(column.name) for column in selection.columns if column.name not in given]
    batch = batcher(selection.columns, given)
    while some := list(islice(found, ROWS)):
        yield batch([tuple(event[place] for place in asked) for event in some])


def _given(shard: Shard) -> dict[str, Any]:
    return {"host": shard.host, "shard": shard.number}
