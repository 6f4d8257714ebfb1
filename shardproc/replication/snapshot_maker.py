"""Makes a snapshot of the shard's file whenever its log has become long, and trims the log after it.

It runs in a thread of its own, which copies the file as any reader does, compresses it and stores it, while
the shard keeps serving. A snapshot contains only what is committed to the file, and that is in the log, so
one made by a process that has lost its shard is as good as any.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

from bunqueue.logs import get_logger
from bunqueue.server.folder.unreadable import NoRoom, UnreadableShard
from bunqueue.store import partitions, snapshots
from bunqueue.store.database import StoreError, connected

LEAST = 16 << 20  # bytes of log: less is read quickly enough
PART = 0.5  # of the last snapshot: the most log that a start reads after it
AGAIN_S = 60.0  # after a failure

_log = get_logger("shard")


class SnapshotMaker:
    """The snapshots of one shard. Call `check` now and then with the bytes appended so far."""

    def __init__(self, url: str, shard: int, file: Path, where: str, patience: float = 1.0) -> None:
        """``patience``: factor on the allowed length of the log, if other hosts make snapshots as well."""
        self._url, self._shard, self._file, self._where = url, shard, file, where
        self._patience = patience
        snapshots.remove_copies(file)
        try:
            self._since, self._size = log_since_snapshot(url, shard)
        except StoreError:  # unavailable at this moment: enough to make the first `check` ask again
            self._since, self._size = int(patience * LEAST) + 1, 0
        self._counted = 0
        self._thread: threading.Thread | None = None
        self._not_before = 0.0

    def check(self, appended: int) -> None:
        """``appended``: bytes that this process has appended, or read, so far."""
        if not self._is_due(self._since + appended - self._counted) or time.monotonic() < self._not_before:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._check_store, args=(appended,), name="bunqueue-snapshot", daemon=True
            )
            self._thread.start()

    def _is_due(self, log_bytes: int) -> bool:
        return log_bytes > self._patience * max(LEAST, PART * self._size)

    def _check_store(self, appended: int) -> None:
        """Check the store, as others may have made a snapshot in the meantime, and make one if it is still
        due."""
        begun = time.monotonic()
        self._not_before = begun + AGAIN_S
        try:
            since, self._size = log_since_snapshot(self._url, self._shard)
            self._since, self._counted = since, appended
            if self._is_due(since):
                self._make(begun)
            self._not_before = 0.0
        except (StoreError, UnreadableShard, NoRoom, OSError, sqlite3.Error) as error:
            _log.warning("no snapshot could be made; tried again in a minute", error=str(error))

    def _make(self, begun: float) -> None:
        made = snapshots.make(self._url, self._shard, self._file, self._where)
        if made is not None:  # else another process has made one
            self._since, self._size = 0, made.bytes
            took = int((time.monotonic() - begun) * 1000)
            _log.info("made a snapshot", position=made.seq, bytes=made.bytes, took_ms=took)
        if dropped := partitions.maintain(self._url):
            _log.info("trimmed the log", partitions=dropped)


def log_since_snapshot(url: str, shard: int) -> tuple[int, int]:
    """The bytes of a shard's log since its newest snapshot, and the bytes of that snapshot. StoreError."""
    query = "select coalesce(sum(length(body)), 0) from bunqueue.log where shard = %s and seq > %s"
    with connected(url) as connection:
        found = snapshots.newest(connection, shard)
        seq, size = (found[0].seq, found[0].bytes) if found else (0, 0)
        ((since,),) = connection.execute(query, (shard, seq)).fetchall()
    return int(since), size
