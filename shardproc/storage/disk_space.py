"""How much space a shard has on its disk, and what it does when that runs short.

Jobs that are already stored need space as well. A checkpoint copies the pages of the WAL into the database,
which may grow by all of them; a pull, an ack, a failed attempt and their events are rows. To make sure that
this never fails:

- The reserve covers what the next checkpoint may add to the database, and some bytes for each unfinished job.
- Below `Disk.refused_below` bytes of free space pushes are refused, and the reserve is used bit by bit.
- When that lasts, or too little is left even for work in progress, finished jobs and old events are removed
  before their time, the oldest first: new rows use their pages, as the file does not shrink. With enough of
  these pages and free space, pushes are accepted again.
- A file that is mostly free pages is rewritten.
- SQLite does not report when its own checkpoint fails. The WAL shows it, as it grows beyond the length at
  which it is copied: then a checkpoint is made here, which reports the error.
- With less free space than ROOMY, checkpoints come early: then the WAL is short, and the next checkpoint adds
  little.

A reader that keeps a transaction open keeps the WAL from being reset. It grows, and above the limit pushes
are refused until the reader is gone.
"""

from __future__ import annotations

import os
import time

from shardproc.engine.memory.vitals import MB, Disk

from .compaction import LITTLE, compact
from .database import CHECKPOINT_PAGES, PAGE_SIZE, Database
from .reserve import STEP, Reserve

MEASURE_S = 0.05  # between two checks: a shard writes some 50 MB/s at most, so less than 5 MB
TIGHT_MEASURE_S = 0.005  # the same, with little space
ROOMY = 512 * MB  # free space for each shard at which saving space is unnecessary
TIGHT_PAGES = 256  # of WAL from one checkpoint to the next, with little space: 2 MB
LONG_WAL = 8 * MB  # with little space, a longer one is cut
SPENT_WAL = MB  # the same with hardly any: its space may be all that is missing
READ_WAL = 128 * MB  # only a reader can make it this long: it is cut as soon as that is possible
RETRY_S = 1.0  # between two attempts to cut it
OVERDUE = 5 / 4  # of the length at which SQLite makes a checkpoint, or of one that was found to be no failure

BASE = 4 * MB  # of the reserve: a WAL between two checkpoints, and a batch
JOB = 512  # bytes for each unfinished job: its row when it has ended, and its events
MOST_FOR_JOBS = 256 * MB  # half a million jobs; for more, finished jobs are deleted
SHARE = 16  # pushes are refused below this part of the disk,
LEAST_FREE, MOST_FREE = 3 * MB, 64 * MB  # but for each shard within these bounds
WARNED = 3  # factor for the warning
AGAIN = 5 / 4  # factor on the bounds before pushes are accepted again, so the state does not flap
PRESSED = 3 * MB  # with less than this in all, finished jobs are deleted at once,
PATIENCE_S = 10.0  # and with more after pushes have been refused this long, as it may pass on its own
SPARE = 8 * MB  # a surplus of the reserve is returned from this size: less would soon be taken again,
TIGHT_SPARE = MB  # but with little space other shards may need it
SLACK = 3 * MB  # taken from the reserve per shard while pushes are refused: all shards write at once
DEFAULT_WAL_LIMIT = 1024 * MB


class DiskSpace:
    """Measures the space of one shard, and frees some before it runs out."""

    def __init__(self, database: Database, reserve: Reserve, shards: int, wal_limit: int) -> None:
        self._database = database
        self._reserve = reserve
        self._folder = os.path.dirname(database.path) or "."
        self._shards = shards
        self._wal_limit = wal_limit
        self.tight = False  # space has to be saved
        self._short_since = 0.0  # since when there has not been enough, monotonic
        self._explained = 0  # bytes of WAL that are no failure: checkpoints worked at this length
        self._check_at = 0.0  # when a checkpoint may be tried again, monotonic
        self._cut_at = 0.0  # when the WAL may be cut again, monotonic
        self._bound = 0  # bytes of free space for each shard
        self._unused = 0  # bytes of free pages in the database
        self.next_at = 0.0  # when the next check is due, monotonic
        self.disk = Disk()  # as of the last check

    def measure(self, live: int, *, refusing: bool) -> Disk:
        """Measure the space now. ``live``: the number of unfinished jobs; ``refusing``: pushes are refused
        already."""
        try:
            return self._measure(live, refusing)
        except FileNotFoundError:  # the data was deleted: `file_watch` handles that
            self.next_at = time.monotonic() + MEASURE_S
            return self.disk

    def _measure(self, live: int, refusing: bool) -> Disk:
        found = os.statvfs(self._folder)
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        self._adapt(free)
        wal, owed = self._shorten(free, refusing)
        self._try_checkpoint(wal)
        self._unused = self._database.unused()
        self._bound = min(MOST_FREE, max(LEAST_FREE, total // (SHARE * self._shards)))
        needed = BASE + owed + max(0, min(MOST_FOR_JOBS, live * JOB) - self._unused // 2)
        missing = max(0, needed - self._reserve.size)
        bound, factor = self._bound * self._shards, AGAIN if refusing else 1
        left = max(0, free - missing)
        for_wal = LEAST_FREE * self._shards  # it grows even when the database need not
        enough = left >= bound * factor or (left >= for_wal and self._has_unused(factor, left))
        bound += missing
        if enough:
            enough = self._reserve.ensure(needed, TIGHT_SPARE if self.tight else SPARE)
        elif refusing and free < SLACK * self._shards and self._reserve.size:
            self._reserve.give(SLACK)
        now = time.monotonic()
        if enough or self.disk.enough:
            self._short_since = now
        self.disk = Disk(
            free=free,
            refused_below=bound,
            warned_below=(WARNED - 1) * self._bound * self._shards + bound,
            reserve=self._reserve.size,
            wal=wal,
            wal_limit=self._wal_limit,
            enough=enough,
            wal_too_long=wal > self._wal_limit // (2 if self.disk.wal_too_long else 1),
            checkpoint_failures=self._database.checkpoint_failures,
            checkpoint_error=self._database.checkpoint_error,
        )
        self.next_at = now + (TIGHT_MEASURE_S if self.tight else MEASURE_S)
        return self.disk

    @property
    def is_pressed(self) -> bool:
        """Whether finished jobs have to be removed to make room."""
        disk = self.disk
        if disk.enough or (disk.free >= 2 * LEAST_FREE * self._shards and self._has_unused(AGAIN, 0)):
            return False
        left = disk.free + disk.reserve + self._unused
        return left < PRESSED or time.monotonic() - self._short_since > PATIENCE_S

    def _has_unused(self, factor: float, free: int) -> bool:
        """Whether the free pages of the database give enough room, together with this shard's part of
        ``free`` bytes of the disk. Half of the pages are kept for the present jobs."""
        return free // self._shards + self._unused // 2 >= self._bound * factor

    def relieve(self) -> None:
        """The disk is full in the middle of a batch: have the WAL reset, with the space of the reserve."""
        self._reserve.give(max(self._database.owed() + STEP, self._reserve.size // 2))
        if not self._database.checkpoint("restart"):
            self._reserve.release()
            self._database.checkpoint("restart")

    def shrink(self) -> None:
        """Have the file return its free pages to the disk, if little is left in it."""
        if compact(self._database, LITTLE, 0):
            self._database.checkpoint("truncate")

    def _try_checkpoint(self, wal: int) -> None:
        """Check whether checkpoints fail, if the length of the WAL suggests it."""
        database, now = self._database, time.monotonic()
        due = max(database.checkpoint_pages * PAGE_SIZE, self._explained) * OVERDUE
        if (wal <= due and not database.checkpoint_error) or now < self._check_at:
            return
        self._check_at = now + RETRY_S
        database.checkpoint("passive")
        if not database.checkpoint_error:
            self._explained = wal

    def _adapt(self, free: int) -> None:
        tight = free < self._shards * ROOMY * (AGAIN if self.tight else 1)
        if tight != self.tight:
            self.tight = tight
            self._database.checkpoint_every(TIGHT_PAGES if tight else CHECKPOINT_PAGES)

    def _shorten(self, free: int, refusing: bool) -> tuple[int, int]:
        """Cut a WAL that is too long, if no reader needs it. Returns its length, and what its next checkpoint
        adds to the database."""
        wal, owed = self._database.wal_size(), self._database.owed()
        now = time.monotonic()
        scarce = refusing or free < WARNED * self._bound * self._shards
        most = SPENT_WAL if scarce else LONG_WAL if self.tight else READ_WAL
        long = wal > most or self.disk.wal_too_long
        if not long or now < self._cut_at:
            return wal, owed
        if owed > free:
            self._reserve.give(owed - free + STEP)
        self._database.checkpoint("truncate")
        self._cut_at = now + RETRY_S
        return self._database.wal_size(), self._database.owed()
