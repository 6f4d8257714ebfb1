"""The loop of a shard process: read a batch, handle each command, commit once, answer.

A blocking loop and no event loop: there is one socket, and everything that is read from it at once
is one transaction.  The router never stops reading, so sending cannot block for long.
"""

from __future__ import annotations

import select
import socket

from bunqueue.logs import get_logger
from bunqueue.protocol import link
from bunqueue.protocol.codec import encode_frame

from .core import Shard
from .engine.state import Client

READ_SIZE = 1 << 20  # more than a Unix socket buffers, so one read takes all there is
MAX_UNSENT = 8 << 20  # bytes of replies to gather before they go, and the memory with them
_log = get_logger("shard")


class Server:
    """Serves one shard over its link to the router until the router goes or says DRAIN."""

    def __init__(self, shard: Shard, sock: socket.socket) -> None:
        self._shard = shard
        self._sock = sock
        self._splitter = link.EnvelopeSplitter(link.TO_SHARD)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._draining = False
        self._control: list[bytes] = []  # messages to the router beside replies

    def run(self) -> None:
        """Until the end of the link.  Everything that was answered is committed by then."""
        try:
            while not self._draining and self._turn():
                pass
        except ConnectionError:
            _log.info("router is gone")

    def _turn(self) -> bool:
        """One batch, or one moment that was waited for; False when the router has gone."""
        data = None
        if self._poll.poll(self._shard.wait_ms()):
            data = self._sock.recv(READ_SIZE)
            if not data:
                _log.info("router is gone")
                return False
        now = self._shard.tick()
        if data:
            for (conn, kind), body in self._splitter.feed(data):
                self._receive(conn, kind, body, now)
        self._answer()
        return True

    def _receive(self, conn: int, kind: int, body: bytes, now: int) -> None:
        shard = self._shard
        out = shard.engine.out
        if kind in (link.COMMANDS_V2, link.COMMANDS_V3):
            # A ticket is asked once; its number comes again only after all others.
            client = Client(conn, kind) if conn >= link.TICKET else shard.client(conn, kind)
            for payload in link.split_frames(body):
                shard.execute(client, payload, now)
                if out.size > MAX_UNSENT:
                    self._answer()
        elif kind in (link.CLOSED, link.SEVERED):
            shard.engine.disconnect(conn, now, severed=kind == link.SEVERED)
        elif kind == link.LIVE:
            shard.engine.adopt(frozenset(link.unpack_connections(body)), now)
        elif kind == link.PING:
            self._control.append(link.answer(link.CONTROL, link.PONG))
        elif kind == link.DRAIN:
            self._draining = True

    def _answer(self) -> None:
        """Commit, then let the replies go: one envelope a connection."""
        answers: dict[int, list[bytes]] = {}
        for conn, reply in self._shard.commit():
            frames = answers.get(conn)
            if frames is None:
                answers[conn] = [encode_frame(reply)]
            else:
                frames.append(encode_frame(reply))
        parts, clients = self._control, self._shard.engine.state.clients
        for conn, frames in answers.items():
            client = clients.get(conn)
            polls = 0
            if client is not None:
                polls, client.polls = client.polls, 0
            body = b"".join(frames)
            parts.append(link.TO_ROUTER.pack(len(body), conn, link.REPLIES, len(frames), polls))
            parts.append(body)
        if parts:
            self._sock.sendall(b"".join(parts))
            parts.clear()
