"""The loop of a shard process: read a batch, handle each command, commit once, answer.

A blocking loop and no event loop: there is one socket, and everything that is read from it at once
is one transaction.  The router never stops reading, so sending cannot block for long.  Where the host has
several routers, the sockets of the others are in `shardproc.routers`, and are read in the same turns.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterable

from bunqueue.busy_poll import SMALL, give_way
from bunqueue.logs import get_logger
from bunqueue.protocol import link
from bunqueue.protocol.codec import encode_frame
from bunqueue.protocol.events import lost_frame
from bunqueue.protocol.framing import frame

from .core import Shard
from .engine.state import Client
from .routers import READ_SIZE, Envelope, Routers

MAX_UNSENT = 8 << 20  # bytes of replies in one turn; what would cause more waits for the next
TURN_S = 0.05  # of commands in one turn; then what is done is committed and answered
LOOKS = 64  # commands from one look at the clock to the next
ENDS = frozenset({link.CLOSED, link.SEVERED, link.BROKEN})  # of a connection
_log = get_logger("shard")

Item = tuple[int, bytes]  # kind and body of an envelope


class Server:
    """Serves one shard over its link to the router until the router goes or says DRAIN."""

    def __init__(self, shard: Shard, sock: socket.socket, busy_poll_us: int = 0) -> None:
        self._shard = shard
        self._sock = sock
        self._window = busy_poll_us * 1000  # ns
        self._splitter = link.EnvelopeSplitter(link.TO_SHARD)
        # Kept: fresh memory of that size for each read would take longer than all else about a small one.
        self._buffer = memoryview(bytearray(READ_SIZE))
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._routers: Routers | None = None  # beside the first
        self._told_to_end = False
        self._answered_at = 0  # the last batch, ns
        self._prompt = False  # it had come within the window after the one before
        self._until = 0.0  # when this turn has gone on for long enough
        self._control: list[bytes] = []  # messages to the router beside replies
        self._backlog: dict[int, deque[Item]] = {}  # of the connections that had too much to answer

    def share(self, routers: Routers) -> None:
        """Serve further routers, too."""
        self._routers = routers

    def close(self) -> None:
        """Hear no further router any more."""
        if self._routers is not None:
            self._routers.close()

    @property
    def draining(self) -> bool:
        """Told to end, and no router has anything more to ask."""
        return self._told_to_end and self._others_have_ended

    @property
    def _others_have_ended(self) -> bool:
        return self._routers is None or self._routers.have_ended

    def connections(self) -> Iterable[int]:
        """Those that the shard knows."""
        return self._shard.engine.state.clients

    def run(self) -> None:
        """Until the end of the link.  Everything that was answered is committed by then."""
        try:
            while (not self.draining or self._busy) and self._turn():
                pass
        except ConnectionError:
            _log.info("router is gone")

    @property
    def _busy(self) -> bool:
        return bool(self._backlog or self._shard.engine.state.works)

    def _wait(self, limit_ms: int) -> list[tuple[int, int]]:
        """What there is to read, and from whom, within that time.

        Whom it answered may ask again at once: see `bunqueue.busy_poll`.
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
        """One batch, or one moment that was waited for; False when the router has gone."""
        shard = self._shard
        envelopes: Iterable[Envelope] = ()
        if ready := self._wait(0 if self._backlog else shard.wait_ms()):
            arrived = self._receive_from(ready)
            if arrived is None:
                return False
            envelopes = arrived
            shard.hear()
        self._carry_out(envelopes)
        self._commit_and_send()
        if ready:
            self._answered_at = time.monotonic_ns()
        return True

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
        others = routers.hear(ready)
        self._note(routers.heard)
        return found + others

    def _read(self) -> bytes:
        """What has arrived from the first router; nothing when it has gone."""
        size = self._sock.recv_into(self._buffer)
        self._note(size)
        if not size:
            _log.info("router is gone")
        return bytes(self._buffer[:size])

    def _note(self, size: int) -> None:
        """So many bytes have come."""
        self._prompt = size <= SMALL and time.monotonic_ns() - self._answered_at < self._window

    def _carry_out(self, envelopes: Iterable[Envelope]) -> None:
        """A batch, up to its commit: what is due, what has arrived, and some of what had to wait."""
        shard = self._shard
        now = shard.tick()
        self._until = time.monotonic() + TURN_S
        for (conn, kind), body in envelopes:
            if kind == link.PING:
                self._control.append(link.answer(link.CONTROL, link.PONG))
            elif kind == link.DRAIN:
                self._told_to_end = True
            elif self._backlog:
                self._backlog.setdefault(conn, deque()).append((kind, body))
            else:
                self._receive(conn, kind, body, now)
        if self._backlog:
            self._work_off(now)
        if shard.engine.state.works:
            shard.work()

    def _receive(self, conn: int, kind: int, body: bytes, now: int) -> None:
        shard = self._shard
        if kind in link.COMMAND_KINDS:
            # A ticket is asked once; its number comes again only after all others.
            client = Client(conn, kind) if conn >= link.TICKET else shard.client(conn, kind)
            self._execute(client, kind, body, now)
        elif kind in ENDS:
            shard.disconnect(conn, now, severed=kind == link.SEVERED, broken=kind == link.BROKEN)
        elif kind == link.GONE:
            shard.gone(body.decode(), now)
        elif kind == link.PEER_MESSAGE:
            shard.receive(body[0], body[1:], now)
        elif kind == link.PEER:
            shard.peer_is_up(body[0], now)
        elif kind == link.UNSUBSCRIBE:
            shard.engine.unsubscribe(conn)
        elif kind == link.WORKER_PRESENCE:
            presence = link.decode_worker_presence(body)
            origin = link.origin_of(conn)
            shard.engine.worker_presence(
                presence.queues, present=presence.present, names=presence.names, origin=origin
            )
        elif kind == link.SUBSCRIBE:
            shard.engine.subscribe(conn, body.decode())
        elif kind == link.ORIGIN_GONE:
            shard.engine.router_gone(link.origin_of(conn))
        elif kind == link.ORIGIN_CUT:
            origin = link.origin_of(conn)
            shard.engine.unheard([each for each in self.connections() if link.origin_of(each) == origin])
        elif kind == link.LIVE:
            shard.engine.adopt(frozenset(link.unpack_connections(body)), now)
        elif kind == link.ROUTER:
            self._end_others(link.router_of(conn), frozenset(link.unpack_connections(body)), now)

    def _end_others(self, router: int, live: frozenset[int], now: int) -> None:
        """A router says which of its connections are open: others have ended while it was not connected."""
        for conn in list(self.connections()):
            if link.router_of(conn) == router and conn not in live:
                self._shard.disconnect(conn, now, severed=False, broken=True)

    def _execute(self, client: Client, kind: int, body: bytes, now: int) -> None:
        """Carry out commands, until there is enough to answer or others have waited for long; the rest goes
        to the backlog."""
        shard, out = self._shard, self._shard.engine.out
        payloads = link.split_frames(body)
        for done, payload in enumerate(payloads, 1):
            shard.execute(client, payload, now)
            if done == len(payloads):
                return
            late = done % LOOKS == 1 and time.monotonic() > self._until
            if late or out.size > MAX_UNSENT:
                rest = b"".join(frame(payload) for payload in payloads[done:])
                self._backlog.setdefault(client.conn, deque()).appendleft((kind, rest))
                return

    def _work_off(self, now: int) -> None:
        """One turn for what had to wait: connection by connection, as much as may be answered."""
        out = self._shard.engine.out
        while self._backlog and out.size <= MAX_UNSENT:
            conn = next(iter(self._backlog))
            items = self._backlog.pop(conn)
            kind, body = items.popleft()
            gone = bool(items) and items[-1][0] in ENDS
            if gone and kind in link.COMMAND_KINDS:
                self._finish_off(conn, kind, body, now)
            else:
                self._receive(conn, kind, body, now)
            rest = self._backlog.pop(conn, None)  # what of it has to wait again
            if rest:
                items.extendleft(reversed(rest))
            if items:
                self._backlog[conn] = items  # at the end: the others come first
            if time.monotonic() > self._until:
                return

    def _finish_off(self, conn: int, kind: int, body: bytes, now: int) -> None:
        """Commands of a client that has left: what it asked to be done is done, its questions are not
        answered."""
        client = self._shard.client(conn, kind)
        for payload in link.split_frames(body):
            self._shard.execute_unheard(client, payload, now)

    def _commit_and_send(self) -> None:
        """Commit, then let the replies go: one envelope a connection."""
        answers: dict[int, list[bytes]] = {}
        for conn, reply in self._shard.commit():
            frames = answers.get(conn)
            if frames is None:
                answers[conn] = [encode_frame(reply)]
            else:
                frames.append(encode_frame(reply))
        parts, clients = self._control, self._shard.engine.state.clients
        # Peer messages go before replies: a client that reads its reply finds done what the command caused
        # on other shards.
        for peer, message in self._shard.peer_messages():
            parts.append(link.answer(link.CONTROL, link.TO_PEER, bytes((peer,)) + message))
        if self._shard.published:
            self._publish()
        for conn, frames in answers.items():
            client = clients.get(conn)
            slow = 0
            if client is not None:
                slow, client.slow = client.slow, 0
            body = b"".join(frames)
            to = parts if self._routers is None else self._parts(conn)
            to.append(link.TO_ROUTER.pack(len(body), conn, link.REPLIES, len(frames), slow))
            to.append(body)
        for conn, notice in self._shard.notices:  # after the pulls that they are about
            self._parts(conn).append(link.answer(conn, link.REPLIES, notice))
        if lost := self._shard.lost():
            for to, some in self._by_router(lost):
                to.append(link.answer(link.CONTROL, link.LOST, link.pack_connections(some)))
        self._send()

    def _parts(self, conn: int) -> list[bytes]:
        """What goes to the router of a connection, or a ticket, in this turn."""
        return self._control if self._routers is None else self._routers.parts(conn, self._control)

    def _by_router(self, conns: Iterable[int]) -> list[tuple[list[bytes], list[int]]]:
        """Connections, by the router that is to hear of them."""
        if self._routers is None:
            return [(self._control, list(conns))]
        found: dict[int, tuple[list[bytes], list[int]]] = {}
        for conn in conns:
            to = self._parts(conn)
            found.setdefault(id(to), (to, []))[1].append(conn)
        return list(found.values())

    def _send(self) -> None:
        """Let go what is to go."""
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
