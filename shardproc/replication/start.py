"""Bringing a shard's file up to its log: the newest snapshot, the claim, the tail, the migration."""

from __future__ import annotations

import select
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bunqueue.logs import get_logger
from bunqueue.server.folder.data_folder import place_of
from bunqueue.server.links import shard_protocol as link
from bunqueue.server.links.pipe_messages import OwnerObservation
from bunqueue.store import snapshots
from bunqueue.store.database import StoreUnavailable, connected, usable
from bunqueue.store.places import PlaceError
from shardproc.storage.database import Database
from shardproc.storage.marking import put_mark
from shardproc.storage.preloaded import Preloaded, preload
from shardproc.storage.schema import CURRENT

from . import replay
from .log import Link, ShardLog
from .owner import Entry, Owner, Phase
from .postgres import PostgresLink
from .record import encode
from .recorder import Recorder, RecordingConnection, recording
from .replicated_shard import set_aside

AGAIN_S = 1.0  # between two tries while the store is unavailable
REPORT_S = 1.0  # between two reports of what is waited for

Report = Callable[[str], None]
_log = get_logger("shard")


class RouterDisconnected(ConnectionError):
    """The router has ended while the shard was starting."""


class Opened:
    """The file, its recorder and its log, once the shard is owned and the file has all of the log; and the
    live jobs, if they were read while another process owned it."""

    def __init__(
        self, database: Database, recorder: Recorder, log: ShardLog, preloaded: Preloaded | None
    ) -> None:
        self.database, self.recorder, self.log, self.preloaded = database, recorder, log, preloaded


def bring_up(
    url: str,
    *,
    file: Path,
    shard: int,
    shards: int,
    token: str,
    sock: socket.socket,
    report: Report,
    observed: OwnerObservation | None = None,
) -> Opened:
    """Own the shard, and have its file hold all that its log does.  Waits for the store, and for another
    owner's end, however long that takes; ``report`` is called with what is waited for.  ``observed``: what
    is known of another owner already.

    Raises StoreNotReady, RecordTooNew, RecordDamaged, LogDamaged, FilesMismatch, SQLite's errors, and
    RouterGone.
    """
    began = time.monotonic()
    fetch_snapshot(url, file=file, shard=shard, shards=shards, sock=sock, report=report)
    return catch_up(str(file), PostgresLink(url, shard), token, sock, report, observed, began)


def catch_up(
    path: str,
    store: Link,
    token: str,
    sock: socket.socket,
    report: Report,
    observed: OwnerObservation | None = None,
    observed_at: float = 0.0,
    kind: type[RecordingConnection] = RecordingConnection,
) -> Opened:
    """Like `bring_up`, for a file that only lacks records which the log still has."""
    recorder = Recorder()
    database = Database(path, full_sync=False, factory=recording(recorder, kind), migrates=False)
    try:
        log = ShardLog(Owner(token, replay.applied(database.connection), observed, observed_at), store)
        catching = _Catching(database.connection, log, sock, report)
        catching.run()
        database.take_place()
    except BaseException:
        database.close()
        raise
    recorder.clear()  # what came from the log
    return Opened(database, recorder, log, catching.preloaded)


def fetch_snapshot(
    url: str, *, file: Path, shard: int, shards: int, sock: socket.socket, report: Report
) -> None:
    """Replace the file with a snapshot if it lacks records that are no longer in the log."""
    while True:
        try:
            with connected(url) as connection:
                usable(connection, shards)
                bring_snapshot(connection, url, file, shard, report)
            return
        except StoreUnavailable as error:
            report(str(error))
            _pause(sock, AGAIN_S)


def bring_snapshot(
    connection: Any, url: str, file: Path, shard: int, report: Report = lambda text: None
) -> None:
    """Like `fetch_snapshot`, without waiting. PlaceError if no snapshot can be read."""
    found = snapshots.newest(connection, shard)
    position = _position(file)
    if not found or found[0].seq <= position:
        return
    for snapshot in found:
        report(f"reading the snapshot at position {snapshot.seq} ({snapshot.bytes / 1e6:,.1f} MB)")
        try:
            snapshots.restore(snapshot, url, file, prepare=lambda new: _mark_as(file, new))
        except (PlaceError, StoreUnavailable) as error:
            _log.error("a snapshot cannot be read", error=str(error))
        else:
            _log.info("begins with a snapshot", position=snapshot.seq, had=position)
            return
    if not snapshots.is_whole_log(url, shard, max(0, position)):
        raise PlaceError(f"no snapshot of shard {shard} can be read: see the lines above")
    _log.warning("continues without a snapshot, as the log still has its content", position=position)


def _mark_as(file: Path, new: Path) -> None:
    """Give a new file, which comes from another folder, the identity that belongs at ``file``."""
    place = place_of(file)
    if place is not None:
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            put_mark(connection, place.identity)


def _position(file: Path) -> int:
    """The position of a file; -1 if there is no file, or it cannot be read and was renamed."""
    if not file.exists():
        return -1
    try:
        with closing(sqlite3.connect(file)) as connection:
            return replay.applied(connection)
    except sqlite3.DatabaseError as error:
        _log.error("the file is damaged and is rebuilt", error=str(error), kept=str(set_aside(file)))
        return -1


def _pause(sock: socket.socket, seconds: float) -> None:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if poll.poll(seconds * 1000) and not sock.recv(1, socket.MSG_PEEK):
        raise RouterDisconnected("the router is gone")


class _Catching:
    """Drives a log until its shard is owned, and the file has all of it, in this version's schema."""

    def __init__(
        self, connection: sqlite3.Connection, log: ShardLog, sock: socket.socket, report: Report
    ) -> None:
        self._connection, self._log, self._sock, self._report = connection, log, sock, report
        self._reported_at = float("-inf")
        self._splitter = link.EnvelopeSplitter(link.TO_SHARD)
        self._is_standby = False
        self.preloaded: Preloaded | None = None

    def run(self) -> None:
        self._until_idle()
        (schema,) = self._connection.execute("pragma user_version").fetchone()
        if schema < CURRENT:
            # A record of its own, so every file migrates at the same position.
            body = encode(CURRENT, int(time.time() * 1000), [])
            position = self._log.position + 1
            self._log.owner.append(body)
            self._until_idle()
            self._apply([Entry(position, self._log.owner.epoch, body)])

    def _until_idle(self) -> None:
        log, owner = self._log, self._log.owner
        while True:
            now = time.monotonic()
            if entries := log.turn(now):
                self._apply(entries)
            if owner.is_idle:
                return
            if owner.phase is Phase.WAITING and not self._is_standby:
                self._report_standby()
            if now - self._reported_at > REPORT_S:
                self._reported_at = now
                self._report(_waiting_for(owner))
            self._wait(now)

    def _apply(self, entries: Sequence[Entry]) -> None:
        changed = (lambda changes: None) if self.preloaded is None else self.preloaded.changed
        replay.apply(self._connection, entries, changed)

    def _report_standby(self) -> None:
        """Another owner lives, or its lease has not ended: do the slow work now, and then report that the
        owner may give the shard up."""
        self._is_standby = True
        self.preloaded = preload(self._connection)
        self._sock.sendall(link.answer(link.CONTROL, link.STANDBY))

    def _wait(self, now: float) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        store = self._log.link
        if (number := store.fileno) is not None:
            poll.register(number, select.POLLIN | (select.POLLOUT if store.wants_write else 0))
        wait = self._log.wait_s(now)
        ready = dict(poll.poll((REPORT_S if wait is None else min(wait, REPORT_S)) * 1000))
        if self._sock.fileno() in ready:
            self._receive()

    def _receive(self) -> None:
        """The only message from a router to a shard that is not ready: its owner has given it up."""
        data = self._sock.recv(1 << 16)
        if not data:
            raise RouterDisconnected("the router is gone")
        if any(kind == link.OWNER_RELEASED for (_, kind), _ in self._splitter.feed(data)):
            self._log.owner.owner_released()


def _waiting_for(owner: Owner) -> str:
    if owner.phase is Phase.DISCONNECTED:
        return f"the store is unavailable: {owner.fault}"
    if owner.phase is Phase.READING:
        return f"reading the log, at position {owner.position}"
    return owner.fault or "claiming the shard"
