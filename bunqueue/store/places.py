"""Where snapshots are kept: in the database itself, in a folder, or in a bucket of S3.

A snapshot is the shard's SQLite file as a gzip stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from bunqueue.backup.targets import TargetError, target_of

from .database import StoreError, connected

IN_DATABASE = ""
NEVER = 0  # a position that no snapshot has


class PlaceError(StoreError):
    """A snapshot cannot be written to a place, or read from it."""


class Place(Protocol):
    """Keeps snapshots by shard and position."""

    def write(self, shard: int, seq: int, chunks: Iterable[bytes]) -> int:
        """Store a snapshot atomically; return its size in bytes.  An existing one is replaced."""

    def read(self, shard: int, seq: int) -> Iterator[bytes]:
        """Read a snapshot's bytes, piece by piece."""

    def remove(self, shard: int, seq: int) -> None:
        """Remove a snapshot, if it exists."""


def place_of(where: str, url: str) -> Place:
    """The place that a setting names: "" for the store at ``url``, an absolute folder, or s3://bucket/prefix.
    PlaceError for anything else."""
    if where == IN_DATABASE:
        return InDatabase(url)
    return InTarget(where)


def probe(where: str, url: str) -> None:
    """Raise PlaceError if snapshots cannot be written there and read back.  The store itself is not tried."""
    if where == IN_DATABASE:
        return
    place, probe = place_of(where, url), b"bunqueue store check"
    place.write(0, NEVER, [probe])
    try:
        if b"".join(place.read(0, NEVER)) != probe:
            raise PlaceError(f"store_snapshots: {where!r} gives other bytes back than it was given")
    finally:
        place.remove(0, NEVER)


def _name(shard: int, seq: int) -> str:
    return f"shard-{shard:02}.{seq:020}.db.gz"


class InDatabase:
    """Keeps snapshots in the table ``snapshot_chunks`` of the store."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, shard: int, seq: int, chunks: Iterable[bytes]) -> int:
        size = 0
        insert = "insert into bunqueue.snapshot_chunks (shard, seq, number, body) values (%s, %s, %s, %s)"
        with connected(self._url) as connection, connection.transaction():
            self._delete(connection, shard, seq)
            for number, chunk in enumerate(chunks):
                connection.execute(insert, (shard, seq, number, chunk), binary=True)
                size += len(chunk)
        return size

    def read(self, shard: int, seq: int) -> Iterator[bytes]:
        query = "select body from bunqueue.snapshot_chunks where (shard, seq, number) = (%s, %s, %s)"
        number = 0
        with connected(self._url) as connection:
            while row := connection.execute(query, (shard, seq, number), binary=True).fetchone():
                yield row[0]
                number += 1
        if not number:
            raise PlaceError(f"the store has no snapshot of shard {shard} at position {seq}")

    def remove(self, shard: int, seq: int) -> None:
        with connected(self._url) as connection:
            self._delete(connection, shard, seq)

    def _delete(self, connection: Any, shard: int, seq: int) -> None:
        connection.execute("delete from bunqueue.snapshot_chunks where (shard, seq) = (%s, %s)", (shard, seq))


class InTarget:
    """Keeps snapshots in a folder, or in a bucket. All hosts must be able to reach it; a folder should be on
    a disk of its own."""

    def __init__(self, where: str) -> None:
        try:
            self._target = target_of(where)
        except TargetError as error:
            raise PlaceError(f"store_snapshots: {where!r}: {error}") from error

    def write(self, shard: int, seq: int, chunks: Iterable[bytes]) -> int:
        with _explaining():
            return self._target.write(_name(shard, seq), chunks)

    def read(self, shard: int, seq: int) -> Iterator[bytes]:
        with _explaining():
            yield from self._target.read(_name(shard, seq))

    def remove(self, shard: int, seq: int) -> None:
        with _explaining():
            self._target.remove(_name(shard, seq))


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except TargetError as error:
        raise PlaceError(f"the snapshots' place {error}") from error
