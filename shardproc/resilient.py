"""A shard that survives a full or broken disk, a deleted file and exhausted memory.

A batch that cannot be committed has not happened: all its commands are answered with an error, and as memory
is then ahead of the disk, the state is read from disk again. After that the shard is degraded, reports so,
and checks once a second whether the fault has passed:

- NO_GROWTH: commands that need space (pushes) are refused; everything else continues with the space that was
  set aside. It begins long before the disk is full: see `storage.disk_space`.
- READ_ONLY: there is not even room for that, or another program holds the file's write lock. Commands that
  change anything are refused, and time is paused.

Commands that need space are also refused while a file is missing (`file_watch`) or memory is used up
(`pressure`).

Agreements with other shards cannot be withdrawn silently. If the batch, or a task in progress, concerns one,
the process ends once it has answered, and a new one takes over: the other shards can handle that.
"""

from __future__ import annotations

import enum
import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Command, Reply, Spec
from bunqueue.protocol.commands.base import CommandError
from shardproc.disk_messages import Found, Warnings, error_of, fault_of, press, request_of

from .core import SLICES_S, Shard, StorageFailed
from .engine import peer_calls
from .engine.dispatch import answer, answer_late
from .engine.engine import Engine
from .engine.memory.kept import UNLIMITED
from .engine.memory.vitals import Disk, StorageFault, Vitals
from .engine.peers.carried_state import CarriedState, entangled, parked
from .engine.state import Client
from .file_watch import FileWatch
from .pressure import Pressure
from .storage.database import DISK_ERRORS, FlushFailed, disk_problem, is_out_of_space
from .storage.disk_space import DEFAULT_WAL_LIMIT, DiskSpace
from .storage.event_log import DEFAULT_RETENTION, Retention
from .storage.recheck import ReadFailed
from .storage.reserve import Reserve

PROBE_MS = 1_000
LAST_PROBE_MS = 30_000  # the wait doubles when a probe works and the next batches do not
CALM_MS = 60_000  # without a fault; after it, the next one begins with the first wait
SMALL_PROBE = 16 * 1024  # bytes: room for a batch of acks
LARGE_PROBE = 1024 * 1024

_log = get_logger("shard")


class Mode(enum.Enum):
    NORMAL = "all is well"
    FAILED = "in the middle of a batch that will not be committed"
    NO_GROWTH = "pushes are refused"
    READ_ONLY = "changes are refused"


# Looking one up in its class takes as long as ten comparisons, and each turn of a shard makes several.
NORMAL, FAILED, NO_GROWTH, READ_ONLY = Mode


class ResilientShard(Shard):
    """See above: the shard of a server. While all is well it costs two clock readings per batch."""

    def __init__(
        self,
        path: str,
        *,
        shards: int = 1,
        retention: Retention = DEFAULT_RETENTION,
        wal_limit: int = DEFAULT_WAL_LIMIT,
        memory: int = 0,
        **options: Any,
    ) -> None:
        """``wal_limit``: bytes of WAL above which pushes are refused. ``memory``: bytes that the process may
        take; 0 for no limit. The rest as for `Shard`."""
        self._pressure = Pressure(memory, lambda: self.store.database.shrink())
        self.files = FileWatch()
        in_memory = path == ":memory:"
        self._folder = "the memory" if in_memory else os.path.dirname(path) or "."
        self._reserve = None if in_memory else Reserve(Path(path).with_suffix(".reserve"))
        open_file = partial(super().__init__, path, shards=shards, retention=retention, **options)
        try:
            open_file()
        except DISK_ERRORS:
            if self._reserve is None:
                raise
            self._reserve.release()
            open_file()
        self._disk_space: DiskSpace | None = None
        if self._reserve is not None:
            self._disk_space = DiskSpace(self.store.database, self._reserve, shards, wal_limit)
        self._warnings = Warnings(path)
        self._mode = NORMAL
        self._narrow = False  # it failed although nothing that grows was accepted
        self._fault: StorageFault | None = None
        self._probe_at = 0
        self._probe_every = PROBE_MS
        self._recovered_at = -CALM_MS
        self._missed: list[Callable[[int], None]] = []  # postponed while nothing could be changed
        self._asked = self._kept_back = 0  # questions to other shards, and messages, from before READ_ONLY
        self._received = False  # a message from another shard, in this batch
        self._end: Exception | None = None  # ends the process, as soon as the answers are sent

    def _new_engine(self) -> Engine:
        engine = super()._new_engine()
        engine.state.kept.memory = self._pressure.share or UNLIMITED
        engine.state.kept.refusal = self._pressure.refusal if self._pressure.full else ""
        return engine

    def recover(self, now: int, epoch: str, progress: Callable[[int, int], None]) -> int:
        self._epoch = epoch
        try:
            count = super().recover(now, epoch, progress)
        except DISK_ERRORS:
            if self._reserve is None:
                raise
            self._reserve.release()
            self.store.database.rollback()
            self.store = self._new_store(self.store.database)
            self.engine = self._new_engine()
            count = super().recover(now, epoch, progress)
        if self._disk_space is not None:
            self._check_space(self._disk_space)
        self._pressure.started(self.store.without_jobs)
        return count

    def _check_space(self, disk_space: DiskSpace) -> None:
        """Check how much room there is. Call it only while memory equals the disk: it may restrict
        commands."""
        disk = disk_space.measure(len(self.engine.state.jobs), refusing=self._mode is not NORMAL)
        self._warnings.update(disk)
        press(self.engine.state.maintenance, self.store, self._folder, disk_space.is_pressed)
        if (disk.enough and not disk.wal_too_long) or self._mode not in (NORMAL, NO_GROWTH):
            return
        fault = self._record_fault("full", "", self._clock.now_ms())
        if self._mode is NORMAL:
            self._probe_at = fault.since + PROBE_MS
            self._enter(NO_GROWTH)
            why = "the WAL is too long" if disk.enough else "the disk is almost full"
            _log.error(why, error=fault.error, now=self._mode.value)

    def tick(self) -> int:
        clock = time.monotonic()
        if clock >= self.files.next_check:
            self._check_files()
        if clock >= self._pressure.next_check:
            self._check_pressure()
        if self._end is not None:
            raise self._end
        if self._mode is not NORMAL:
            now = self._clock.now_ms()
            self._probe_at = min(self._probe_at, now + LAST_PROBE_MS)  # the clock may have been set back
            if now >= self._probe_at:
                self._probe(now)
            if self._mode is READ_ONLY:
                return now
        try:
            now = super().tick()
        except DISK_ERRORS as error:
            self._fail(error)
            return self._clock.now_ms()
        if self._missed:
            missed, self._missed = self._missed, []
            for happens in missed:
                happens(now)
        return now

    def _check_pressure(self) -> None:
        if self._pressure.check(len(self.engine.state.jobs)):
            self.engine.state.kept.refusal = self._pressure.refusal if self._pressure.full else ""
            self._enter(self._mode)

    def _check_files(self) -> None:
        was_missing = self.files.missing
        refusal = self.files.check(self.store.database)
        if refusal is not None:
            self._refuse_growth(refusal)
        elif was_missing and not self.files.missing and self._mode is NO_GROWTH:
            self._recovered(self._clock.now_ms())

    def _refuse_growth(self, text: str) -> None:
        if self._fault is None or self._fault.error != text:
            _log.error("pushes are refused: they would be lost", error=text)
        now = self._clock.now_ms()
        since = now if self._fault is None else self._fault.since
        self._fault = StorageFault(text, since, False, Code.STORAGE_FAILED)
        if self._mode is NORMAL:
            self._enter(NO_GROWTH)

    def work(self, seconds: float = SLICES_S) -> None:
        if self._mode is FAILED:
            return
        try:
            if self._mode is NORMAL and not (self._disk_space and self._disk_space.tight):
                super().work(seconds)
            else:
                self.engine.work()  # one slice: what it deletes needs room in the WAL
        except DISK_ERRORS as error:
            self._fail(error)

    def disconnect(self, conn: int, now: int, *, severed: bool, broken: bool = False) -> None:
        self._part(partial(super().disconnect, conn, severed=severed, broken=broken), now)

    def half_closed(self, conn: int, now: int) -> None:
        self._part(partial(super().half_closed, conn), now)

    def worker_ended(self, owner: str, now: int) -> None:
        self._part(partial(super().worker_ended, owner), now)

    def _part(self, what: Callable[..., None], now: int) -> None:
        """A client has left: that is postponed while nothing can be changed."""
        try:
            if self._mode not in (FAILED, READ_ONLY):
                self.store.check_lock()
                return what(now=now)
        except DISK_ERRORS as error:
            self._fail(error)
        self._missed.append(partial(self._part, what))

    def receive(self, source: int, body: bytes, now: int) -> None:
        if self._mode is READ_ONLY and peer_calls.is_read(body, self._asked):
            super().receive(source, body, now)
        else:
            self._on_peer_message(partial(super().receive, source, body), now)

    def peer_is_up(self, shard: int, now: int) -> None:
        self._on_peer_message(partial(super().peer_is_up, shard), now)

    def _on_peer_message(self, what: Callable[[int], None], now: int) -> None:
        """A message from another shard: it is postponed while nothing can be changed."""
        if self._mode in (FAILED, READ_ONLY):
            self._missed.append(partial(self._on_peer_message, what))
            return
        self._received = True
        try:
            what(now)
        except DISK_ERRORS as error:
            self._fail(error)
            if self._is_locked_out(error):  # it was not begun
                self._missed.append(partial(self._on_peer_message, what))

    def commit(self) -> list[tuple[int, Reply | Raw]]:
        if self._mode is READ_ONLY:
            replies = self._unstored()
            return self._relay(replies) if self.engine.state.relays else replies
        if self._mode is not FAILED:
            try:
                replies = super().commit()
            except FlushFailed as error:
                return self._withhold(error)
            except DISK_ERRORS as error:
                self._fail(error)
            else:
                self._received = False
                if self._disk_space is not None and time.monotonic() >= self._disk_space.next_at:
                    self._check_space(self._disk_space)
                return replies
        return self._give_up()

    def _give_back(self, now: int) -> None:
        if self._mode is NORMAL:
            super()._give_back(now)

    def compact(self) -> None:
        if self._mode is NORMAL:
            super().compact()

    def peer_messages(self) -> list[tuple[int, bytes]]:
        if self._mode is not READ_ONLY:
            return super().peer_messages()
        messages = self.engine.out.peer_messages
        found, messages[self._kept_back :] = messages[self._kept_back :], []
        return found

    def _unstored(self) -> list[tuple[int, Reply | Raw]]:
        """The replies of a batch that is not committed."""
        out, self.published, self.notices = self.engine.out, {}, []
        replies, out.replies, out.size = out.replies, [], 0
        return replies

    @property
    def batch_s(self) -> float:
        """One slice while there is a fault: a full disk has room for little more."""
        return super().batch_s if self._mode is NORMAL else 0.0

    def wait_ms(self) -> int:
        if self._end is not None:
            return 0
        if self._mode is NORMAL:
            return super().wait_ms()
        wait = self._probe_at - self._clock.now_ms()
        if self._mode is READ_ONLY:
            return 0 if self.engine.state.long_works else max(0, wait)
        return max(0, min(wait, super().wait_ms()))

    def _refusal(self, spec: Spec) -> CommandError | None:
        """Why a command is refused while the disk, the file or the memory has a fault."""
        if self._pressure.full and spec.grows:
            return CommandError(self._pressure.refusal, Code.MEMORY_LIMIT)
        if self._fault is not None and self._forbids(spec):
            return CommandError(self._fault.error, self._fault.code)
        return None

    def _forbids(self, spec: Spec) -> bool:
        if self._mode is NO_GROWTH:
            return spec.grows
        return self._mode is FAILED or spec.writes or spec.parks

    def _failed(self, error: Exception, client: Client, command: Command) -> None:
        self._fail(error)
        assert self._fault is not None
        answer(self.engine.state, client, command, error_of(self._fault, command.req_id))

    def _fail(self, error: Exception) -> None:
        """The rest of the batch is refused; `commit` will discard it."""
        problem = disk_problem(error)
        if problem is None:
            raise error
        if self._is_locked_out(error):
            self._lock_out(str(error))
            return
        if problem == "broken" and is_out_of_space(self._folder):
            problem = "full"
        now = self._clock.now_ms()
        if self._mode is NORMAL and now - self._recovered_at > CALM_MS:
            self._probe_every = PROBE_MS
        else:
            self._probe_every = min(2 * self._probe_every, LAST_PROBE_MS)
        self._narrow = self._mode is not NORMAL and not (self._reserve and self._reserve.size)
        self._record_fault(problem, str(error), now)
        self._enter(FAILED)

    def _lock_out(self, error: str) -> None:
        """Another program holds the write lock: nothing is changed until it lets go."""
        now, state = self._clock.now_ms(), self.engine.state
        fault = self._record_fault("locked", error, now)
        for client, req_id in parked(state):
            answer_late(state, client, req_id, error_of(fault, req_id))
        self._probe_at, self._received = now + PROBE_MS, False
        self._enter(READ_ONLY)
        _log.error("changes are refused: another program has locked the file", error=fault.error)

    def _withhold(self, error: FlushFailed) -> list[tuple[int, Reply | Raw]]:
        """The batch is stored, but was not flushed: no client gets an answer that promises durability.
        Messages about it to other shards wait until it is flushed."""
        out, state = self.engine.out, self.engine.state
        out.durable = False
        fault = self._record_fault(disk_problem(error) or "broken", str(error), self._clock.now_ms())
        for client, req_id in parked(state):
            answer_late(state, client, req_id, error_of(fault, req_id))
        replies = self._relay(self._unstored())
        self._probe_at = self._clock.now_ms() + PROBE_MS
        self._enter(READ_ONLY)
        _log.error("a batch could not be flushed", error=fault.error, answers=len(replies))
        return [(conn, error_of(fault, request_of(reply))) for conn, reply in replies]

    def _record_fault(self, problem: str, error: str, now: int) -> StorageFault:
        """Record a fault. ``problem`` as from `disk_problem`; ``error`` is SQLite's message, "" before it
        fails."""
        since = now if self._fault is None else self._fault.since
        disk = self._disk_space.disk if self._disk_space is not None else Disk()
        found = Found(problem, error, disk, self._folder, self.store.database.path, self.store.damage.fix)
        self._fault = fault_of(found, since)
        return self._fault

    def _give_up(self) -> list[tuple[int, Reply | Raw]]:
        """The batch has not happened: refuse all its commands, and return to the state on disk."""
        assert self._fault is not None
        if self._fault.code is Code.STORAGE_DAMAGED:
            self._recheck()
        aside = self._fault.code is Code.STORAGE_DAMAGED and self._quarantine()
        fault, old = self._fault, self.engine.state
        answers: list[tuple[int, Reply | Raw]] = [
            (conn, error_of(fault, request_of(reply)))
            for conn, reply in self._unstored()
            if conn not in old.relays
        ]
        self.store.database.rollback()
        if self._disk_space is not None and fault.disk_full:
            self._disk_space.relieve()
        if entangled(old, self._received):
            old.out.peer_messages.clear()
            self._end = StorageFailed(fault.error)
            return answers
        for client, req_id in parked(old):
            answer_late(old, client, req_id, error_of(fault, req_id))
        answers += self._unstored()
        self._start_anew()
        if aside:
            self._recovered(self._clock.now_ms())
            return answers
        self._probe_at = self._clock.now_ms() + self._probe_every
        room = not self._narrow and self.store.database.can_write(SMALL_PROBE)
        self._enter(NO_GROWTH if room else READ_ONLY)
        _log.error(
            "a batch could not be stored", error=fault.error, answers=len(answers), now=self._mode.value
        )
        return answers

    def _recheck(self) -> None:
        """Try again, as reading may have failed only for a moment."""
        self.store.database.rollback()
        try:
            self.store.database.recheck()
        except ReadFailed as error:
            self._record_fault("broken", str(error), self._clock.now_ms())

    def _quarantine(self) -> bool:
        """The batch touched what is damaged: quarantine the jobs that did; returns whether these are
        known."""
        assert self._fault is not None
        database, damage = self.store.database, self.store.damage
        jobs, purges = list(self.engine.out.dirty), bool(self.engine.out.purges)  # purges stop after this
        database.rollback()
        table, seqs = self.store.damaged_jobs(jobs)
        damage.note(table, self._fault.error)
        text = damage.text(table)
        if seqs:
            text = f"{text}; jobs whose rows stand there cannot be changed until then"
        with suppress(*DISK_ERRORS):  # then it is found again after a restart
            damage.park(database.connection, seqs, table)
        self._fault = msgspec.structs.replace(self._fault, error=text)
        return bool(seqs or purges)

    def _start_anew(self) -> None:
        """Read the state of the shard from its file."""
        carried, now = CarriedState(self.engine.state), self._clock.now_ms()
        self.store.database.rollback()
        self.store = self._new_store(self.store.database)
        self.engine = self._new_engine()
        gc.disable()  # as at the start
        try:
            Shard.recover(self, now, self._epoch, lambda loaded, total: None)
        finally:
            gc.enable()
        carried.give(self.engine.state)
        self.engine.reattach(frozenset(self.engine.state.clients), now)

    def _probe(self, now: int) -> None:
        """Check whether the fault has passed."""
        self._probe_at = now + self._probe_every
        if self._mode is READ_ONLY:
            if not self.store.database.can_write(SMALL_PROBE):
                self._check_lock(now)
                return
            self._resume(now)
        if self._disk_space is not None:
            self._check_space(self._disk_space)
        disk = Disk() if self._disk_space is None else self._disk_space.disk
        if disk.enough and not disk.wal_too_long and self.store.database.can_write(LARGE_PROBE):
            self._recovered(now)
        elif self._disk_space is not None:
            self._disk_space.shrink()

    def _check_lock(self, now: int) -> None:
        if self._fault is not None and self._fault.code is Code.STORAGE_LOCKED:
            self._probe_at = now + PROBE_MS  # the lock will pass soon
            self._record_fault("locked", "", now)

    def _resume(self, now: int) -> None:
        """Resume time: no worker could renew a lock while it was paused."""
        self._enter(NO_GROWTH)
        self.store.attach(self.engine.out)
        self._ticked_at = now
        self.engine.resume_timeouts(now)

    def _recovered(self, now: int) -> None:
        if self.files.missing:
            return
        assert self._fault is not None
        _log.info("storage works again", after_ms=now - self._fault.since)
        self._fault, self._recovered_at = None, now
        self._enter(NORMAL)

    def _enter(self, mode: Mode) -> None:
        self._mode = mode
        if mode is READ_ONLY:
            self.store.attach(None)  # reads must not write what waits
            self._asked, self._kept_back = self.engine.state.questions, len(self.engine.out.peer_messages)
        unrestricted = mode is NORMAL and not self._pressure.full
        self.restriction = None if unrestricted else self._refusal

    def _vitals(self) -> Vitals:
        found = super()._vitals()
        disk = None if self._disk_space is None else self._disk_space.disk
        warnings = () if self._fault else self._warnings.texts
        pressure = self._pressure
        return msgspec.structs.replace(
            found,
            fault=self._fault,
            disk=disk,
            warnings=warnings,
            memory_limit=pressure.share,
            memory_full=pressure.full,
        )
