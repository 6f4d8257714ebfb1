"""`bunqueue store verify`: checks that the store's snapshots and log make the file that the data folder has.

For each shard a file is built in a scratch folder: from the whole log if it exists, else from the earliest
snapshot that the log continues. At the position of each later snapshot, and of the folder's file, both are
compared, table by table; then the rest of the log is read. A server may run at the same time.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from bunqueue.cli.output.output import Column, Kind
from bunqueue.server.folder.data_folder import NAME, read_manifest, shard_file
from bunqueue.store import snapshots
from bunqueue.store.database import Store, StoreError, connected, read
from bunqueue.store.places import PlaceError
from bunqueue.store.snapshots import Snapshot
from shardproc.replication import replay
from shardproc.replication.errors import LogDamaged
from shardproc.replication.owner import Entry
from shardproc.replication.record import RecordDamaged, RecordTooNew

from .progress import Progress

READ = 500  # records at a time
NOTHING = "the log does not begin at position 1, and there is no snapshot"
OK, PROBLEM = "ok", "problem"
LAST = 2**62  # no log is that long
TRIES = 3  # for when the log is trimmed during the check
COLUMNS = (
    Column("shard", Kind.NUMBER),
    Column("status", Kind.STATE),
    Column("position", Kind.NUMBER),
    Column("begun", Kind.NUMBER, "begun at"),
    Column("records", Kind.NUMBER, "records read"),
    Column("compared", Kind.TEXT, "compared at"),
    Column("problems", Kind.PROSE),
)


Other = Snapshot | Path  # the file of a snapshot, or a copy of the folder's


class Verified(Struct):
    """The result for a shard. ``begun`` is the position of the snapshot that its file was built from, 0 if it
    was built from the whole log; ``compared`` are the positions at which another file was compared."""

    shard: int
    status: str = OK
    position: int = 0  # up to which the log was read
    begun: int = 0
    records: int = 0
    compared: list[int] = []
    problems: list[str] = []


class _Trimmed(Exception):
    """The log no longer has the next record."""


def verify(url: str, folder: Path, shard: int | None, report: Progress) -> Iterator[Verified]:
    """The result for each shard, or for one. StoreError if the store does not answer."""
    with connected(url) as connection:
        store = read(connection)
    if shard is not None and not 0 <= shard < store.shards:
        last = store.shards - 1
        raise StoreError(f"the store has {store.shards} shards, from 0 to {last}; there is no {shard}")
    has_files = _belongs(folder, store)
    for number in range(store.shards) if shard is None else [shard]:
        with tempfile.TemporaryDirectory(dir=folder if has_files else None, prefix=".verify-") as scratch:
            file = shard_file(folder, number) if has_files else None
            found = _Shard(url, number, store.shards, file, Path(scratch), report).verified()
            found.status = PROBLEM if found.problems else OK
            yield found


def _belongs(folder: Path, store: Store) -> bool:
    """Whether the folder has copies of this store's shards."""
    return (folder / NAME).exists() and read_manifest(folder).store == store.id


class _Shard:
    def __init__(
        self, url: str, shard: int, shards: int, file: Path | None, scratch: Path, report: Progress
    ) -> None:
        self._url, self._shard = url, shard
        self._file, self._scratch, self._report = file, scratch, report
        self._name = f"shard {shard} of {shards}"
        self._built = scratch / "built.db"

    def verified(self) -> Verified:
        if self._file is None or not self._file.exists():
            return self._tried(None)
        with snapshots.copied(self._file, self._scratch) as copy:
            return self._tried(copy)

    def _tried(self, copy: Path | None) -> Verified:
        for _ in range(TRIES):
            found = Verified(self._shard, compared=[], problems=[])
            try:
                with connected(self._url) as connection:
                    self._verify(connection, copy, found)
            except _Trimmed:
                continue
            except (PlaceError, LogDamaged, RecordDamaged, RecordTooNew, sqlite3.Error) as error:
                found.problems.append(str(error))
            return found
        return Verified(self._shard, problems=["the log was trimmed each time while it was read: try again"])

    def _verify(self, connection: Any, copy: Path | None, found: Verified) -> None:
        known = sorted(snapshots.newest(connection, self._shard), key=lambda snapshot: snapshot.seq)
        found.begun = found.position = self._begin(known)
        with closing(_opened(self._built)) as built:
            for position, what in self._others(known, found.begun, copy):
                if position < found.begun:
                    found.problems.append(_too_old(position, found.begun))
                    continue
                self._apply(connection, built, position, found)
                if found.position < position:
                    found.problems.append(
                        f"{_called(what)} holds {position}, and the log ends at {found.position}"
                    )
                    return
                self._compare(built, what, found)
            self._apply(connection, built, LAST, found)

    def _begin(self, known: list[Snapshot]) -> int:
        """Build the file that the log is applied to; returns its position."""
        self._built.unlink(missing_ok=True)
        if snapshots.is_whole_log(self._url, self._shard, 0):
            return 0
        for snapshot in known:
            if snapshots.is_whole_log(self._url, self._shard, snapshot.seq):
                self._restore(snapshot, self._built)
                return snapshot.seq
        raise LogDamaged("records are missing after the newest snapshot" if known else NOTHING)

    def _others(self, known: list[Snapshot], begun: int, copy: Path | None) -> list[tuple[int, Other]]:
        """What to compare, and at which position."""
        found: list[tuple[int, Other]] = [(one.seq, one) for one in known if one.seq > begun]
        if copy is not None:
            found.append((snapshots.position_of(copy), copy))
        return sorted(found, key=lambda other: other[0])

    def _compare(self, built: sqlite3.Connection, what: Other, found: Verified) -> None:
        self._report(f"{self._name}: comparing {_called(what)} at position {found.position:,}")
        file = what if isinstance(what, Path) else self._scratch / "other.db"
        if isinstance(what, Snapshot):
            self._restore(what, file)
        with closing(_opened(file)) as other:
            differences = replay.differences(other, built)
        found.compared.append(found.position)
        found.problems += [f"{_called(what)} at {found.position}: {difference}" for difference in differences]

    def _restore(self, snapshot: Snapshot, target: Path) -> None:
        self._report(f"{self._name}: reading the snapshot at position {snapshot.seq:,}")
        try:
            snapshots.restore(snapshot, self._url, target, prepare=lambda new: None)
        except PlaceError:
            if not snapshots.is_listed(self._url, snapshot):  # newer ones have replaced it
                raise _Trimmed from None
            raise
        with closing(_opened(target)) as file:
            if (held := replay.applied(file)) != snapshot.seq:
                raise PlaceError(f"the snapshot at position {snapshot.seq} holds position {held}")
            if (problem := file.execute("pragma quick_check(1)").fetchone()[0]) != "ok":
                raise PlaceError(f"the snapshot at position {snapshot.seq} is damaged: {problem}")

    def _apply(self, connection: Any, built: sqlite3.Connection, until: int, found: Verified) -> None:
        query = (
            "select seq, epoch, body from bunqueue.log where shard = %s and seq > %s and seq <= %s "
            "order by seq limit %s"
        )
        while True:
            rows = connection.execute(query, (self._shard, found.position, until, READ), binary=True)
            if not (entries := [Entry(*row) for row in rows]):
                return
            self._check(connection, found.position, entries)
            replay.apply(built, entries)
            found.position, found.records = entries[-1].position, found.records + len(entries)
            self._report(f"{self._name}: {found.records:,} records read, up to position {found.position:,}")

    def _check(self, connection: Any, position: int, entries: list[Entry]) -> None:
        for expected, entry in enumerate(entries, position + 1):
            if entry.position == expected:
                continue
            query = "select snapshot_seq from bunqueue.shards where id = %s"
            if connection.execute(query, (self._shard,)).fetchone()[0] >= expected:
                raise _Trimmed
            raise LogDamaged(f"position {expected} is missing: {entry.position} came instead")


def _called(what: Other) -> str:
    return "the folder's file" if isinstance(what, Path) else "the snapshot"


def _too_old(position: int, begun: int) -> str:
    return (
        f"the folder's file is at position {position}, and the log goes back to {begun} only: start its "
        "server, which then reads a snapshot, or remove the file"
    )


def _opened(file: Path) -> sqlite3.Connection:
    """Open a temporary file, which a crash may lose."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute("pragma journal_mode = memory")
    return connection
