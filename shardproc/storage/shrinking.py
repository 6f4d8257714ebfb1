"""Returning free pages of a shard's file to the disk while it serves, a slice at a time.

SQLite keeps the pages of deleted rows for new ones. After a purge most of a file may be free: then the last
pages are moved into free ones and cut off, so few at a time that clients do not notice. Some free pages stay,
so a queue that is filled and emptied in turns does not pay for it each time.
"""

from __future__ import annotations

from bunqueue.logs import get_logger

from .database import DISK_ERRORS, PAGE_SIZE, Database

CHECK_MS = 5_000  # between two checks of the free space
PATIENCE_MS = 30_000  # much must have been free for this long: new jobs may need it
PACE_MS = 25  # between two slices
SLICE = 32  # pages; a quarter of a megabyte, some 0.3 ms
MIN_FREE = 512  # pages: less than 4 MiB is not worth the work
BEGIN, END = 4, 16  # it begins when a fourth of the file is free, and ends when a sixteenth is

_log = get_logger("shard")


class Shrinking:
    """Shrinks one file."""

    __slots__ = ("_freed", "_is_running", "_next_at", "_since")

    def __init__(self) -> None:
        self._next_at = 0
        self._since: int | None = None  # since when much has been free
        self._is_running = False
        self._freed = 0  # pages, since this began

    def step(self, database: Database, now: int) -> None:
        """Do a slice if one is due: call it between two transactions, and as soon as `wait_ms` allows."""
        if now < self._next_at and self._next_at - now <= CHECK_MS:  # else the clock was set back
            return
        try:
            self._next_at = now + (
                self._shrink_slice(database) if self._is_running else self._check(database, now)
            )
        except DISK_ERRORS as error:  # the next commit will show what is wrong with the disk
            _log.warning("free space in the file could not be given back", error=str(error))
            self._is_running, self._since, self._next_at = False, None, now + CHECK_MS

    @property
    def is_running(self) -> bool:
        """Whether it is returning pages."""
        return self._is_running

    def wait_ms(self, now: int) -> int | None:
        """The time until `step` should be called again; None: at the next occasion."""
        return max(0, self._next_at - now) if self._is_running else None

    def _check(self, database: Database, now: int) -> int:
        pages, free = database.pages()
        if free < MIN_FREE or free * BEGIN < pages:
            self._since = None
        elif self._since is None or now < self._since:
            self._since = now
        elif now - self._since >= PATIENCE_MS:
            self._is_running = database.is_incremental()
        return PACE_MS if self._is_running else CHECK_MS

    def _shrink_slice(self, database: Database) -> int:
        self._freed += database.release_pages(SLICE)
        pages, free = database.pages()
        if free >= MIN_FREE // 2 and free * END >= pages:
            return PACE_MS
        _log.info("gave free space back to the disk", bytes=self._freed * PAGE_SIZE)
        self._is_running, self._since, self._freed = False, None, 0
        database.checkpoint("passive")  # until then the file keeps its size
        return CHECK_MS
