"""Decides whether a file is damaged, or reading it only failed for a moment.

SQLite reports a page that it could not read, because of an I/O error, as malformed. So the file itself is
read, which shows the error; and all tables are read again without SQLite's cache.
"""

from __future__ import annotations

import os
import sqlite3
import time

CHUNK = 1 << 20
LONGEST_S = 2.0  # for each of the two; the shard answers no client in that time
AGAIN_S = 0.25  # the same for checking a verdict again
_STEPS = 100_000  # of SQLite between two readings of the clock; some ms


class ReadFailed(sqlite3.DatabaseError):
    """The file cannot be read, or could not a moment ago: this is not damage, and may pass."""

    sqlite_errorcode = sqlite3.SQLITE_IOERR_READ


def recheck(db: sqlite3.Connection, descriptor: int | None) -> None:
    """Raise ReadFailed unless the file is damaged, as far as LONGEST_S is enough to find out.

    ``descriptor`` is one of the file, kept open by the caller; None: the database is in memory.
    """
    if descriptor is None:
        return
    _read(descriptor)
    if is_whole(db, LONGEST_S):
        raise ReadFailed("a page could not be read for a moment")


def reading_fails(path: str) -> ReadFailed | None:
    """Why a file that is not open in this process cannot be read at present."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return ReadFailed(f"the file cannot be read: {error.strerror}")
    try:
        _read(descriptor)
    except ReadFailed as error:
        return error
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> None:
    end, offset = time.monotonic() + LONGEST_S, 0
    try:
        while (part := os.pread(descriptor, CHUNK, offset)) and time.monotonic() < end:
            offset += len(part)
    except OSError as error:
        raise ReadFailed(f"the file cannot be read: {error.strerror}") from error


def is_whole(db: sqlite3.Connection, longest_s: float) -> bool:
    """Whether all pages were found to be sound within that time."""
    end = time.monotonic() + longest_s
    db.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        db.execute("pragma shrink_memory")
        return db.execute("pragma quick_check(1)").fetchall() == [("ok",)]
    except sqlite3.Error:
        return False
    finally:
        db.set_progress_handler(None, 0)
