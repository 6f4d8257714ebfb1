"""Snapshots of shards: made from a file, kept at a place, listed in the store, and restored to a file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bunqueue.backup.gzipped import packed, unpacked
from bunqueue.backup.sealing import Damaged
from bunqueue.server.folder.data_folder import private, sync
from bunqueue.server.folder.shard_file import opened

from .database import StoreError, connected
from .places import PlaceError, place_of

KEPT = 2  # snapshots per shard: the newest, and the one before it in case the newest cannot be read
COPY = ".copy-of-"  # prefix of the folders with copies from which snapshots are made
APPLIED = "select value from meta where key = 'applied'"


class Snapshot(NamedTuple):
    """A snapshot, as the store lists it."""

    shard: int
    seq: int
    place: str
    bytes: int


class NotWritten(StoreError):
    """The disk has no room for a snapshot's file, or fails."""


class NotInLog(StoreError):
    """A file holds more than the log: it belongs to another store, or the log has lost records."""


def make(url: str, shard: int, file: Path, where: str) -> Snapshot | None:
    """Make a snapshot of a shard's file, to which the shard may be writing, and list it.  If the newest
    snapshot already holds as much, make nothing and return None.

    StoreError if that fails; then nothing is listed."""
    with copied(file) as copy:
        seq = position_of(copy)
        with connected(url) as connection:
            if seq <= _newest_position(connection, shard):
                return None
            _check_in_log(connection, shard, seq)
        made = keep(url, shard, seq, copy, where)
        with connected(url) as connection:
            _list(connection, made)
            _forget_old(connection, url, shard)
        return made


@contextmanager
def copied(file: Path, folder: Path | None = None) -> Iterator[Path]:
    """A copy of a shard's file as it is at one moment, while the shard may be writing to it.  The copy is in
    ``folder``, by default the file's own folder."""
    prefix = f"{COPY}{file.stem}-"
    with tempfile.TemporaryDirectory(dir=folder or file.parent, prefix=prefix) as made:
        copy = Path(made) / file.name
        with opened(file) as source:
            source.copy_to(copy)
        yield copy


def remove_copies(file: Path) -> None:
    """Remove copies of a shard's file that a killed process has left behind."""
    for left in file.parent.glob(f"{COPY}{file.stem}-*"):
        shutil.rmtree(left, ignore_errors=True)


def keep(
    url: str, shard: int, seq: int, copy: Path, where: str, on_read: Callable[[int], None] = lambda size: None
) -> Snapshot:
    """Store a file as a snapshot, without listing it.  No process may be writing to the file.  ``on_read`` is
    called with the number of bytes in each piece that was read."""
    size = place_of(where, url).write(shard, seq, packed(copy, on_read))
    return Snapshot(shard, seq, where, size)


def position_of(file: Path) -> int:
    """The position of the last record in a file that no process is writing to."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        row = connection.execute(APPLIED).fetchone()
    finally:
        connection.close()
    return 0 if row is None else int(row[0])


def restore(snapshot: Snapshot, url: str, target: Path, prepare: Callable[[Path], None]) -> None:
    """Replace ``target`` with the file of a snapshot, atomically.  StoreError if the snapshot cannot be read,
    NotWritten if the file cannot be written.  ``prepare`` is called with the new file before it replaces
    ``target``."""
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    chunks = place_of(snapshot.place, url).read(snapshot.shard, snapshot.seq)
    try:
        with open(new, "wb", opener=private) as file:
            for part in expanded(chunks, snapshot):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        prepare(new)
    except BaseException as error:
        new.unlink(missing_ok=True)  # this file may be what fills the disk
        if isinstance(error, OSError):
            raise NotWritten(
                f"the snapshot of shard {snapshot.shard} cannot be written to {target.parent}: {error}"
            ) from error
        raise
    for suffix in ("-wal", "-shm"):  # belong to the old file, which is older than the snapshot
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    new.replace(target)
    sync(target.parent)


def expanded(chunks: Iterable[bytes], snapshot: Snapshot) -> Iterator[bytes]:
    """Decompress a snapshot; PlaceError if it is damaged or ends too soon."""
    try:
        yield from unpacked(chunks, f"the snapshot of shard {snapshot.shard} at position {snapshot.seq}")
    except Damaged as error:
        raise PlaceError(str(error)) from error


def listed(url: str, shard: int) -> Snapshot | None:
    """The newest snapshot of a shard."""
    with connected(url) as connection:
        return next(iter(newest(connection, shard)), None)


def is_listed(url: str, snapshot: Snapshot) -> bool:
    """Whether a snapshot is still listed."""
    with connected(url) as connection:
        return snapshot in newest(connection, snapshot.shard)


def newest(connection: Any, shard: int) -> list[Snapshot]:
    """The snapshots of a shard, newest first."""
    query = "select shard, seq, place, bytes from bunqueue.snapshots where shard = %s order by seq desc"
    return [Snapshot(*row) for row in connection.execute(query, (shard,))]


def is_whole_log(url: str, shard: int, position: int) -> bool:
    """Whether the log has every record after a position."""
    query = "select min(seq) from bunqueue.log where shard = %s and seq > %s"
    with connected(url) as connection:
        (first,) = _row(connection.execute(query, (shard, position)).fetchone())
        if first is not None:
            return bool(first == position + 1)
        return _newest_position(connection, shard) <= position


def _row(row: Any) -> Any:
    """The row of a query that returns exactly one."""
    assert row is not None
    return row


def _newest_position(connection: Any, shard: int) -> int:
    query = "select snapshot_seq from bunqueue.shards where id = %s"
    row = connection.execute(query, (shard,)).fetchone()
    if row is None:
        raise StoreError(f"the store has no shard {shard}")
    return int(row[0])


def _check_in_log(connection: Any, shard: int, seq: int) -> None:
    query = "select coalesce(max(seq), 0) from bunqueue.log where shard = %s"
    (last,) = connection.execute(query, (shard,)).fetchone()
    if seq > last:
        raise NotInLog(
            f"shard {shard}: the file holds position {seq}, and the log ends at {last}; "
            "docs/store.md says what to do"
        )


def _list(connection: Any, made: Snapshot) -> None:
    with connection.transaction():
        connection.execute(
            "insert into bunqueue.snapshots (shard, seq, place, bytes) values (%s, %s, %s, %s) on conflict "
            "(shard, seq) do update set place = excluded.place, bytes = excluded.bytes, made_at = now()",
            made,
        )
        connection.execute(
            "update bunqueue.shards set snapshot_seq = greatest(snapshot_seq, %s) where id = %s",
            (made.seq, made.shard),
        )


def _forget_old(connection: Any, url: str, shard: int) -> None:
    for old in newest(connection, shard)[KEPT:]:
        connection.execute("delete from bunqueue.snapshots where (shard, seq) = (%s, %s)", (shard, old.seq))
        place_of(old.place, url).remove(shard, old.seq)
