"""Shifts the times of finished jobs back to the true time after the clock was ahead.

Their times have no index, so each table is read once, a few rows in each step. A shifted row stays as it is
when it is read again, so all of it may start over after a crash.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import msgspec

from shardproc.engine.memory.clock_correction import Pending, SetBack

from . import statements
from .damage import DAMAGE
from .event_log import EventLog
from .schema import TABLES, Table
from .search.index import SearchIndex

KEY = "set_back"  # in meta: times are being shifted back
ROWS = 1_000  # of a table read in one step: some 5 ms, if all of them are shifted


class Rebase:
    """The shift of one file. All it writes is part of the next commit."""

    def __init__(
        self,
        db: sqlite3.Connection,
        events: EventLog,
        now: Callable[[], int],
        write_out: Callable[[], None],
        met: Callable[[Exception], None],
        search: SearchIndex,
    ) -> None:
        """``now``: the time of each step; ``write_out`` opens the transaction, and writes what is pending;
        ``met`` is called with an error, and may raise it again."""
        self._db, self._events, self._now, self.write_out, self._met = db, events, now, write_out, met
        self._search = search

    def begin(self, back: SetBack, next_seq: int) -> Pending:
        """Record what remains to be done until `end`."""
        pending = Pending(back, next_seq, self._events.next_seq)
        self.write_out()
        self._db.execute(statements.PUT_META, (KEY, msgspec.json.encode(pending).decode()))
        self._events.check_now()
        return pending

    def begun(self) -> Pending | None:
        """The shift that an earlier process has not finished."""
        row = self._db.execute("select value from meta where key = ?", (KEY,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Pending)

    def end(self) -> None:
        """The shift is complete."""
        self.write_out()
        self._db.execute(statements.DELETE_META, (KEY,))
        self._search.forget(self._now())

    def steps(self, pending: Pending) -> Iterator[int]:
        """Shift the rows; yields for each step the number of dead letters to retry earlier. Live jobs have
        been shifted already."""
        try:
            yield from self._steps(pending)
        except DAMAGE as error:
            self._met(error)

    def _steps(self, pending: Pending) -> Iterator[int]:
        back = pending.back._asdict()
        for table in TABLES:
            for rows in self._pieces(table, pending) if table.shift else ():
                retries, places = 0, {**back, **rows}
                if table.name == "dead_letters":
                    retries = self._db.execute(statements.MOVE_RETRIES, places).rowcount
                self._db.execute(table.shift, places)
                yield retries

    def _pieces(self, table: Table, pending: Pending) -> Iterator[dict[str, int]]:
        """The parameters for a table's rows, ROWS at a time.

        Jobs and events below the numbers in ``pending`` are older than the correction. Other rows may be
        younger, so the time of each step is their present.
        """
        db, name = self._db, table.name
        if name == "broadcasts":
            yield {"now": self._now()}
        elif name in ("jobs", "events"):
            end = pending.jobs if name == "jobs" else pending.events
            yield from _ranges(db, name, table.key[0], end)
        elif name == "completed":  # its rows are found by their queue
            for (queue_id,) in db.execute("select id from queues").fetchall():
                for rows in _ranges(db, name, "seq", pending.jobs, f"queue_id = {queue_id:d} and"):
                    yield {"now": self._now(), "queue": queue_id, **rows}
        else:
            for rows in _ranges(db, name, "seq", pending.jobs):
                yield {"now": self._now(), **rows}


def _ranges(
    db: sqlite3.Connection, table: str, key: str, end: int, where: str = ""
) -> Iterator[dict[str, int]]:
    """Ranges of keys with about ROWS rows of a table each, up to the last one below ``end``."""
    after, last = -1, end - 1
    query = (
        f"select {key} from {table} where {where} {key} > ? and {key} <= ? order by {key} limit 1 offset ?"
    )
    while after < last:
        row = db.execute(query, (after, last, ROWS - 1)).fetchone()
        until = last if row is None else row[0]
        yield {"after": after, "until": until}
        after = until
