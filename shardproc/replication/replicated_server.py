"""The loop of a shard process that has a log.

Like `shardproc.server`, but a batch is released only when the log has its record, and the next batch begins
after that. What arrives in between waits, so nothing is ever carried out on top of changes that may be lost.

    arrived ─► a batch is carried out ─► sealed ─► appended ─► acknowledged ─► committed, replies leave

A batch that changes nothing needs no record: its replies are sent while the last answer of the log is so
recent that no other process can own the shard yet.

While the log is unavailable, time is paused for the engine. After UNPROVEN_S new commands are refused, so
clients need not wait; only questions about the server itself are answered.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterable

from msgspec import Raw

from bunqueue.logs import get_logger
from bunqueue.model.scope import read_scope
from bunqueue.protocol.codec import InvalidCommand, decode_command, encode_frame, is_slow_payload
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.base import CommandError, refused
from bunqueue.protocol.framing import frame
from bunqueue.server.links import shard_protocol as link
from shardproc.core import StorageFailed, spec_of
from shardproc.engine.memory.vitals import StorageFault
from shardproc.engine.state import Client
from shardproc.routers import READ_SIZE, Envelope
from shardproc.server import ENDS, Server

from .errors import LogDamaged
from .owner import Phase
from .replicated_shard import RETRY_AFTER_MS, UNPROTECTED, ReplicatedShard
from .snapshot_maker import SnapshotMaker

UNPROVEN_S = 1.0  # without a proof that the shard is owned; then new commands are refused
MAX_ARRIVED = 32 << 20  # bytes that wait for the next batch; above it, the router has to wait
PONG_S = 1.0  # a shard that does not read sends the router a PONG this often
LEAVE_S = 2.0  # for exchanges between shards to end, before another host takes the shard over
CLOSE_S = 3.0  # for the last record, when the server stops
STALLED_S = 2.0  # if the log was unavailable for longer, no worker could renew a lock
IDLE_MS = 1_000

_log = get_logger("shard")


class ReplicatedServer(Server):
    """Serves one shard that has a log over its link to the router."""

    def __init__(self, shard: ReplicatedShard, sock: socket.socket, snapshots: SnapshotMaker) -> None:
        super().__init__(shard, sock)
        self._snapshots = snapshots
        self._shard: ReplicatedShard = shard
        self._log = shard.log
        self._arrived: deque[Envelope] = deque()
        self._arrived_bytes = 0
        self._pinged = False  # since the last batch; every ping causes one, as in `Server`
        self._record = b""  # sealed; the log does not have it yet
        self._position = 0  # of the record that is being appended; 0: there is no record
        self._holds = False  # a batch waits for the log
        self._leaves_at: float | None = None  # another host takes the shard over: the latest time to leave
        self._uncertain_since: float | None = None  # no proof since then that the shard is owned
        self._spoken_at = 0.0
        self._polled: dict[int, int] = {}  # descriptor -> what it is polled for

    @property
    def _busy(self) -> bool:
        return self._holds or bool(self._arrived) or super()._busy

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the end of the link. Everything that was answered is in the log by then.

        Raises Fenced if the shard is another process's now, StorageFailed if the log contradicts itself.
        """
        try:
            super().run()
        except LogDamaged as error:
            raise StorageFailed(str(error)) from error
        if self._leaves_at is not None:
            self._hand_over()
        elif self.draining and not self._holds:
            self._close_in_order()

    def _turn(self) -> bool:
        if (ready := self._poll_both(self._pause_ms())) and not self._receive_ready(ready):
            return False
        now = time.monotonic()
        self._advance(now)
        if self._holds:
            self._advance_batch(now)
        if not self._holds and self._log.owner.owns(now):
            self._begin_batch(now)
        self._check_availability(now)
        self._send()
        return self._leaves_at is None or not self._may_leave(now)

    def _may_leave(self, now: float) -> bool:
        """Whether everything that has arrived is answered, and no exchange between shards is in progress."""
        if self._holds or self._arrived or self._rounds:
            return False
        state = self._shard.engine.state
        assert self._leaves_at is not None
        under_way = bool(state.long_works or state.asked or not self._others_have_ended)
        return not under_way or now > self._leaves_at

    def _poll_both(self, limit_ms: float) -> list[tuple[int, int]]:
        """Wait for the routers, the log or the time; returns the router sockets that can be read."""
        wanted = {}
        if self._arrived_bytes <= MAX_ARRIVED:
            wanted[self._sock.fileno()] = select.POLLIN
            if self._routers is not None:
                wanted |= self._routers.wanted
        if (number := self._log.link.fileno) is not None:
            wanted[number] = select.POLLIN | (select.POLLOUT if self._log.link.wants_write else 0)
        if wanted != self._polled:
            self._poll = select.poll()
            for descriptor, what in wanted.items():
                self._poll.register(descriptor, what)
            self._polled = wanted
        return [(descriptor, what) for descriptor, what in self._poll.poll(limit_ms) if descriptor != number]

    def _pause_ms(self) -> float:
        now = time.monotonic()
        waits = [IDLE_MS / 1000]
        if (wait := self._log.wait_s(now)) is not None:
            waits.append(wait)
        if self._uncertain_since is not None:
            waits.append(max(0.05, self._uncertain_since + UNPROVEN_S - now))
        elif not self._holds and self._log.owner.owns(now):
            waits.append(0 if self._has_arrived else self._idle_ms() / 1000)
        return max(0.0, min(waits)) * 1000

    @property
    def _has_arrived(self) -> bool:
        return bool(self._arrived or self._pinged)

    def _receive_ready(self, ready: list[tuple[int, int]]) -> bool:
        """Take what the routers have sent; False when the first one has gone."""
        envelopes = self._receive_from(ready)
        if envelopes is None:
            return False
        for envelope in envelopes:
            (conn, kind), body = envelope
            match kind:
                case link.PING:
                    self._pinged = True
                    self._pong(conn, body)
                case link.DRAIN:
                    self._drain(conn, body)
                case link.HANDOVER:
                    self._leaves_at = time.monotonic() + LEAVE_S
                case _:
                    self._arrived.append(envelope)
                    self._arrived_bytes += len(body)
        return True

    def _advance(self, now: float) -> None:
        """Advance the log."""
        was_protected = self._log.is_protected
        if self._log.turn(now):
            raise LogDamaged("another owner has written to the log of a shard that is still this one's")
        if self._log.is_protected != was_protected:
            self._log_protection()
        if self._arrived_bytes > MAX_ARRIVED and now - self._spoken_at > PONG_S:
            self._spoken_at = now
            self._control.append(link.answer(link.CONTROL, link.PONG))

    def _log_protection(self) -> None:
        if self._log.is_protected:
            _log.info("the store has a synchronous standby again")
        else:
            _log.warning(UNPROTECTED, fix="see bunqueue store check")

    # -- a batch -------------------------------------------------------------------------------

    def _begin_batch(self, now: float) -> None:
        """Begin a batch, only while the shard is proved to be owned, so read-only commands never have to
        wait."""
        if not self._has_arrived and self._idle_ms() > 0:
            return
        if self._has_arrived:
            self._shard.mark_router_active()
            self._pinged = False
        self._carry_out(self._next_arrived())
        record = self._shard.seal()
        # Read the time again: this process may have been paused for long since the turn began, and what was
        # read after that counts only if the shard is still owned.
        self._seal(record, time.monotonic())

    def _arrivals(self) -> Iterable[Envelope]:
        if (ready := self._poll_both(0)) and not self._receive_ready(ready):
            self._is_alone = True
        if self._arrived:
            self._shard.mark_router_active()
        return self._next_arrived()

    def _next_arrived(self) -> list[Envelope]:
        """As many as one read from the router would bring."""
        some: list[Envelope] = []
        size = 0
        while self._arrived and size < READ_SIZE:
            envelope = self._arrived.popleft()
            size += len(envelope[1])
            some.append(envelope)
        self._arrived_bytes -= size
        return some

    def _seal(self, record: bytes, now: float) -> None:
        self._record, self._holds = record, True
        self._advance_batch(now)

    def _advance_batch(self, now: float) -> None:
        """Append the batch's record, and release the batch once it may be released."""
        owner = self._log.owner
        if self._record and owner.is_idle:
            self._position = owner.position + 1
            owner.append(self._record)
            self._record = b""
            self._advance(now)
        if self._record:
            return
        if owner.position >= self._position if self._position else owner.owns(now):
            self._position, self._holds = 0, False
            self._commit_and_send()
            self._snapshots.check(self._log.appended)

    def _close_in_order(self) -> None:
        """Write the last record, so the next start knows that nothing is missing and need not wait for this
        one's lease."""
        end = time.monotonic() + CLOSE_S
        owner = self._log.owner
        self._seal(self._shard.mark_closed(), time.monotonic())
        while owner.phase is not Phase.RELEASED and (now := time.monotonic()) < end:
            self._poll_both(100)
            self._advance(now)
            if self._holds:
                self._advance_batch(now)
            elif owner.is_idle:
                owner.release()
                self._advance(now)

    def _hand_over(self) -> None:
        """Send back the commands that wait here, and give the shard up."""
        shard = self._shard
        returned: dict[tuple[int, int], list[bytes]] = {}
        for client, payload in shard.engine.parked(shard.now()):
            returned.setdefault((client.conn, client.version), []).append(frame(payload))
        for (conn, version), frames in returned.items():
            body = link.pack_connections([conn]) + bytes((version,)) + b"".join(frames)
            self._parts(conn).append(link.answer(link.CONTROL, link.RETURNED, body))
        self._close_in_order()
        if self._log.owner.phase is Phase.RELEASED:
            self._control.append(link.answer(link.CONTROL, link.RELEASED))
        self._send()

    # -- while the log is unavailable ----------------------------------------------------------

    def _check_availability(self, now: float) -> None:
        if self._log.owner.owns(now):
            if self._uncertain_since is not None:
                self._is_back(now - self._uncertain_since)
            return
        if self._uncertain_since is None:
            self._uncertain_since = now
        if now - self._uncertain_since < UNPROVEN_S:
            return
        shard = self._shard
        if shard.unavailable_since is None:
            shard.unavailable_since = shard.now() - int((now - self._uncertain_since) * 1000)
            _log.error(
                "the store is unavailable: commands are refused until it is back",
                error=self._log.owner.fault or "it does not acknowledge",
            )
            for conn, reply in shard.take_operational():
                self._parts(conn).append(link.answer(conn, link.REPLIES, encode_frame(reply), 1))
        fault = shard.store_fault()
        if self._arrived and fault is not None:
            self._refuse_arrived(fault)

    def _is_back(self, unavailable_s: float) -> None:
        self._uncertain_since = None
        shard = self._shard
        if shard.unavailable_since is not None:
            shard.unavailable_since = None
            _log.info("the store is back", after_ms=int(unavailable_s * 1000))
        if unavailable_s > STALLED_S:
            shard.was_stalled()

    def _refuse_arrived(self, fault: StorageFault) -> None:
        """Refuse the commands that have arrived. Everything else waits: ended connections, other shards'
        messages."""
        kept: deque[Envelope] = deque()
        for envelope in self._arrived:
            (conn, kind), body = envelope
            if kind in link.COMMAND_KINDS:
                version, scope, commands = link.split_scope(kind, body)
                client = Client(conn, version)  # not the shard's client object, whose replies wait
                client.act_for(read_scope(scope) if scope else None)
                self._answer_unavailable(client, link.split_frames(commands), fault)
            elif kind not in ENDS or conn in self._shard.engine.state.clients:
                kept.append(envelope)
        self._arrived = kept
        self._arrived_bytes = sum(len(body) for _, body in kept)

    def _answer_unavailable(self, client: Client, payloads: list[bytes], fault: StorageFault) -> None:
        conn = client.conn
        frames = [encode_frame(self._reply_unavailable(client, payload, fault)) for payload in payloads]
        slow = sum(map(is_slow_payload, payloads))
        self._parts(conn).append(link.answer(conn, link.REPLIES, b"".join(frames), len(frames), slow))

    def _reply_unavailable(self, client: Client, payload: bytes, fault: StorageFault) -> Reply | Raw:
        try:
            command = decode_command(payload)
            if spec_of(command).operational:
                return self._shard.ask_about_server(client, command)
            problem = CommandError(fault.error, fault.code, retry_after=RETRY_AFTER_MS)
            error = InvalidCommand(problem, command.req_id)
        except InvalidCommand as invalid:
            error = invalid
        return refused(error, error.req_id)
