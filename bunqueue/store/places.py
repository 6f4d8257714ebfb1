"""Where snapshots are kept: in the database itself, in a folder, or in a bucket of S3.

A snapshot is the shard's SQLite file as a gzip stream.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .database import StoreError, connected

CHUNK = 4 << 20  # bytes of a snapshot in memory at once
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
    if where.startswith("s3://"):
        return InBucket(where)
    if os.path.isabs(where):
        return InFolder(Path(where))
    raise PlaceError(f"store_snapshots: {where!r} is neither an absolute path nor s3://bucket/prefix")


def probe(where: str, url: str) -> None:
    """Raise PlaceError if snapshots cannot be written there and read back.  The store itself is not tried."""
    if where == IN_DATABASE:
        return
    place, said = place_of(where, url), b"bunqueue store check"
    place.write(0, NEVER, [said])
    try:
        if b"".join(place.read(0, NEVER)) != said:
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


class InFolder:
    """Keeps snapshots in files.  All hosts must be able to reach the folder; it should be on its own disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, shard: int, seq: int, chunks: Iterable[bytes]) -> int:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            size = 0
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                try:
                    for chunk in chunks:
                        size += file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(file.name, self._folder / _name(shard, seq))
                except BaseException:
                    os.unlink(file.name)
                    raise
            self._sync()
            return size
        except OSError as error:
            raise PlaceError(f"the snapshots' folder {self._folder}: {error.strerror or error}") from error

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, shard: int, seq: int) -> Iterator[bytes]:
        try:
            with open(self._folder / _name(shard, seq), "rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise PlaceError(f"the snapshots' folder {self._folder}: {error.strerror or error}") from error

    def remove(self, shard: int, seq: int) -> None:
        (self._folder / _name(shard, seq)).unlink(missing_ok=True)


class InBucket:
    """Keeps snapshots in a bucket of S3, or of a compatible service.  Keys, region and endpoint come from the
    usual variables (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL ...) or from the machine's role."""

    def __init__(self, where: str) -> None:
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise PlaceError("snapshots in S3 need obstore: pip install 'bunqueue[s3]'") from None
        self._where = where
        try:
            self._bucket = S3Store.from_url(where)
        except BaseError as error:
            raise PlaceError(f"store_snapshots: {where!r}: {_first_line(error)}") from error

    def write(self, shard: int, seq: int, chunks: Iterable[bytes]) -> int:
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                size += len(chunk)
                yield chunk

        with self._explaining():
            self._bucket.put(_name(shard, seq), counted())
        return size

    def read(self, shard: int, seq: int) -> Iterator[bytes]:
        with self._explaining():
            for chunk in self._bucket.get(_name(shard, seq)).stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def remove(self, shard: int, seq: int) -> None:
        with self._explaining():
            self._bucket.delete(_name(shard, seq))

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except BaseError as error:
            raise PlaceError(f"the snapshots' bucket {self._where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
