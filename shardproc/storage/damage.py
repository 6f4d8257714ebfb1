"""Remembers which parts of a shard's file cannot be read or written, for as long as the process lives.

A damaged page is met again and again: by lists, by retention, by commands for the job. Known damage is not
searched for a second time, and is logged once.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import MsgspecError

from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError

from . import statements
from .recheck import AGAIN_S, is_whole

DAMAGE = (sqlite3.DatabaseError, MsgspecError, KeyError, TypeError, ValueError)
"""What reading a damaged row may raise; `is_damage` distinguishes it from other errors."""
FIRST_CHECK_S, LAST_CHECK_S = 5.0, 600.0  # between two checks of known damage; doubled each time
MAX_LOGGED = 20  # log lines about single jobs; after that the metrics give the number
PARKED = "damage"  # key in meta: what was found when something could not be stored

_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_log = get_logger("shard")


class Unstorable(sqlite3.DatabaseError):
    """A batch cannot be written, as a page that it would change is damaged."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class Unreadable(CommandError):
    """The data that a command asks for is in a damaged part of the file."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Code.STORAGE_DAMAGED)


class ShardDamaged(Exception):
    """The shard must not serve, as a part of its data would be missing."""


def is_damage(error: BaseException) -> bool:
    """Whether an error of DAMAGE means that the data read is damaged."""
    if isinstance(error, Unstorable):  # raised by a read after the writes of its batch
        return False
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in _CODES or str(error).startswith("Could not decode to UTF-8")
    return isinstance(error, DAMAGE)


class Damage:
    """The damage of one file."""

    def __init__(self, path: str) -> None:
        self._file = Path(path)
        self.seqs: dict[int, str] = {}  # number of a job -> the table where it cannot be read
        self.tables: dict[str, str] = {}  # table -> the error
        self.serve = False  # whether to serve without live jobs that cannot be read
        self._lasts = False  # a note of it was stored, or its pages are sound: only a repair ends it
        self._again_at, self._again_s = 0.0, FIRST_CHECK_S  # time of the next check, monotonic
        self.recheck: Callable[[], None] | None = None
        """Raises an error of the disk if the file is not damaged: see `recheck`."""
        self.intolerable: type[Exception] | None = None  # raised instead: the file can be built anew

    def __bool__(self) -> bool:
        return bool(self.tables)

    def met(self, table: str, error: BaseException, seq: int | None = None) -> None:
        """Something cannot be read. Raises the error again when it does not mean damage."""
        if not is_damage(error):
            raise error
        if not isinstance(error, sqlite3.Error):
            self._lasts = True
        elif table not in self.tables and self.recheck is not None:
            self.recheck()
        self.note(table, str(error))
        if seq is not None and seq not in self.seqs:
            self.seqs[seq] = table
            if len(self.seqs) <= MAX_LOGGED:
                _log.error("a job cannot be read", file=self._file.name, table=table, number=seq)

    def note(self, table: str, error: str) -> None:
        """Something in a table cannot be read or written."""
        if self.intolerable is not None:
            raise self.intolerable(f"{self._file.name} is damaged in {table}: {error}")
        if table not in self.tables:
            self.tables[table] = error
            _log.error("the file is damaged", file=self._file.name, table=table, error=error, fix=self.fix)

    @property
    def fix(self) -> str:
        """What to do about it."""
        return f"stop the server and run bunqueue doctor --repair --data-dir {self._file.parent}"

    def text(self, table: str | None = None) -> str:
        """A sentence for people: file, table and fix."""
        names = [table] if table else list(self.tables)
        error = self.tables.get(names[0], "it cannot be read") if names else ""
        return f"{self._file.name} is damaged in {', '.join(names)} ({error}): {self.fix}"

    def unreadable(self, table: str) -> Unreadable:
        """The refusal of a command for data that cannot be read."""
        return Unreadable(self.text(table))

    def has_passed(self, db: sqlite3.Connection) -> bool:
        """Check known damage again, now and then; returns whether all of it can be read and was forgotten."""
        now = time.monotonic()
        if self._lasts or now < self._again_at:
            return False
        self._again_s = min(2 * self._again_s, LAST_CHECK_S)
        self._again_at = now + self._again_s
        if not is_whole(db, AGAIN_S):
            return False
        _log.warning("the file can be read again", file=self._file.name, tables=", ".join(self.tables))
        self.tables.clear()
        self.seqs.clear()
        return True

    def readable(self, seqs: Iterable[int]) -> list[int]:
        """The jobs that are not known to be damaged."""
        return [seq for seq in seqs if seq not in self.seqs] if self.seqs else list(seqs)

    def recover(self, db: sqlite3.Connection) -> None:
        """Take over the damage that an earlier process has recorded."""
        row = db.execute("select value from meta where key = ?", (PARKED,)).fetchone()
        if row is not None:
            self._lasts = True
            found = json.loads(row[0])
            for table, error in found["tables"].items():
                self.note(table, error)
            self.seqs.update({int(seq): table for seq, table in found["jobs"].items()})

    def park(self, db: sqlite3.Connection, seqs: Iterable[int], table: str) -> None:
        """Quarantine jobs whose changes cannot be stored, and record that for later processes."""
        self._lasts = True
        self.seqs.update(dict.fromkeys(seqs, table))
        found = {"tables": self.tables, "jobs": {str(seq): name for seq, name in self.seqs.items()}}
        db.execute(statements.PUT_META, (PARKED, json.dumps(found)))
