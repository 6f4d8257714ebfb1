"""Follows the logs of shards that other hosts own, so their files here are up to date and ready for a
take-over.

One process follows all of them. It reads `Orders` as lines of JSON from its standard input, and writes a
`Report` after each poll of the store. It ends when its input ends.

A file that is no longer in the orders is closed before the report that omits it: after that a shard's process
may open it.
"""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bunqueue.logs import configure_logging, get_logger
from bunqueue.server.folder.data_folder import DataFolderError, shard_file
from bunqueue.server.host.process_arguments import name_process
from bunqueue.server.links.pipe_messages import FollowerStart, Orders, OwnerObservation, Report
from bunqueue.server.settings.settings import Settings
from bunqueue.store.answer_timeout import AnswerTimeout
from bunqueue.store.database import StoreError, connected
from shardproc.storage.database import Database, DatabaseBusy
from shardproc.storage.schema import WrongSchema

from . import replay
from .errors import LogDamaged
from .owner import Entry, seen_since
from .record import RecordDamaged, RecordTooNew
from .replicated_shard import set_aside
from .snapshot_maker import SnapshotMaker
from .start import bring_snapshot

POLL_S = 0.25  # between two polls of the store
AGAIN_S = 1.0  # while the store is unavailable
BATCH = 500  # records of a shard that are read at once
SHUT_OUT_S = 5.0  # before another try to follow a file after a failure

_SHARDS = "select id, epoch, owner, beat from bunqueue.shards where id = any(%s)"
_RECORDS = """
    select wanted.shard, found.seq, found.epoch, found.body
    from unnest(%s::int[], %s::bigint[]) as wanted (shard, seq)
    cross join lateral (
        select seq, epoch, body from bunqueue.log
        where log.shard = wanted.shard and log.seq > wanted.seq order by log.seq limit %s
    ) as found
    order by wanted.shard, found.seq
"""
_POSITIONS = """
    with locked as materialized (  -- in the order in which hosts change the placement
        select followers.shard, followers.host, said.seq
        from bunqueue.followers join unnest(%s::int[], %s::bigint[]) as said (shard, seq) using (shard)
        where followers.host = %s and followers.seq <> said.seq
        order by followers.shard for update of followers
    )
    update bunqueue.followers set seq = locked.seq
    from locked where followers.shard = locked.shard and followers.host = locked.host
"""

_log = get_logger("follower")


_decode_orders = msgspec.json.Decoder(Orders).decode
_encode = msgspec.json.Encoder().encode


@dataclass
class Followed:
    """One shard's file."""

    shard: int
    file: Path
    database: Database
    position: int
    heartbeat: tuple[str, int, int] | None = None  # token, epoch, heartbeat
    heartbeat_since: float = 0.0
    snapshots: SnapshotMaker | None = None
    applied: int = field(default=0)  # bytes


class Follower:
    """Follows the shards it is ordered to; call `catch_up` again and again."""

    def __init__(self, host: str, settings: Settings) -> None:
        self._host, self._settings = host, settings
        self._folder = Path(settings.data_dir)
        self.wanted: set[int] = set()
        self.order = 0  # the number of the order that says so
        self._open: dict[int, Followed] = {}
        self._not_before: dict[int, float] = {}
        self._connection: Any = None
        self._context: Any = None
        self._answer_timeout = AnswerTimeout()
        self._answered_at = time.monotonic()
        self._is_unavailable = False

    def catch_up(self) -> Report:
        """Close the files that are not wanted any more, open the wanted ones, and bring all up to date."""
        for shard in self._open.keys() - self.wanted:
            self._close(shard)
        try:
            self._connect()
            for shard in sorted(self.wanted - self._open.keys()):
                if time.monotonic() >= self._not_before.get(shard, 0.0):
                    self._begin(shard)
            more = True
            while more:
                more = self._read()
            self._see()
            self._answered_at = time.monotonic()
            self._is_unavailable = False
        except StoreError as error:
            self._disconnect()
            if not self._is_unavailable:
                _log.warning("the store is unavailable", error=str(error))
            self._is_unavailable = True
        return self._report()

    def close(self) -> None:
        for shard in list(self._open):
            self._close(shard)
        self._disconnect()

    # -- the store

    def _connect(self) -> None:
        if self._connection is None:
            self._context = connected(self._settings.store)
            self._connection = self._context.__enter__()

    def _disconnect(self) -> None:
        context, self._connection, self._context = self._context, None, None
        if context is not None:
            with suppress(Exception):
                context.__exit__(None, None, None)

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a query; returns rows. StoreError if the store does not answer."""
        import psycopg

        try:
            with self._answer_timeout.with_answer_of(self._connection):
                cursor = self._connection.execute(query, values, binary=True)
                return list(cursor.fetchall()) if cursor.description else []
        except psycopg.Error as error:
            raise StoreError(" ".join(str(error).split())) from error

    # -- files

    def _begin(self, shard: int) -> None:
        """Open a shard's file, with a snapshot in it if its log does not reach back far enough."""
        file = shard_file(self._folder, shard)
        try:
            bring_snapshot(self._connection, self._settings.store, file, shard)
            database = Database(str(file), full_sync=False, migrates=False, lock_wait_s=0.0)
        except (DatabaseBusy, DataFolderError, OSError, sqlite3.Error, StoreError, WrongSchema) as error:
            self._shut_out(shard, error)
            return
        self._open[shard] = Followed(shard, file, database, replay.applied(database.connection))
        self._not_before.pop(shard, None)

    def _shut_out(self, shard: int, error: Exception) -> None:
        self._not_before[shard] = time.monotonic() + SHUT_OUT_S
        _log.warning("a shard cannot be followed now", shard=shard, error=str(error))

    def _close(self, shard: int) -> None:
        followed = self._open.pop(shard)
        followed.database.close()

    def _read(self) -> bool:
        """Apply new records; returns whether there may be more."""
        shards = list(self._open)
        positions = [self._open[shard].position for shard in shards]
        found: dict[int, list[Entry]] = {}
        for shard, seq, epoch, body in self._ask(_RECORDS, shards, positions, BATCH):
            found.setdefault(shard, []).append(Entry(seq, epoch, body))
        for shard, entries in found.items():
            self._apply(self._open[shard], entries)
        return any(len(entries) == BATCH for entries in found.values())

    def _apply(self, followed: Followed, entries: list[Entry]) -> None:
        try:
            if entries[0].position != followed.position + 1:
                raise LogDamaged(f"position {followed.position + 1} is missing")
            replay.apply(followed.database.connection, entries)
        except (LogDamaged, RecordDamaged, RecordTooNew, sqlite3.Error) as error:
            self._close(followed.shard)
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                set_aside(followed.file)
            self._shut_out(followed.shard, error)
            return
        followed.position = entries[-1].position
        followed.applied += sum(len(entry.body) for entry in entries)
        if followed.database.presence is None and followed.position:
            followed.database.take_place()
        if followed.snapshots is None:
            settings = self._settings
            followed.snapshots = SnapshotMaker(
                settings.store, followed.shard, followed.file, settings.store_snapshots
            )
            followed.applied = 0
        followed.snapshots.check(followed.applied)

    # -- owners

    def _see(self) -> None:
        """Check the owners' heartbeats, and write the positions of the files."""
        asked = time.monotonic()
        found = self._ask(_SHARDS, list(self._open))
        now = time.monotonic()
        # While the store is unavailable or stalled, no owner can change its heartbeat.
        waited_s = now - (self._answered_at if self._is_unavailable else asked)
        for shard, epoch, owner, beat in found:
            followed = self._open[shard]
            followed.heartbeat_since = seen_since(followed.heartbeat_since, now, waited_s)
            if followed.heartbeat != (owner, epoch, beat):
                followed.heartbeat, followed.heartbeat_since = (owner, epoch, beat), now
        if self._open:
            positions = [followed.position for followed in self._open.values()]
            self._ask(_POSITIONS, list(self._open), positions, self._host)

    def _report(self) -> Report:
        now = time.monotonic()
        observed = [
            OwnerObservation(
                followed.shard,
                followed.position,
                *(followed.heartbeat or ("", 0, 0)),
                now - followed.heartbeat_since,
            )
            for followed in self._open.values()
        ]
        return Report(observed, now - self._answered_at, self.order)


def main() -> int:
    """Run until standard input ends; returns the exit status."""
    pending = b""
    while b"\n" not in pending:
        data = os.read(0, 1 << 16)
        if not data:
            return 0
        pending += data
    line, _, pending = pending.partition(b"\n")
    name_process("bunqueue follower")
    begin = msgspec.json.decode(line, type=FollowerStart)
    settings = Settings.from_json(begin.settings)
    os.umask(0o077)
    configure_logging(settings.log_level, settings.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    follower = Follower(begin.host, settings)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        while True:
            *lines, pending = pending.split(b"\n")
            if lines:
                orders = _decode_orders(lines[-1])
                follower.wanted, follower.order = set(orders.follow), orders.number
            report = follower.catch_up()
            sys.stdout.buffer.write(_encode(report) + b"\n")
            sys.stdout.buffer.flush()
            if not poll.poll((AGAIN_S if report.unavailable_s > AGAIN_S else POLL_S) * 1000):
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return 0
            pending += data
    except BrokenPipeError:
        return 0
    finally:
        follower.close()


if __name__ == "__main__":
    sys.exit(main())
