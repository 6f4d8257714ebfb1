"""A shard whose batches are in a log before their replies are sent.

A batch is *sealed* when its rows are written into the file's transaction, which stays open, and its record is
made. Once the log has acknowledged the record, the batch is committed and its replies are sent. So the file
is never ahead of the log, and nobody sees a change that is not replicated.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, Reply
from shardproc.core import StorageFailed
from shardproc.engine import slices
from shardproc.engine.dispatch import answer_late
from shardproc.engine.memory.vitals import LogVitals, StorageFault, Vitals
from shardproc.engine.outbox import Outbox
from shardproc.engine.state import Client, State
from shardproc.resilient import Mode, ResilientShard
from shardproc.storage.careful import CarefulStore
from shardproc.storage.database import DISK_ERRORS, Database, disk_problem
from shardproc.storage.preloaded import Preloaded
from shardproc.storage.schema import CURRENT

from .log import ShardLog
from .recorder import Recorder

_OPERATIONAL = tuple({spec.reply for spec in COMMANDS.values() if spec.operational})
EPOCH_BYTES = 8
RETRY_AFTER_MS = 1_000  # for clients, while the store is unavailable
UNPROTECTED = "the store has no synchronous standby: what is acknowledged is on one machine only"


class FileDamaged(StorageFailed):
    """The file cannot be read or written any more. It is built anew from the log."""


class ReplicatedShard(ResilientShard):
    """See above. ``database`` contains all that the log does, and its connection records into
    ``recorder``."""

    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        log: ShardLog,
        preloaded: Preloaded | None = None,
        **options: Any,
    ) -> None:
        """``preloaded``: the live jobs, if they were read already."""
        self.log = log
        self._recorder = recorder
        self._sealed = False
        self._epochs: dict[int, int] = {}  # of the other shards' owners: the highest seen
        self.held = 0
        """Bytes of the batch that waits for its acknowledgement."""
        self.unavailable_since: int | None = None  # epoch ms
        super().__init__(database.path, opened=database, **options)
        self.store.preloaded = preloaded

    def _new_store(self, database: Database) -> CarefulStore:
        store = super()._new_store(database)
        store.replicated = True
        store.damage.intolerable = FileDamaged
        return store

    @property
    def epoch(self) -> int:
        return self.log.owner.epoch

    def keep_alive(self) -> None:
        """Renew the lease, so no other host takes over during a long recovery."""
        self.log.turn(time.monotonic())

    # -- a batch -------------------------------------------------------------------------------

    def seal(self) -> bytes:
        """Write the batch into the file's open transaction; returns its record, b"" if it changes nothing."""
        if self._mode in (Mode.READ_ONLY, Mode.FAILED):
            return b""
        out, state = self.engine.out, self.engine.state
        try:
            self.store.write(out, state.next_seq, len(state.jobs))
        except DISK_ERRORS as error:
            self._fail(error)
            return b""
        self._sealed = bool(self._recorder)
        record = self._recorder.take(CURRENT, state.now) if self._sealed else b""
        self.held = len(record) + out.size
        return record

    def _store(self, out: Outbox, state: State) -> None:
        """The log has the record of the batch, if it has one."""
        self.held = 0
        if not self._sealed:
            self.store.write_nothing()
            return
        self._sealed = False
        try:
            self.store.applied(self.log.position)
        except DISK_ERRORS as error:  # the batch is acknowledged: a new process reads it from the log
            raise StorageFailed(f"what the log has acknowledged cannot be stored: {error}") from error

    def mark_closed(self) -> bytes:
        """The record that marks the shard as closed cleanly."""
        self.store.mark_closed()
        return self.seal()

    def ask_about_server(self, client: Client, command: Command) -> Reply | Raw:
        """The reply to a question that needs nothing of the log. ``client`` is not one of the shard's."""
        state, out = self.engine.state, self.engine.out
        before, size = len(out.replies), out.size
        self.engine.handle(client, command, state.now)
        for work in slices.take(state, client):
            assert work.command is not None
            answer_late(state, client, work.command.req_id, slices.whole(state, work))
        ((_, reply),) = out.replies[before:]
        del out.replies[before:]
        out.size = size
        return reply

    def take_operational(self) -> list[tuple[int, Reply | Raw]]:
        """Take the replies about the server itself out of a batch that has to wait."""
        out = self.engine.out
        found = [entry for entry in out.replies if isinstance(entry[1], _OPERATIONAL)]
        if found:
            out.replies = [entry for entry in out.replies if not isinstance(entry[1], _OPERATIONAL)]
        return found

    # -- other shards --------------------------------------------------------------------------

    def peer_messages(self) -> list[tuple[int, bytes]]:
        """Messages prefixed with the epoch of their sender, so those of a former owner can be recognized."""
        epoch = self.log.owner.epoch.to_bytes(EPOCH_BYTES)
        return [(shard, epoch + message) for shard, message in super().peer_messages()]

    def receive(self, source: int, body: bytes, now: int) -> None:
        epoch = int.from_bytes(body[:EPOCH_BYTES])
        if epoch < self._epochs.get(source, 0):
            return  # from a process that has lost its shard, and does not know it yet
        self._epochs[source] = epoch
        super().receive(source, body[EPOCH_BYTES:], now)

    # -- errors --------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        if disk_problem(error) == "damaged":
            raise FileDamaged(str(error)) from error
        super()._fail(error)

    def store_fault(self) -> StorageFault | None:
        """Why commands are refused; None while the log answers."""
        if self.unavailable_since is None:
            return None
        why = self.log.owner.fault or "it does not acknowledge"
        text = (
            f"The store is unavailable ({why}): nothing was changed; ask again in "
            f"{RETRY_AFTER_MS / 1000:.0f} s. See bunqueue store check"
        )
        return StorageFault(text, self.unavailable_since, False, Code.STORE_UNAVAILABLE)

    def _vitals(self) -> Vitals:
        found, log = super()._vitals(), self.log
        owner = log.owner
        figures = LogVitals(
            position=owner.position,
            epoch=owner.epoch,
            phase=owner.phase.value,
            held=self.held,
            round_trip_ms=log.round_trip_s * 1000,
            appended=log.appended,
            unavailable_since=self.unavailable_since,
            is_protected=log.is_protected,
            commits=tuple(log.commits),
            commits_ms=log.commits_s * 1000,
        )
        warnings = found.warnings
        if not log.is_protected:
            warnings = (*warnings, f"{UNPROTECTED}; see bunqueue store check")
        fault = self.store_fault() or found.fault
        return msgspec.structs.replace(found, log=figures, fault=fault, warnings=warnings)

    def set_aside(self) -> Path:
        """Close the damaged file, and move it out of the way; returns its new path."""
        self.close()
        return set_aside(Path(self.store.database.path))


def set_aside(file: Path) -> Path:
    """Move a damaged file out of the way, so the next start builds another; returns its new path."""
    aside = file.with_name(f"{file.name}.damaged")
    file.replace(aside)
    for suffix in ("-wal", "-shm"):
        log = file.with_name(file.name + suffix)
        if log.exists():
            log.replace(aside.with_name(aside.name + suffix))
    return aside
