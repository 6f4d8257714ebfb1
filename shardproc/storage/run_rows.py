"""Steps, signals and broadcasts: their writes in order, and their reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import Any

from shardproc.engine.run_writes import (
    MAX_PROBLEM,
    KeptSignal,
    NextSignal,
    Op,
    OpenChild,
    OpenWait,
    RunWrite,
    StepHead,
    StoredBroadcast,
    StoredStep,
    WaitingRun,
    reason_of,
)

from . import statements
from .rows import Row

MAX_PAGE = 8 << 20  # bytes of results and cursors in one page of steps
_SQL = tuple(getattr(statements, op.name) for op in Op)
_FIRST = itemgetter(0)

_HEAD = "number, name, kind, status, attempts, until, arguments, signal, key, child, undo"
_STEP = """number, name, kind, status, attempts, started_at, ended_at, until, worker, arguments, signal, key,
    child, child_queue, undo, error, coalesce(length(result), 0), coalesce(length(cursor), 0),
    iif(length(cursor) <= :most, cursor, null), iif(length(result) <= :most, result, null),
    iif(kind = 'signal', input, null)"""
_ENDED = "('completed', 'skipped')"
_UNDO_LEFT = f"""
select name from steps where seq = ?1 and undo = 1 and number > 0
and (status in ('completed', 'running') or (status = 'retrying' and attempts > 0))
and not exists (select 1 from steps other where other.seq = ?1 and other.name = 'undo:' || steps.name
                and other.status in {_ENDED})
order by number desc
"""
_KEPT = "seq = ? and taken_by is null and (expires_at is null or expires_at > ?)"
_UNTAKEN = """seq = ?1 and (taken_by = 0 or taken_by is null and (expires_at is null or expires_at > ?2))"""
_BROADCAST = "id, name, key, at, expires_at, data"
_OPEN_CHILDREN = """
select jobs.id, steps.number, steps.child, steps.child_queue, steps.input from steps
join jobs on jobs.seq = steps.seq
where steps.child is not null and steps.ended_at is null
order by steps.seq, steps.number
"""
_WAITING_FOR = """
select steps.seq, jobs.id, steps.number, steps.until, steps.input from steps join jobs on jobs.seq = steps.seq
where steps.key = ?1 and steps.signal = ?2 and steps.ended_at is null
and (steps.seq, steps.number) > (?3, ?4)
and not exists (select 1 from steps got where got.seq = steps.seq and got.source = ?5)
and not exists (select 1 from signals aside where aside.seq = steps.seq
                and aside.signal_id = 'broadcast:' || ?5)
order by steps.seq, steps.number limit ?6
"""


def write(db: sqlite3.Connection, writes: list[RunWrite]) -> None:
    """Carry out the writes in order; consecutive ones of the same kind are carried out together."""
    for op, some in groupby(writes, key=_FIRST):
        db.executemany(_SQL[op], [parameters for _, parameters in some])


class RunReads:
    """Implements `shardproc.engine.run_writes.RunArchive`."""

    def __init__(
        self,
        db: sqlite3.Connection,
        see: Callable[[], None],
        guard: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """``see`` writes what is pending; ``guard`` wraps the reads of a table."""
        self._db, self._see, self._guard = db, see, guard

    def _rows(self, table: str, query: str, parameters: Any = ()) -> list[Row]:
        self._see()
        with self._guard(table):
            return self._db.execute(query, parameters).fetchall()

    # -- steps

    def heads(self, seq: int) -> list[StepHead]:
        query = f"select {_HEAD} from steps where seq = ? and number > 0 order by number"
        return [_head(row) for row in self._rows("steps", query, (seq,))]

    def page(
        self, seq: int, after: int, limit: int, max_result: int, names: list[str] | None = None
    ) -> tuple[list[StoredStep], int | None]:
        places: dict[str, Any] = {"seq": seq, "after": max(after, 0), "limit": limit, "most": max_result}
        named = ""
        if names is not None:
            places |= {f"name{index}": name for index, name in enumerate(names)}
            named = f"and name in ({', '.join(f':name{index}' for index in range(len(names)))})"
        query = f"""select {_STEP} from steps where seq = :seq and number > :after {named}
                    order by number limit :limit"""
        self._see()
        found: list[StoredStep] = []
        size = 0
        with self._guard("steps"):
            for row in self._db.execute(query, places):
                step = _step(row)
                size += len(step.result or b"") + len(step.cursor or b"")
                if size > MAX_PAGE and found:
                    return found, found[-1].number
                found.append(step)
        return found, found[-1].number if len(found) == limit else None

    def result(self, seq: int, number: int) -> tuple[bytes | None, str | None]:
        query = "select result, error from steps where seq = ? and number = ?"
        rows = self._rows("steps", query, (seq, number))
        return rows[0] if rows else (None, None)

    def name(self, seq: int, number: int) -> str:
        query = "select name from steps where seq = ? and number = ?"
        with self._guard("steps"):  # mostly it was written long ago, and pending writes can wait
            row = self._db.execute(query, (seq, number)).fetchone()
        rows = [row] if row is not None else self._rows("steps", query, (seq, number))
        return str(rows[0][0]) if rows else ""

    def open_in(self, seq: int, first: int, last: int) -> int:
        query = """select count(*) from steps where seq = ? and ended_at is null
                   and number between ? and ?"""
        return int(self._rows("steps", query, (seq, first, last))[0][0])

    def open_waits(self, seq: int) -> list[StepHead]:
        query = f"""select {_HEAD} from steps where seq = ? and ended_at is null
                    and kind in ('sleep', 'signal') order by number"""
        return [_head(row) for row in self._rows("steps", query, (seq,))]

    def undo_left(self, seq: int) -> list[str]:
        return [str(name) for (name,) in self._rows("steps", _UNDO_LEFT, (seq,))]

    def signal_waits(self, seq: int, signal: str | None, limit: int) -> list[OpenWait]:
        query = """select number, name, signal, key, until, input from steps
                   where seq = ?1 and ended_at is null and kind = 'signal' and signal = coalesce(?2, signal)
                   order by number limit ?3"""
        return [OpenWait(*row) for row in self._rows("steps", query, (seq, signal, limit))]

    def wait_schema(self, seq: int, number: int) -> bytes | None:
        query = "select input from steps where seq = ? and number = ? and kind = 'signal'"
        rows = self._rows("steps", query, (seq, number))
        return rows[0][0] if rows else None

    def ended(self, seq: int, number: int) -> tuple[bytes | None, str | None]:
        query = "select result, source from steps where seq = ? and number = ?"
        rows = self._rows("steps", query, (seq, number))
        return rows[0] if rows else (None, None)

    def open_children(self) -> list[OpenChild]:
        return [OpenChild(*row) for row in self._rows("steps", _OPEN_CHILDREN)]

    # -- signals

    def signals(self, seq: int, now: int, most: int) -> list[KeptSignal]:
        start = 2 + MAX_PROBLEM
        query = f"""select number, name, at, expires_at, iif(taken_by = 0, substr(data, 1, {start}), null),
                    length(data), iif(length(data) <= ?3 + iif(taken_by = 0, {start}, 0), data, null)
                    from signals where {_UNTAKEN} order by number"""
        return [_kept(row, most) for row in self._rows("signals", query, (seq, now, most))]

    def aside(self, seq: int) -> list[int]:
        query = "select number from signals where seq = ? and taken_by = 0 order by number"
        return [number for (number,) in self._rows("signals", query, (seq,))]

    def is_there(self, seq: int, number: int) -> bool:
        query = "select 1 from signals where seq = ? and number = ? and (taken_by = 0 or taken_by is null)"
        return bool(self._rows("signals", query, (seq, number)))

    def expired_signals(self, seq: int, now: int) -> list[int]:
        query = "select number from signals where seq = ? and taken_by is null and expires_at <= ?"
        return [number for (number,) in self._rows("signals", query, (seq, now))]

    def next_signal(self, seq: int, name: str, now: int) -> NextSignal | None:
        query = f"select number, at, data from signals where {_KEPT} and name = ? order by number limit 1"
        rows = self._rows("signals", query, (seq, now, name))
        return NextSignal(*rows[0]) if rows else None

    def counted(self, seq: int, signal_id: str | None) -> tuple[int, int, bool]:
        query = """select coalesce(max(number), 0), count(*) - count(taken_by),
                          coalesce(max(signal_id = ?), 0) from signals where seq = ?"""
        last, kept, known = self._rows("signals", query, (signal_id, seq))[0]
        return int(last), int(kept), bool(known)

    # -- broadcasts

    def waiting_for(self, sent: StoredBroadcast, after: tuple[int, int], limit: int) -> list[WaitingRun]:
        rows = self._rows("steps", _WAITING_FOR, (sent.key, sent.name, *after, sent.id, limit))
        return [WaitingRun(*row) for row in rows]

    def next_broadcast(self, seq: int, name: str, key: str, now: int, passed: int) -> StoredBroadcast | None:
        query = f"""select {_BROADCAST} from broadcasts where key = ?1 and name = ?2 and expires_at > ?3
                    and not exists (select 1 from steps where seq = ?4 and source = broadcasts.id)
                    and not exists (select 1 from signals where seq = ?4
                                    and signal_id = 'broadcast:' || broadcasts.id)
                    order by at, rowid limit 1 offset ?5"""
        rows = self._rows("broadcasts", query, (key, name, now, seq, passed))
        return StoredBroadcast(*rows[0]) if rows else None

    def broadcast(self, broadcast_id: str) -> StoredBroadcast | None:
        rows = self._rows("broadcasts", f"select {_BROADCAST} from broadcasts where id = ?", (broadcast_id,))
        return StoredBroadcast(*rows[0]) if rows else None

    def broadcasts(self) -> int:
        return int(self._rows("broadcasts", "select count(*) from broadcasts")[0][0])

    def old_broadcasts(self, now: int, remembered: int, limit: int) -> list[str]:
        query = "select id from broadcasts where expires_at <= ? and at <= ? order by at limit ?"
        rows = self._rows("broadcasts", query, (now, now - remembered, limit))
        return [str(row[0]) for row in rows]

    def undelivered(self) -> list[StoredBroadcast]:
        query = f"select {_BROADCAST} from broadcasts where delivered = 0 order by at, rowid"
        return [StoredBroadcast(*row) for row in self._rows("broadcasts", query)]


def _head(row: Row) -> StepHead:
    head = StepHead(*row)
    head.undo = bool(head.undo)
    return head


def _kept(row: Row, most: int) -> KeptSignal:
    number, name, at, expires_at, start, size, data = row
    if start is None:
        return KeptSignal(number, name, at, expires_at, None, size, data)
    problem = reason_of(start)
    before = 2 + int.from_bytes(start[:2])
    size -= before
    return KeptSignal(
        number, name, at, expires_at, problem, size, data[before:] if data and size <= most else None
    )


def _step(row: Row) -> StoredStep:
    step = StoredStep(*row)
    step.undo = bool(step.undo)
    return step
