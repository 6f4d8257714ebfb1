"""A shard without its socket: engine and storage together, as server and embedded mode use them.

Feed it commands, then `commit`: the replies come out only once what they promise is on disk.
"""

from __future__ import annotations

import random
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Raw

from bunqueue import process_stats as vitals
from bunqueue.logs import get_logger
from bunqueue.protocol.codec import InvalidCommand, decode_command, encode_reply, is_slow_payload
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, ErrorReply, Reply, Spec
from bunqueue.protocol.commands.base import CommandError, refused
from bunqueue.server.links import peers
from shardproc.disk_messages import locked, unreadable

from . import missed_runs
from .clock import Clock
from .dropped_letters import DroppedLog
from .engine.dispatch import answer, send
from .engine.engine import Engine
from .engine.lifecycle import error_groups
from .engine.memory.vitals import Vitals
from .engine.outbox import Outbox, Published
from .engine.state import Client, State
from .storage.careful import CarefulStore
from .storage.compaction import compact
from .storage.database import DISK_ERRORS, Database, disk_problem
from .storage.event_log import DEFAULT_RETENTION, Retention
from .storage.shrinking import Shrinking
from .timekeeping import Timekeeping

_log = get_logger("shard")

LOG_EVERY_S = 60.0  # log line that the file cannot be read
SLICES_S = 0.002  # for long tasks, while no client waits for a turn
BATCH_S = 0.05  # of queued commands in one batch
MAX_WAIT_MS = 5_000
FORGET_MS = 20  # between two trimming steps of a log that is too long, when idle
STALLED_MS = 2 * MAX_WAIT_MS  # a longer gap between two ticks means that the shard could receive nothing
MAINTENANCE_MS = (
    20  # between two rounds of maintenance, so that turns in quick succession do not all pay for it
)
QUIET_MS = 2_500  # the same for a longer silence of the router, which sends something each second


class StorageFailed(Exception):
    """The process must end: a new one will read what is on disk."""


_BEGINS = frozenset(
    request
    for spec in COMMANDS.values()
    if spec.writes or spec.parks
    for request in (spec.request, spec.plain)
)
"""Commands that need the file's write lock before they change anything."""


def spec_of(command: Command) -> Spec:
    """The declaration of a command."""
    return COMMANDS[str(command.__struct_config__.tag)]


class Shard:
    """The state of one shard and its file."""

    def __init__(
        self,
        path: str,
        *,
        full_sync: bool,
        shard: int = 0,
        shards: int = 1,
        lock_wait_s: float | None = None,
        retention: Retention = DEFAULT_RETENTION,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        prepare: Callable[[State], None] = lambda state: None,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
        opened: Database | None = None,
    ) -> None:
        """``clock`` and ``chance`` make runs reproducible; ``prepare`` applies the settings to a new engine;
        ``factory`` as for `Database`. ``opened`` is the file at ``path`` if it is open already."""
        self._chance = chance
        self._prepare = prepare
        self._clock = clock or Clock()
        database = opened or Database(path, full_sync=full_sync, lock_wait_s=lock_wait_s, factory=factory)
        self._place, self._retention = (shard, shards), retention
        self._logged_errors: set[str] = set()  # the operations that have failed
        self._log_at = 0.0  # when to log again that the file cannot be read, monotonic
        self.store = self._new_store(database)
        self.restriction: Callable[[Spec], CommandError | None] | None = None
        """Returns why a command is refused at present, or None; None while every command is carried out."""
        self.published: dict[str, Published] = {}  # events for subscribers, of the last commit
        self.notices: list[tuple[int, bytes]] = []  # unrequested frames for connections
        self._time, self._dropped = Timekeeping(self._clock), DroppedLog()
        self.engine = self._new_engine()
        self._ticked_at = self._clock.now_ms()
        self._due_at = 0  # the engine has nothing to do before; known between `wait_ms` and the next tick
        self._maintenance_at = 0
        self._router_active_at: int | None = None  # when it last sent something; None: no router
        self._router_active = False  # the router has sent something since the last tick
        self._sums_up = False  # more jobs to add to the search index
        self._shrinking = Shrinking()
        self._has_more = True  # maintenance has more to do, perhaps before `MAINTENANCE_MS` have passed

    def _new_store(self, database: Database) -> CarefulStore:
        return CarefulStore(database, self._retention)

    def _new_engine(self) -> Engine:
        engine = Engine(self.store, secrets.randbits, self._chance, *self._place)
        engine.state.vitals = self._vitals
        engine.state.on_command_error = self._on_command_error
        engine.state.refusal = self._refuses
        engine.state.check_lock = self.store.check_lock
        engine.state.on_question_error = self._on_question_error
        engine.state.maintenance.uncertainty = self._time.uncertainty
        self._prepare(engine.state)
        return engine

    def recover(self, now: int, epoch: str, progress: Callable[[int, int], None]) -> int:
        """Read the file; returns the number of live jobs in it."""
        self._half_flows = 0  # flows that have been logged
        count = self.store.recover(
            self.engine, now, epoch, progress, believed=self._time.believed(self.store, now)
        )
        self.engine.start(now)
        self._time.started(self.engine, self.store, now)
        return count

    @property
    def epoch(self) -> int:
        """The number of changes of the shard's owner; 0 without a log."""
        return 0

    def keep_alive(self) -> None:
        """Called during a long recovery, for tasks that may not wait for its end."""

    def now(self) -> int:
        """The present time, epoch ms."""
        return self._clock.now_ms()

    def mark_router_active(self) -> None:
        """Record that the router has sent something, which is carried out after the next tick. From the first
        call on, router silence never counts against workers."""
        self._router_active = True

    def was_stalled(self) -> None:
        """Nothing could be carried out for a while: the next tick extends all deadlines of workers."""
        self._ticked_at = 0

    def tick(self) -> int:
        """Begin a batch: do what is due; returns the time of the batch. Call it at most STALLED_MS apart."""
        due_at, self._due_at = self._due_at, 0
        now = self._clock.now_ms()
        maintenance = now >= self._maintenance_at or now < self._ticked_at  # also after the clock was set
        if maintenance:
            now, due_at = self._time.check(self.engine, self.store), 0
        silent = self._router_active_at is not None and now - self._router_active_at > QUIET_MS
        if now - self._ticked_at > STALLED_MS or (silent and self._router_active):
            self.engine.resume_timeouts(now)
            due_at = 0
        elif silent:
            self.engine.suspend_timeouts()
            due_at = 0
        if self._router_active:
            self._router_active_at, self._router_active = now, False
        self._ticked_at = now
        if now < due_at:
            self.engine.pass_time(now)
            return now
        if self.engine.next_moment() <= now:
            self.store.check_lock()
        if maintenance:
            self._keep_up(now)
        self.engine.tick(now)
        if self.engine.state.timetable.missed:
            missed_runs.log_all(self.engine.state.timetable)
        return now

    def _keep_up(self, now: int) -> None:
        """Work on the file that can wait for a moment, each time a little of it."""
        self.store.recheck_damage()
        self.store.forget_events(self._time.uncertainty.time(now))
        self._sums_up = self._sum_up(now)
        self._give_back(now)
        if self.engine.state.dropped.untold:
            self._dropped.log_due(self.engine.state.dropped, now)
        self._has_more = self._sums_up or self.store.forgets or self._shrinking.is_running or self._time.moves
        self._maintenance_at = now if self._has_more else now + MAINTENANCE_MS

    @property
    def batch_s(self) -> float:
        """How long queued commands may run before they are committed and answered."""
        return BATCH_S

    def wait_ms(self) -> int:
        """The time until something is due, unless a command arrives."""
        now, self._due_at = self._clock.now_ms(), self.engine.next_deadline()
        longest = self._until_maintenance(now) if self._has_more else MAX_WAIT_MS
        return max(0, min(self._due_at - now, longest))

    def _until_maintenance(self, now: int) -> int:
        """The same for maintenance that has more to do."""
        if self._time.moves:
            return 0
        wait = FORGET_MS if self.store.forgets or self._sums_up else MAX_WAIT_MS
        slice_in = self._shrinking.wait_ms(now)
        return wait if slice_in is None else min(wait, slice_in)

    def client(self, conn: int, version: int) -> Client:
        return self.engine.state.client(conn, version)

    def execute(self, client: Client, payload: bytes, now: int) -> None:
        """Carry out one command; its reply goes to the outbox."""
        try:
            command = decode_command(payload)
            if self.restriction is not None and (problem := self.restriction(spec_of(command))):
                raise InvalidCommand(problem, command.req_id)
        except InvalidCommand as error:
            self._refuse(client, payload, error)
            return
        try:
            # Else the batch has begun to change things.
            if not self.store.is_writing and type(command) in _BEGINS:
                self.store.begin()
            self.engine.handle(client, command, now)
        except DISK_ERRORS as error:
            self._failed(error, client, command)

    def _refuses(self, spec: Spec) -> CommandError | None:
        return None if self.restriction is None else self.restriction(spec)

    def _on_command_error(self, command: Command, error: Exception) -> Reply:
        """The answer to a command that has failed, at once or in a later slice. A bug ends the shard, as it
        is unknown what was changed by then. But a command that only reads has changed nothing, and must not
        end the shard each time that a client sends it, so it is answered with an error. Raises the error
        again for any other command."""
        spec = spec_of(command)
        if spec.writes or spec.parks:
            raise error
        if self._is_unread(error):
            text = unreadable(str(error), self.store.database.path)
            return ErrorReply(error=text, code=Code.STORAGE_FAILED)
        if not self._is_harmless(error):
            raise error
        self._log_once("a command that only reads has failed", spec.name)
        text = f"{spec.name} failed; the log of shard {self._place[0]} says why"
        return ErrorReply(error=text, code=Code.INTERNAL_ERROR)

    def _on_question_error(self, message: peers.Message, error: Exception) -> peers.Failed:
        """The same for a question of another shard."""
        name = type(message).__name__
        if type(message) not in peers.READING or not self._is_harmless(error):
            raise error
        self._log_once("a question that only reads has failed", name)
        return peers.Failed(f"{name} failed; the log of shard {self._place[0]} says why")

    def _is_unread(self, error: Exception) -> bool:
        """Whether the disk has failed to read, and no change is half done."""
        if self.store.writes_out or self.engine.state.unfinished or not isinstance(error, DISK_ERRORS):
            return False
        if disk_problem(error) != "broken":
            return False
        if (now := time.monotonic()) >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            _log.error("the file cannot be read", file=self.store.database.path, error=str(error))
        return True

    def _is_harmless(self, error: Exception) -> bool:
        """Whether an error has left no change half done, and does not come from the disk."""
        if self.store.writes_out or self.engine.state.unfinished or isinstance(error, StorageFailed):
            return False
        return not isinstance(error, DISK_ERRORS) or disk_problem(error) is None

    def _log_once(self, text: str, what: str) -> None:
        """Log the current exception, once per kind: a client with read rights must not be able to fill the
        log."""
        if what not in self._logged_errors:
            self._logged_errors.add(what)
            _log.exception(text, what=what)

    def _sum_up(self, now: int) -> bool:
        """Add jobs to the search index, piece by piece; returns whether there is more to do. Searches scan
        jobs that are not indexed yet, so a bug here must not end the shard at each start."""
        try:
            return self.store.prepare_searches(now)
        except DISK_ERRORS:
            raise
        except Exception:
            if self.store.is_writing:  # part of it may be written
                raise
            self._log_once("jobs were not summed up for searches", "summing up")
            return False

    def execute_without_reply(self, client: Client, payload: bytes, now: int) -> None:
        """Carry out a command whose client has left: only if it changes something."""
        try:
            command = decode_command(payload)
        except InvalidCommand:
            return
        spec = spec_of(command)
        if spec.writes and (self.restriction is None or self.restriction(spec) is None):
            try:
                self.engine.handle(client, command, now)
            except DISK_ERRORS as error:
                self._failed(error, client, command)

    def work(self, seconds: float = SLICES_S) -> None:
        """Work on long tasks, for this time or one slice, whichever is longer."""
        end = time.monotonic() + seconds
        while self.engine.work() and time.monotonic() < end:
            pass

    def disconnect(self, conn: int, now: int, *, severed: bool, broken: bool = False) -> None:
        """A client's connection ended; see `Engine.disconnect`."""
        # A client without an answer while the server was paused has given up a good connection.
        gave_up = now < self.engine.state.reachability.resumes_at
        self.engine.disconnect(conn, now, severed=severed, broken=broken or gave_up)

    def half_closed(self, conn: int, now: int) -> None:
        """A client sends nothing more; see `Engine.half_closed`."""
        self.engine.half_closed(conn, now)

    def worker_ended(self, owner: str, now: int) -> None:
        """The process of a worker has ended."""
        self.engine.worker_ended(owner, now)

    def receive(self, source: int, body: bytes, now: int) -> None:
        """A message from another shard."""
        self.engine.receive(source, body, now)

    def peer_is_up(self, shard: int, now: int) -> None:
        """Another shard is ready, perhaps after a restart."""
        self.engine.peer_is_up(shard, now)

    def _failed(self, error: Exception, client: Client, command: Command) -> None:
        """The disk failed in the middle of a command, or another program had the file locked before it."""
        if not self._is_locked_out(error):
            raise error
        reply = ErrorReply(error=locked(self.store.database.path), code=Code.STORAGE_LOCKED)
        answer(self.engine.state, client, command, reply)

    def _is_locked_out(self, error: Exception) -> bool:
        """Whether another program holds the write lock, and the batch has changed nothing yet, so memory is
        not ahead of the file."""
        return disk_problem(error) == "locked" and not (self.store.is_writing or self.engine.out.writes)

    def _refuse(self, client: Client, payload: bytes, error: InvalidCommand) -> None:
        slow = is_slow_payload(payload) if error.slow is None else error.slow
        send(self.engine.state, client, refused(error, error.req_id), slow=slow)

    def commit(self) -> list[tuple[int, Reply | Raw]]:
        """Commit; after that the replies (with their connections) and the peer messages may be sent."""
        out, state = self.engine.out, self.engine.state
        errors = state.errors
        if errors.pending or errors.touched:
            error_groups.record(state)
        self._store(out, state)
        self.published, self.notices = out.published, out.notices
        if out.published:
            out.published = {}
        if out.notices:
            out.notices = []
        if state.recovery.half_flows.flows > self._half_flows:
            self._warn_of_half_flows()
        replies, out.replies = out.replies, []
        out.size = 0
        return self._relay(replies) if state.relays else replies

    def _store(self, out: Outbox, state: State) -> None:
        """Make the changes of the batch durable."""
        self.store.commit(out, state.next_seq, len(state.jobs))

    def _warn_of_half_flows(self) -> None:
        """Log that half flows were removed, once that is committed."""
        removed = self.engine.state.recovery.half_flows
        self._half_flows = removed.flows
        _log.warning(
            "half flows were removed: other shards have lost their part of them; push these flows again",
            flows=removed.flows,
            jobs=removed.jobs,
            examples=", ".join(removed.examples),
        )

    def _relay(self, replies: list[tuple[int, Reply | Raw]]) -> list[tuple[int, Reply | Raw]]:
        """Pass on the replies to commands that other shards forwarded. Returns the other replies, and those
        that passing these on has released here."""
        relays, out = self.engine.state.relays, self.engine.out
        for conn, reply in replies:
            deliver = relays.pop(conn, None)
            if deliver is None:
                out.replies.append((conn, reply))
            else:
                deliver(peers.Forwarded(Raw(encode_reply(reply))))
        left, out.replies = out.replies, []
        return left

    def peer_messages(self) -> list[tuple[int, bytes]]:
        """Messages for other shards. Call it after the commit."""
        messages, self.engine.out.peer_messages = self.engine.out.peer_messages, []
        return messages

    def lost(self) -> list[int]:
        """Connections with commands that cannot be answered. Call it after the commit."""
        lost, self.engine.out.lost = self.engine.out.lost, []
        return lost

    def _vitals(self) -> Vitals:
        damage, memory = self.store.damage, vitals.memory()
        damaged = len(damage.tables), len(damage.seqs)
        return Vitals(memory, self.store.database.size(), vitals.cpu_s(), None, self._time.news, *damaged)

    def _give_back(self, now: int) -> None:
        """Return a slice of free space to the disk, if that is worth it."""
        if not self.store.is_writing and not self.store.damage:
            self._shrinking.step(self.store.database, now)

    def compact(self) -> None:
        """Return free space to the disk, if that is worth it: before `close`, when no client waits."""
        if not self.store.damage:
            compact(self.store.database)

    def end(self) -> None:
        """Close the file cleanly, after the last commit."""
        self._dropped.log_all(self.engine.state.dropped)
        if self._time.moves:
            with suppress(*DISK_ERRORS):  # the next start resumes it
                self._time.finish(self.store)
                self.commit()
        self.store.end()

    def close(self) -> None:
        """Close the file. Uncommitted changes are dropped: no client has seen them."""
        self.store.close()
