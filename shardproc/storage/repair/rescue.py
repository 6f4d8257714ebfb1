"""Rewrites a file that was deleted while it was open: the connection still has all of it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bunqueue.server.folder.data_folder import private, sync
from shardproc.storage.deleted_files import Absence

STEP = 8192  # pages copied at a time, 64 MiB: then progress is reported
RescueError = (OSError, sqlite3.Error)  # what `rescue` may raise


def rescue(connection: sqlite3.Connection, path: Path, absence: Absence, goes_on: Callable[[], None]) -> bool:
    """Write everything that was committed at ``path`` to disk again. The connection must be closed
    afterwards, and the file reopened. False if another file is in the way: then the copy is beside it, see
    `rescued`."""
    if absence is Absence.LOG_DELETED:
        _empty_log(connection, path)
        return True
    copy = rescued(path)
    if absence is Absence.REPLACED:
        if not copy.exists():
            _copy(connection, copy, goes_on)
        return False
    _copy(connection, copy, goes_on)
    _remove_logs(path)  # the new file must not meet them
    os.link(copy, path)  # fails if a file is there by now
    copy.unlink()
    sync(path.parent)
    return True


def rescued(path: Path) -> Path:
    """The path of a file's copy."""
    return path.with_name(f"{path.name}.rescued")


def _empty_log(connection: sqlite3.Connection, path: Path) -> None:
    busy = connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
    if busy:
        raise BlockingIOError("somebody is reading the file")
    _remove_logs(path)


def _copy(connection: sqlite3.Connection, copy: Path, goes_on: Callable[[], None]) -> None:
    part = copy.with_name(f".{copy.name}.new")  # left behind by a crash, and then written over
    part.unlink(missing_ok=True)
    os.close(private(str(part), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    with closing(sqlite3.connect(part)) as target:
        connection.backup(target, pages=STEP, progress=lambda status, left, total: goes_on(), sleep=0)
    for end in ("-wal", "-shm"):
        Path(f"{part}{end}").unlink(missing_ok=True)
    sync(part)
    part.replace(copy)
    sync(copy.parent)


def _remove_logs(path: Path) -> None:
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
