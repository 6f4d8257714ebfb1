"""The event log of a shard: one row per batch, numbered without gaps, with a bounded length."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.durations import DAY_MS
from bunqueue.model.events import NAMES
from shardproc.engine.outbox import EventEntry, LogRow, Pushed, PushedEntry, Trim

from . import statements
from .database import Writer

ROW_EVENTS = 1000  # in one row at most: reading one event decodes all of its row
SLICE = 20  # rows read at once when a queue is trimmed
TRIM_ROWS = 200  # deleted at once, some hundred microseconds
PRESSED_EVENTS = 1_000  # kept while the disk is full: enough for clients that follow the log
TRIM_EVERY_MS = 5_000  # between two checks of the age of the oldest row

_encode = Encoder().encode
_decode_pushed = Decoder(list[tuple[str, str | Pushed]]).decode
decode: Any = Decoder(list[list[Any] | None]).decode  # null: was forgotten on request


class Retention(Struct, frozen=True):
    """How much of the log is kept, give or take a batch; the newest row always is, as it fixes the next
    number."""

    max_age_ms: int = 7 * DAY_MS
    max_count: int = 1_000_000


DEFAULT_RETENTION = Retention()


class LoggedEvent(NamedTuple):
    """An event as it was logged."""

    seq: int
    at: int  # epoch ms of its batch
    kind: str  # from bunqueue.model.events.NAMES, or "unknown" when a newer version wrote it
    queue_id: int
    job_id: str  # "" when it is about the queue
    fields: dict[str, Any]


class EventLog:
    """The table ``events`` of one shard. What it writes is part of the caller's transaction."""

    def __init__(self, db: sqlite3.Connection, retention: Retention, writer: Writer) -> None:
        self._db, self._writer = db, writer
        self._retention = retention
        self._next_seq = 1
        self._oldest = 1
        self._next_check = 0
        self.pressed = False  # the disk is full: only PRESSED_EVENTS are kept
        self.is_long = False  # more rows are due than one trim deletes

    def recover(self) -> int | None:
        """Resume after the last committed event; returns its time, epoch ms, or 0 if there never was one.
        None: its time is not known any more."""
        last = self._db.execute("select first_seq + count from events order by first_seq desc limit 1")
        self._next_seq = (last.fetchone() or (1,))[0]
        oldest = self._db.execute("select min(first_seq) from events").fetchone()[0]
        self._oldest = self._next_seq if oldest is None else oldest
        if oldest is None:
            return None if self._db.execute("select 1 from jobs limit 1").fetchone() else 0
        last_at = self._db.execute("select at from events order by first_seq desc limit 1").fetchone()
        return int(last_at[0])

    def write(self, entries: list[EventEntry], at: int, pushed: list[PushedEntry]) -> None:
        """Append the events of a batch, and its pushes with idempotency keys."""
        if len(entries) > ROW_EVENTS:
            for start in range(0, len(entries), ROW_EVENTS):
                self.write(entries[start : start + ROW_EVENTS], at, pushed if start == 0 else [])
            return
        row = (self._next_seq, at, len(entries), _encode(entries))
        if pushed:
            self._writer.execute(statements.APPEND_PUSHED, (*row, _encode(pushed)))
        else:
            self._writer.execute(statements.APPEND_EVENTS, row)
        self._next_seq += len(entries)

    def pushed(self) -> Iterator[tuple[int, list[PushedEntry] | None]]:
        """The time of each batch, and its pushes with idempotency keys; the newest first. If older rows were
        forgotten, the last entry has the time of the oldest row, with an empty list."""
        at = 0
        for at, pushed in self._db.execute("select at, pushed from events order by first_seq desc"):
            yield at, None if pushed is None else _decode_pushed(pushed)
        if self._oldest > 1:
            yield at, []

    def is_due(self, now: int) -> bool:
        """Whether there may be something to forget."""
        return now >= self._next_check or self._next_seq - self._oldest > self._limit

    @property
    def _limit(self) -> int:
        """The number of events at which trimming is worthwhile: not at every batch, once the log is full."""
        return self._most * 65 // 64 + ROW_EVENTS

    @property
    def _most(self) -> int:
        most = self._retention.max_count
        return min(most, PRESSED_EVENTS) if self.pressed else most

    def oldest_kept(self, now: int) -> int:
        """The number to pass to `forget`, so rows that are too old or too many are deleted, a few at a time;
        0: none."""
        query = f"select first_seq, at, count from events order by first_seq limit {TRIM_ROWS + 1}"
        rows = self._db.execute(query).fetchall()
        oldest_at = now - self._retention.max_age_ms
        first_kept = self._next_seq - self._most
        spare = 0
        for first_seq, at, count in rows[:-1]:
            if at >= oldest_at and first_seq + count > first_kept:
                break
            spare += 1
        self.is_long = spare == TRIM_ROWS
        self._next_check = now + (0 if self.is_long else TRIM_EVERY_MS)
        return int(rows[spare][0]) if spare else 0

    def forget(self, before: int) -> None:
        """Delete the rows below the one that begins with this number."""
        self._oldest = before
        self._db.execute(statements.FORGET_EVENTS, (before,))

    @property
    def bounds(self) -> tuple[int, int]:
        """See `shardproc.engine.outbox.Archive.event_bounds`."""
        return self._oldest, self._next_seq

    def since(self, at: int) -> int:
        """See `shardproc.engine.outbox.Archive.event_since`. A binary search: times have no index, but they
        ascend as the numbers do. The numbers have gaps where the number of shards has changed."""
        low, high = self._oldest, self._next_seq
        while low < high:
            middle = (low + high) // 2
            first, count, found = self._row_of(middle)
            if found >= at:
                high = first
            else:
                low = max(first + count, middle + 1)
        return low

    def _row_of(self, seq: int) -> tuple[int, int, int]:
        query = "select first_seq, count, at from events where first_seq <= ? order by first_seq desc limit 1"
        first, count, at = self._db.execute(query, (seq,)).fetchone()
        return first, count, at

    @property
    def next_seq(self) -> int:
        """The number that the next event will have."""
        return self._next_seq

    def check_now(self) -> None:
        """The clock was ahead: check for old rows at once."""
        self._next_check = 0

    @property
    def newest_at(self) -> int:
        """The time of the last row, epoch ms; 0 if there is no row."""
        row = self._db.execute("select at from events order by first_seq desc limit 1").fetchone()
        return 0 if row is None else int(row[0])

    def trim(self, queue_id: int, keep: int, before: int | None) -> Trim:
        """See `shardproc.engine.outbox.Archive.trim_events`."""
        query = (
            f"select first_seq, payload from events where first_seq < ? order by first_seq desc limit {SLICE}"
        )
        rows = self._db.execute(query, (self._next_seq if before is None else before,)).fetchall()
        removed = 0
        for first_seq, payload in rows:
            entries = decode(payload)
            mine = [
                place for place, entry in enumerate(entries) if entry is not None and entry[1] == queue_id
            ]
            spare = mine[: max(0, len(mine) - keep)]
            keep -= len(mine) - len(spare)
            removed += len(spare)
            if spare:
                for place in spare:
                    entries[place] = None
                self._db.execute(statements.REWRITE_EVENTS, (_encode(entries), first_seq))
        return Trim(removed, keep, rows[-1][0] if len(rows) == SLICE else None)

    def keep(self, keeps: Callable[[str], bool]) -> None:
        """Forget the events of all queues but those whose names are to be kept, and their pushes."""
        made = {
            queue_id: at
            for queue_id, name, at in self._db.execute("select id, name, created_at from queues")
            if keeps(name)
        }
        query = "select at, payload, pushed from events where first_seq = ?"
        for (first,) in self._db.execute("select first_seq from events").fetchall():
            at, payload, pushed = self._db.execute(query, (first,)).fetchone()
            entries = [  # an earlier queue may have had the same number
                entry if entry is not None and at >= made.get(entry[1], at + 1) else None
                for entry in decode(payload)
            ]
            some = [] if pushed is None else _decode_pushed(pushed)
            left = [each for each in some if keeps(each[0].partition(" ")[0])]
            values = (_encode(entries), _encode(left) if left else None, first)
            self._db.execute("update events set payload = ?, pushed = ? where first_seq = ?", values)


def rows(db: sqlite3.Connection, after: int) -> Iterator[LogRow]:
    """The rows that contain events with numbers above ``after``, in order."""
    query = (
        "select first_seq, at, count, payload from events where first_seq >="
        " (select coalesce(max(first_seq), 0) from events where first_seq <= ?) order by first_seq"
    )
    for first_seq, at, count, payload in db.execute(query, (after + 1,)):
        if first_seq + count > after + 1:
            yield LogRow(first_seq, at, count, decode(payload))


def read(db: sqlite3.Connection, after: int, limit: int) -> list[LoggedEvent]:
    """The first ``limit`` events with a number above ``after``, in order."""
    found: list[LoggedEvent] = []
    for first_seq, at, _, entries in rows(db, after):
        for seq, entry in enumerate(entries, first_seq):
            if entry is not None and seq > after and len(found) < limit:
                kind, queue_id, job_id, *fields = entry
                name = NAMES[kind] if kind < len(NAMES) else "unknown"
                found.append(LoggedEvent(seq, at, name, queue_id, job_id, fields[0] if fields else {}))
        if len(found) >= limit:
            break
    return found
