"""Makes a snapshot of the shard's file whenever its log has become long, and trims the log after it.

A thread of its own: it copies the file as any reader does, compresses it and keeps it, and the shard goes on
meanwhile.  A snapshot holds only what is committed to the file, and that is in the log, so one that is made
by a process that has lost its shard is as good as any.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from bunqueue.logs import get_logger
from bunqueue.spark.errors import NoRoom, UnreadableShard
from bunqueue.store import partitions, snapshots
from bunqueue.store.database import StoreError, connected

LEAST = 16 << 20  # bytes of log: less is read quickly enough
PART = 0.5  # of the last snapshot: a start reads at most that much besides
AGAIN_S = 60.0  # after a failure

_log = get_logger("shard")


class SnapshotMaker:
    """Of one shard.  Call `look` now and then with how many bytes the log has become longer."""

    def __init__(self, url: str, shard: int, file: Path, where: str, log_bytes: int, size: int) -> None:
        """``log_bytes``: of the log since the last snapshot; ``size``: bytes of that one."""
        self._url, self._shard, self._file, self._where = url, shard, file, where
        self._since = log_bytes
        self._size = size
        self._counted = 0
        self._thread: threading.Thread | None = None
        self._not_before = 0.0

    def look(self, appended: int) -> None:
        """``appended``: bytes that this process has appended so far."""
        due = self._since + appended - self._counted > max(LEAST, PART * self._size)
        if not due or time.monotonic() < self._not_before:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._make, args=(appended,), name="bunqueue-snapshot", daemon=True
            )
            self._thread.start()

    def _make(self, appended: int) -> None:
        begun = time.monotonic()
        self._not_before = begun + AGAIN_S
        try:
            made = snapshots.make(self._url, self._shard, self._file, self._where)
            self._since, self._counted = 0, appended
            self._not_before = 0.0
            if made is not None:  # else somebody else has made one
                self._size = made.bytes
                took = int((time.monotonic() - begun) * 1000)
                _log.info("made a snapshot", position=made.seq, bytes=made.bytes, took_ms=took)
            if dropped := partitions.look_after(self._url):
                _log.info("trimmed the log", partitions=dropped)
        except (StoreError, UnreadableShard, NoRoom, OSError, sqlite3.Error) as error:
            _log.warning("no snapshot could be made; tried again in a minute", error=str(error))


def maker(url: str, shard: int, file: Path, where: str) -> SnapshotMaker:
    """One that knows how long the log of a shard is.  Raises StoreError."""
    snapshots.remove_copies(file)
    query = "select coalesce(sum(length(body)), 0) from bunqueue.log where shard = %s and seq > %s"
    with connected(url) as connection:
        found = snapshots.newest(connection, shard)
        last = found[0] if found else snapshots.Snapshot(shard, 0, where, 0)
        ((size,),) = connection.execute(query, (shard, last.seq)).fetchall()
    return SnapshotMaker(url, shard, file, where, int(size), last.bytes)
