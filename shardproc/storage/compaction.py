"""Returning free space in a shard's file to the disk at once, by writing the file anew.

While the shard serves, `shrinking` does so slice by slice. The file is written anew only when that saves
much: when the server stops and no client waits, and when the disk is full and little is left in the file.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bunqueue.logs import get_logger
from bunqueue.server.folder.data_folder import sync

from .database import DISK_ERRORS, MAX_LOG, MEMORY, PAGE_SIZE, Database

MIN_FREE = 1 << 20  # bytes: less is not worth the work
MAX_KEPT = 64 << 20  # bytes to write: some hundred ms, of the seconds that a stop may take
SPARE_ROOM = MAX_LOG  # bytes that must stay free on the disk meanwhile
LITTLE = 4 << 20  # bytes to write while others wait: some ten ms

_log = get_logger("shard")


def compact(database: Database, most: int = MAX_KEPT, spare: int = SPARE_ROOM) -> bool:
    """Rewrite the file if more than half of it is free; returns whether that was done.

    At most ``most`` bytes are written, and ``spare`` bytes must stay free. A crash in the middle leaves the
    file as it was.
    """
    if database.path == MEMORY or database.connection.in_transaction:
        return False
    pages, free = database.pages()
    kept = (pages - free) * PAGE_SIZE
    if free * PAGE_SIZE < MIN_FREE or 2 * free <= pages or kept > most:
        return False
    # The new content goes to the log first, and from there to the file.
    if shutil.disk_usage(Path(database.path).parent).free < 2 * kept + spare:
        return False
    begun = time.monotonic()
    try:
        database.connection.execute("vacuum")
    except DISK_ERRORS as error:
        _log.warning("free space in the file could not be given back", error=str(error))
        return False
    took = int((time.monotonic() - begun) * 1000)
    _log.info("gave free space back to the disk", bytes=free * PAGE_SIZE, took_ms=took)
    return True


def rewrite(file: Path, keeps: Callable[[str, str, str], bool]) -> None:
    """Write a file that nobody uses anew, with the records that are to be kept: by kind, key and value.  What
    was removed before is in free pages of the old one, and not in the new one."""
    new = file.with_suffix(".new")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.create_function("keeps", 3, keeps)
        connection.execute("delete from records where not keeps(kind, key, value)")
        connection.execute("vacuum into ?", (str(new),))
    with new.open("rb") as written:
        os.fsync(written.fileno())
    new.replace(file)
    sync(file.parent)
