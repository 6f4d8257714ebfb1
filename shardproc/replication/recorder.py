"""Collects the changes that a batch makes to the file, while it is carried out.

No write can be missed: a statement that is neither numbered nor known to concern only this file is refused
before it is carried out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from shardproc.storage.statements import LOCAL, NUMBER_OF

from .record import Change, encode

_READS = frozenset({"select", "with", "pragma", "explain", "begin", "commit", "vacuum"})


class Unnumbered(Exception):
    """A statement that changes the file has no number, so it could not be replicated."""


class Recorder:
    """The changes of the open batch, in order."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._marks: list[tuple[str, int]] = []  # savepoints: their names, and the number of earlier changes

    def __bool__(self) -> bool:
        return bool(self._changes)

    def take(self, schema: int, at: int) -> bytes:
        """The record of the batch; the next batch begins empty."""
        changes, self._changes = self._changes, []
        self._marks.clear()
        return encode(schema, at, changes)

    def clear(self) -> None:
        """The transaction has ended, and nothing of it is in the file."""
        self._changes.clear()
        self._marks.clear()

    def add(self, number: int, rows: list[Any]) -> None:
        """A numbered statement was carried out for these rows."""
        self._changes.append((number, rows))

    def other(self, sql: str) -> None:
        """Any other statement is about to be carried out: `Unnumbered` if it changes the shard."""
        words = sql.split(None, 2)
        verb = words[0].lower()
        if verb in _READS or sql in LOCAL:
            return
        if verb == "savepoint":
            self._marks.append((words[1], len(self._changes)))
        elif verb == "release":
            self._unmark(words[1])
        elif verb == "rollback":
            self._rollback(sql.split()[-1] if len(words) > 1 else None)
        else:
            raise Unnumbered(f"not in shardproc/storage/statements.py: {sql}")

    def _rollback(self, name: str | None) -> None:
        """Undo to a savepoint, which stays, or undo everything."""
        if name is None:
            self.clear()
            return
        count = self._unmark(name)
        del self._changes[count:]
        self._marks.append((name, count))

    def _unmark(self, name: str) -> int:
        while self._marks:
            marked, count = self._marks.pop()
            if marked == name:
                return count
        raise ValueError(f"no savepoint {name}")


class RecordingConnection(sqlite3.Connection):
    """A connection whose changes are recorded. Without a log the plain one is used, which costs nothing."""

    recorder: Recorder

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        number = self._number(sql)
        with self._undoing():
            cursor = super().execute(sql, parameters)
        if number is not None:
            self.recorder.add(number, [parameters])
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        rows = list(parameters)  # the caller may reuse its list
        number = self._number(sql)
        with self._undoing():
            cursor = super().executemany(sql, rows)
        if number is not None and rows:
            self.recorder.add(number, rows)
        return cursor

    def _number(self, sql: str) -> int | None:
        number = NUMBER_OF.get(sql)
        if number is None:
            self.recorder.other(sql)
        return number

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Some errors, such as a full disk, silently end the whole transaction: clear the changes then."""
        before = self.in_transaction
        try:
            yield
        except sqlite3.Error:
            if before and not self.in_transaction:
                self.recorder.clear()
            raise


def recording(
    recorder: Recorder, kind: type[RecordingConnection] = RecordingConnection
) -> type[RecordingConnection]:
    """A class of connections, for `sqlite3.connect`, whose changes go to one recorder."""
    return type(kind.__name__, (kind,), {"recorder": recorder})
