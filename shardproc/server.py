"""The loop of a shard process: read a batch, handle each command, commit once, answer.

This is a blocking loop, not an event loop: there is one socket, and everything that is read from it at once
is one transaction. The router never stops reading, so sending cannot block for long. If the host has several
routers, the sockets of the others are in `shardproc.routers`, and are read in the same turns.

The queue of one connection never delays the commands of another. What a connection sends is carried out at
once, for AT_ONCE_S; the rest is queued (`shardproc.rounds`), and all connections with a queue take turns of a
slice. Between two slices the loop checks for new commands: a connection without a queue is answered at once,
and `bunqueue.server.host.pace` decides how long the next slice waits for them.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable

from bunqueue.logs import get_logger
from bunqueue.model.scope import Scope, read_scope
from bunqueue.protocol.codec import encode_payload, encode_reply
from bunqueue.protocol.event_frames import lost_frame
from bunqueue.protocol.framing import MAX_FRAME, pack_length
from bunqueue.server.host.busy_poll import SMALL, give_way
from bunqueue.server.host.pace import AT_ONCE_S, SLICE_S, Pace, Slice
from bunqueue.server.links import shard_protocol as link

from .core import Shard
from .engine.state import Client
from .rounds import Rounds, Waiting
from .routers import READ_SIZE, Envelope, Routers

MAX_UNSENT = 8 << 20  # bytes of replies in one batch; commands that would cause more wait for the next
ENDS = frozenset({link.CLOSED, link.SEVERED, link.BROKEN})  # of a connection
_log = get_logger("shard")


class Server:
    """Serves one shard over its link to the router until the router goes or sends DRAIN."""

    def __init__(self, shard: Shard, sock: socket.socket, busy_poll_us: int = 0) -> None:
        self._shard = shard
        self._sock = sock
        self._window = busy_poll_us * 1000  # ns
        self._splitter = link.EnvelopeSplitter(link.TO_SHARD)
        # Kept: fresh memory of that size for each read would take longer than everything else about a small
        # one.
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._routers: Routers | None = None  # besides the first
        self._is_asked_to_end = False
        self._is_alone = False  # the first router has gone
        self._answered_at = 0  # the last batch, ns
        self._prompt = False  # it came within the window after the batch before
        self._control: list[bytes] = []  # messages to the router other than replies
        self._rounds = Rounds()
        self._pace = Pace()
        self._last: tuple[Slice, int] | None = None  # the last slice of this batch, and its connection
        self._is_owed = False  # queued work is due a slice, as new commands were answered first
        self._askers: dict[int, int] = {}  # ticket -> the connection in whose turn its command is

    def share(self, routers: Routers) -> None:
        """Serve secondary routers as well."""
        self._routers = routers

    def close(self) -> None:
        """Close the connections of secondary routers."""
        if self._routers is not None:
            self._routers.close()

    @property
    def draining(self) -> bool:
        """True once the server should end and no router has any more commands."""
        return self._is_asked_to_end and self._others_have_ended

    @property
    def _others_have_ended(self) -> bool:
        return self._routers is None or self._routers.have_ended

    def connections(self) -> Iterable[int]:
        """The connections that the shard knows."""
        return self._shard.engine.state.clients

    def run(self) -> None:
        """Run until the link ends. Everything that was answered is committed by then."""
        try:
            while (not self.draining or self._busy) and self._turn():
                pass
        except ConnectionError:
            _log.info("router is gone")

    @property
    def _has_queued(self) -> bool:
        """Whether there are commands, or unfinished long tasks."""
        return bool(self._rounds.queues or self._shard.engine.state.long_works)

    @property
    def _busy(self) -> bool:
        """Whether a server that should end still has work."""
        return self._has_queued

    def _wait(self, limit_ms: int) -> list[tuple[int, int]]:
        """Wait at most that long for data to read; returns the ready descriptors.

        Polls briefly before it sleeps, as a client that was just answered may ask again at once: see
        `bunqueue.server.host.busy_poll`.
        """
        if self._routers is not None and self._routers.changed:
            self._poll = self._routers.poll(self._sock)
        poll = self._poll.poll
        if self._prompt and limit_ms:
            end = self._answered_at + self._window
            while time.monotonic_ns() < end:
                if ready := poll(0):
                    return ready
                give_way()
        return poll(limit_ms)

    def _turn(self) -> bool:
        """Run one batch, or one wait; False when the router has gone."""
        shard = self._shard
        envelopes: Iterable[Envelope] = ()
        if ready := self._wait(self._idle_ms()):
            arrived = self._receive_from(ready)
            if arrived is None:
                return False
            envelopes = arrived
            shard.mark_router_active()
        self._carry_out(envelopes)
        self._commit_and_send()
        if self._last is not None:
            self._pace.worked(*self._last)  # answering is a part of it
            self._last = None
        if ready:
            self._answered_at = time.monotonic_ns()
        return not self._is_alone

    def _idle_ms(self) -> int:
        """The time until something is due, unless something arrives."""
        if self._has_queued:
            return math.ceil(1000 * self._pace.pause_s)
        return self._shard.wait_ms()

    def _arrivals(self) -> Iterable[Envelope]:
        """What has arrived since the batch began."""
        ready = self._wait(0)
        arrived = self._receive_from(ready) if ready else ()
        if arrived is None:
            self._is_alone = True  # the finished work is committed all the same
        elif arrived:
            self._shard.mark_router_active()
        return arrived or ()

    def _receive_from(self, ready: list[tuple[int, int]]) -> list[Envelope] | None:
        """What has arrived; None when the router has gone."""
        routers = self._routers
        if routers is None:
            data = self._read()
            return self._splitter.feed(data) if data else None
        found: list[Envelope] = []
        if any(descriptor == self._sock.fileno() for descriptor, _ in ready):
            data = self._read()
            if not data:
                return None
            found = self._splitter.feed(data)
        others = routers.receive(ready)
        self._note(routers.received)
        return found + others

    def _read(self) -> bytes:
        """What has arrived from the first router; empty when it has gone."""
        size = self._sock.recv_into(self._buffer)
        self._note(size)
        if not size:
            _log.info("router is gone")
        return bytes(self._buffer[:size])

    def _note(self, size: int) -> None:
        """Note the number of bytes that have arrived."""
        self._prompt = size <= SMALL and time.monotonic_ns() - self._answered_at < self._window

    def _carry_out(self, envelopes: Iterable[Envelope]) -> None:
        """A batch, up to its commit: what is due, what has arrived, and some of the queued work."""
        now = self._shard.tick()
        received = self._sort_in(envelopes, now)
        if not self._has_queued or self._pace.pause_s:
            return
        if received and not self._is_owed:  # new commands are answered first
            self._is_owed = True
        else:
            self._is_owed = False
            self._work_off(now)

    def _work_off(self, now: int) -> None:
        """Work on the queue, slice by slice, until another connection asks, there is enough to answer, or the
        time of a batch is over."""
        out, works = self._shard.engine.out, self._shard.engine.state.long_works
        until = time.monotonic() + self._shard.batch_s
        while self._has_queued:
            who = next(iter(self._rounds.queues or works))
            turn = Slice()
            if self._rounds:
                self._give_turn(turn, now)
            if works:
                self._shard.work(SLICE_S)
            self._last = turn, who
            self._pace.worked(turn, who)
            if self._pace.pause_s or out.size > MAX_UNSENT or time.monotonic() > until:
                return
            if self._sort_in(self._arrivals(), now) or self._is_alone:
                return

    def _sort_in(self, envelopes: Iterable[Envelope], now: int) -> bool:
        """Carry out what has arrived, or queue it after what its connection has queued already. Returns
        whether a connection was answered that has little to do, and nothing queued."""
        rounds, works, received, last = self._rounds, self._shard.engine.state.long_works, False, link.CONTROL
        queues, lately, who = rounds.queues, rounds.lately, link.CONTROL
        slice_: Slice | None = None  # of the last connection, once it has sent several
        for (conn, kind), body in envelopes:
            turn, scope = conn, None
            if kind & link.SCOPED:
                kind, wire, body = link.split_scope(kind, body)
                scope = read_scope(wire)
            if kind in _AT_ONCE:
                _AT_ONCE[kind](self, conn, body)
                continue
            if conn >= link.TICKET:
                turn = self._askers.pop(conn, conn)
            if turn != last or turn == link.CONTROL:  # which stands for all messages of routers and shards
                last, slice_ = turn, None
            elif slice_ is None:
                slice_ = Slice(AT_ONCE_S)
            elif slice_.is_over:
                rounds.note(turn)
            if turn in queues or (turn in lately and rounds.is_busy(turn)):
                rounds.add(turn, Waiting(conn, kind, body, scope=scope))
            else:
                begun = time.monotonic()
                self._receive(turn, conn, kind, body, now, scope)
                if not (received or turn == link.CONTROL or turn in queues or turn in works):
                    received = time.monotonic() - begun < SLICE_S
                    who = turn
        if received and (queues or works):
            self._pace.asked(who)
        return received

    def _pong(self, conn: int, body: bytes) -> None:
        self._control.append(link.answer(link.CONTROL, link.PONG))

    def _drain(self, conn: int, body: bytes) -> None:
        self._is_asked_to_end = True

    def _asked_by(self, conn: int, body: bytes) -> None:
        self._askers[conn] = int.from_bytes(body)

    def _receive(
        self, turn: int, conn: int, kind: int, body: bytes, now: int, scope: Scope | None = None
    ) -> None:
        shard = self._shard
        if kind in link.COMMAND_KINDS:
            payloads = link.split_frames(body)
            client = self._client(turn, conn, kind, scope)
            if len(payloads) == 1:
                shard.execute(client, payloads[0], now)
            else:
                left = deque(payloads)
                self._execute(Slice(AT_ONCE_S), client, left, now)
                if left:
                    self._rounds.add(turn, Waiting(conn, kind, body, left, scope))
        elif (handle := _MESSAGES.get(kind)) is not None:
            handle(shard, conn, body, now)
        elif kind == link.ROUTER:
            self._end_others(link.router_of(conn), frozenset(link.unpack_connections(body)), now)

    def _client(self, turn: int, conn: int, version: int, scope: Scope | None) -> Client:
        """The client object. A ticket is used once; its number is reused only after all others."""
        if conn >= link.TICKET:
            client = Client(conn, version, turn)
        else:
            client = self._shard.engine.state.client(conn, version)
        if client.sent_scope is not scope:
            client.act_for(scope)
        return client

    def _end_others(self, router: int, live: frozenset[int], now: int) -> None:
        """A router reports which of its connections are open: the others have ended while it was not
        connected."""
        for conn in {*self.connections(), *self._rounds.queues}:
            if link.router_of(conn) != router or conn in live:
                continue
            if conn in self._rounds.queues:
                self._rounds.add(conn, Waiting(conn, link.BROKEN))
            else:
                self._shard.disconnect(conn, now, severed=False, broken=True)

    def _execute(self, turn: Slice, client: Client, payloads: deque[bytes], now: int) -> None:
        """Carry out commands of one connection, until its turn is over or there is enough to answer."""
        execute, out, clock = self._shard.execute, self._shard.engine.out, time.monotonic
        while payloads:
            execute(client, payloads.popleft(), now)
            if (clock() >= turn.until and turn.is_over) or out.size > MAX_UNSENT:
                return

    def _give_turn(self, slice_: Slice, now: int) -> None:
        """Give one turn to the connection that has waited longest."""
        turn, queue = self._rounds.next()
        out = self._shard.engine.out
        while queue:
            waiting = queue[0]
            if waiting.kind in link.COMMAND_KINDS:
                self._go_on(slice_, turn, waiting, now, gone=queue[-1].kind in ENDS)
            else:
                self._receive(turn, waiting.conn, waiting.kind, waiting.body, now, waiting.scope)
            if not waiting.payloads:
                queue.popleft()
            if slice_.is_over or out.size > MAX_UNSENT:
                break
        self._rounds.done(turn)

    def _go_on(self, slice_: Slice, turn: int, waiting: Waiting, now: int, *, gone: bool) -> None:
        """Continue with the rest of an envelope; its client may have left."""
        if waiting.payloads is None:
            waiting.payloads = deque(link.split_frames(waiting.body))
        client = self._client(turn, waiting.conn, waiting.kind, waiting.scope)
        if gone:
            self._finish_off(slice_, client, waiting.payloads, now)
        else:
            self._execute(slice_, client, waiting.payloads, now)

    def _finish_off(self, turn: Slice, client: Client, payloads: deque[bytes], now: int) -> None:
        """Like `_execute`, for a client that has left: its changes are made, its questions are not
        answered."""
        while payloads:
            self._shard.execute_without_reply(client, payloads.popleft(), now)
            if turn.is_over:
                return

    def _commit_and_send(self) -> None:
        """Commit, then send the replies: one envelope per connection."""
        shard = self._shard
        answers: dict[int, list[bytes]] = {}  # of each frame, its length and its payload
        for conn, reply in shard.commit():
            payload = encode_reply(reply)  # `encode_payload`, inlined: once for each command
            if len(payload) > MAX_FRAME:
                payload = encode_payload(reply)
            frames = answers.get(conn)
            if frames is None:
                answers[conn] = [pack_length(len(payload)), payload]
            else:
                frames += pack_length(len(payload)), payload
        parts, clients, out = self._control, shard.engine.state.clients, shard.engine.out
        # Peer messages go before replies, so a client that reads its reply finds that the command's effects
        # on other shards are done.
        if out.peer_messages:
            for peer, message in shard.peer_messages():
                parts.append(link.answer(link.CONTROL, link.TO_PEER, bytes((peer,)) + message))
        if shard.published:
            self._publish()
        for conn, frames in answers.items():
            client = clients.get(conn)
            slow = 0
            if client is not None:
                slow, client.slow = client.slow, 0
            body = b"".join(frames)
            to = parts if self._routers is None else self._parts(conn)
            to.append(link.TO_ROUTER.pack(len(body), conn, link.REPLIES, len(frames) // 2, slow))
            to.append(body)
        for conn, notice in shard.notices:  # after the pulls that they are about
            self._parts(conn).append(link.answer(conn, link.REPLIES, notice))
        if out.lost:
            for to, some in self._by_router(shard.lost()):
                to.append(link.answer(link.CONTROL, link.LOST, link.pack_connections(some)))
        self._send()

    def _parts(self, conn: int) -> list[bytes]:
        """The messages to the router of a connection, or a ticket, in this turn."""
        return self._control if self._routers is None else self._routers.parts(conn, self._control)

    def _by_router(self, conns: Iterable[int]) -> list[tuple[list[bytes], list[int]]]:
        """Connections, by the list of messages to their router."""
        if self._routers is None:
            return [(self._control, list(conns))]
        found: dict[int, tuple[list[bytes], list[int]]] = {}
        for conn in conns:
            to = self._parts(conn)
            found.setdefault(id(to), (to, []))[1].append(conn)
        return list(found.values())

    def _send(self) -> None:
        """Send the messages of this turn."""
        if self._control:
            self._sock.sendall(b"".join(self._control))
            self._control.clear()
        if self._routers is not None:
            self._routers.send()

    def _publish(self) -> None:
        """Send events to their subscribers."""
        state = self._shard.engine.state
        for queue, published in self._shard.published.items():
            if published.lost:
                published.frames.append(lost_frame(queue, published.lost, state.now))
            if listeners := state.listeners.get(queue):
                for to, some in self._by_router(listeners):
                    body = link.pack_events(some, published.frames)
                    to.append(link.answer(link.CONTROL, link.EVENTS, body))


def _worker_presence(shard: Shard, conn: int, body: bytes, now: int) -> None:
    presence = link.decode_worker_presence(body)
    shard.engine.worker_presence(
        presence.queues, present=presence.present, names=presence.names, origin=link.origin_of(conn)
    )


def _origin_disconnected(shard: Shard, conn: int, body: bytes, now: int) -> None:
    origin = link.origin_of(conn)
    shard.engine.cancel_waits([each for each in shard.engine.state.clients if link.origin_of(each) == origin])


_AT_ONCE: dict[int, Callable[[Server, int, bytes], None]] = {
    link.PING: Server._pong,
    link.DRAIN: Server._drain,
    link.ASKER: Server._asked_by,
}
"""Messages that wait for no turn."""
_MESSAGES: dict[int, Callable[[Shard, int, bytes, int], object]] = {
    link.CLOSED: lambda shard, conn, body, now: shard.disconnect(conn, now, severed=False, broken=False),
    link.SEVERED: lambda shard, conn, body, now: shard.disconnect(conn, now, severed=True, broken=False),
    link.BROKEN: lambda shard, conn, body, now: shard.disconnect(conn, now, severed=False, broken=True),
    link.HALF_CLOSED: lambda shard, conn, body, now: shard.half_closed(conn, now),
    link.GONE: lambda shard, conn, body, now: shard.worker_ended(body.decode(), now),
    link.PEER_MESSAGE: lambda shard, conn, body, now: shard.receive(body[0], body[1:], now),
    link.PEER: lambda shard, conn, body, now: shard.peer_is_up(body[0], now),
    link.SUBSCRIBE: lambda shard, conn, body, now: shard.engine.subscribe(conn, body.decode()),
    link.UNSUBSCRIBE: lambda shard, conn, body, now: shard.engine.unsubscribe(conn),
    link.WORKER_PRESENCE: _worker_presence,
    link.ORIGIN_GONE: lambda shard, conn, body, now: shard.engine.router_disconnected(link.origin_of(conn)),
    link.ORIGIN_CUT: _origin_disconnected,
    link.QUOTAS: lambda shard, conn, body, now: shard.engine.state.tenants.change(link.decode_quotas(body)),
    link.LIVE: lambda shard, conn, body, now: shard.engine.reattach(
        frozenset(link.unpack_connections(body)), now
    ),
}
"""What each message that is no command does. ``conn``: the connection that it is about."""
