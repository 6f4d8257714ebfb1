"""Snapshots of shards: made from a file, kept at a place, listed in the store, and made a file again."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bunqueue.data_folder import private, sync
from bunqueue.spark.read.shard_file import opened

from .database import connected
from .places import CHUNK, PlaceError, place_of

LEVEL = 1  # of compression: a third of the time of the default, and 10 % more bytes
GZIP = 31  # zlib's number for that format
KEPT = 2  # of each shard: the one before, in case the newest cannot be read
APPLIED = "select value from meta where key = 'applied'"


class Snapshot(NamedTuple):
    """One that is listed in the store."""

    shard: int
    seq: int
    place: str
    bytes: int


def make(url: str, shard: int, file: Path, where: str) -> Snapshot:
    """Make one of a shard's file, which a shard may be writing to meanwhile, and list it.

    StoreError when that fails; then nothing is listed."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".snapshot-") as folder:
        copy = Path(folder) / file.name
        with opened(file) as source:
            source.copy_to(copy)
        return keep(url, shard, copy, where)


def keep(url: str, shard: int, copy: Path, where: str) -> Snapshot:
    """Keep a file that nobody writes to as a snapshot, and list it."""
    seq = position_of(copy)
    size = place_of(where, url).write(shard, seq, compressed(copy))
    made = Snapshot(shard, seq, where, size)
    with connected(url) as connection:
        _list(connection, made)
        _forget_old(connection, url, shard)
    return made


def position_of(file: Path) -> int:
    """The position of the last record that a file at rest holds."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        row = connection.execute(APPLIED).fetchone()
    finally:
        connection.close()
    return 0 if row is None else int(row[0])


def compressed(file: Path) -> Iterator[bytes]:
    """A file as a gzip stream, in chunks."""
    packer = zlib.compressobj(LEVEL, wbits=GZIP)
    pending: list[bytes] = []
    size = 0
    with open(file, "rb") as source:
        while part := source.read(1 << 20):
            pending.append(packer.compress(part))
            size += len(pending[-1])
            if size >= CHUNK:
                yield b"".join(pending)
                pending, size = [], 0
    yield b"".join([*pending, packer.flush()])


def restore(snapshot: Snapshot, url: str, target: Path, prepare: Callable[[Path], None]) -> None:
    """Put the file of a snapshot in the place of ``target``, whole or not at all.  StoreError if it cannot be
    read.  ``prepare`` is called with the new file before it takes its place."""
    new = target.with_name(f".{target.name}.new")
    new.unlink(missing_ok=True)
    chunks = place_of(snapshot.place, url).read(snapshot.shard, snapshot.seq)
    with open(new, "wb", opener=private) as file:
        for part in expanded(chunks, snapshot):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    prepare(new)
    for suffix in ("-wal", "-shm"):  # of the old file, which is older than the snapshot
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    new.replace(target)
    sync(target.parent)


def expanded(chunks: Iterable[bytes], snapshot: Snapshot) -> Iterator[bytes]:
    """The file's bytes of a gzip stream; PlaceError if it is damaged or ends too soon."""
    unpacker = zlib.decompressobj(wbits=GZIP)
    where = f"the snapshot of shard {snapshot.shard} at position {snapshot.seq}"
    try:
        for chunk in chunks:
            yield unpacker.decompress(chunk)
        yield unpacker.flush()
    except zlib.error as error:
        raise PlaceError(f"{where} is damaged: {error}") from error
    if not unpacker.eof:
        raise PlaceError(f"{where} is not whole")


def newest(connection: Any, shard: int) -> list[Snapshot]:
    """Those of a shard, the newest first."""
    query = "select shard, seq, place, bytes from bunqueue.snapshots where shard = %s order by seq desc"
    return [Snapshot(*row) for row in connection.execute(query, (shard,))]


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
