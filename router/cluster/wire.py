"""One connection between the routers of two hosts: parses incoming bytes and sends envelopes.

The peer proves its identity before anything else is read: see `bunqueue.server.links.host_protocol`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from bunqueue.logs import get_logger
from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links.host_protocol import HEADER

GREETING_S = 5.0  # for the peer to prove its identity
HIGH_WATER = 4 << 20  # bytes that the other host has not taken; above it, the clients that feed it wait
MAX_BODY = 128 << 20  # bytes: a read full of frames, or of replies, is smaller
PING_S, SILENT_S = 1.0, 5.0  # a host that is silent for longer counts as disconnected

_log = get_logger("cluster")


class Listener(Protocol):
    """What is done with what other hosts send."""

    def refresh_soon(self) -> None:
        """The store may have something new."""

    def uplink_made(self, host: str) -> None:
        """A host is connected that was not connected before."""

    def uplink_lost(self, host: str) -> None:
        """It is connected no longer."""

    def disconnected(self, host: str) -> None:
        """A host has no connection to this one any more."""

    def released(self, shard: int) -> None:
        """A shard has no owner now."""

    def shard_paused(self, shard: int) -> None:
        """A host sends nothing more to a shard that is given up here."""

    def received(self, connection: HostConnection, kind: int, shard: int, conn: int, body: bytes) -> None:
        """Anything else."""


class HostConnection(asyncio.Protocol):
    """What both ends have in common."""

    def __init__(self) -> None:
        self.peer = ""  # the id of the host at the other end, once proved
        self.greeted = False
        self.full = False
        self._pending: list[bytes] = []  # sent at the end of this turn of the event loop
        self._buffer = bytearray()
        self._received_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.closed = asyncio.get_running_loop().create_future()
        """Done when the connection has ended."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self._watch = self._loop.call_later(GREETING_S, self._check)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= HEADER.size:
            length, channel, shard, conn, kind, replies, slow = HEADER.unpack_from(buffer, start)
            if length > (MAX_BODY if self.greeted else host_link.MAX_GREETING):
                self.abort("it sent an envelope that is too long")
                return
            end = start + HEADER.size + length
            if end > size:
                break
            body = bytes(buffer[start + HEADER.size : end])
            start = end
            if self.greeted:
                self.received(channel, shard, conn, kind, replies, slow, body)
            elif channel == host_link.HOST:
                self.greet(kind, body)
            else:
                self.abort("it did not say who it is")
            if self._transport.is_closing():
                return
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self.full = False
        self.ended()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.emptied()

    @property
    def is_responsive(self) -> bool:
        """Whether the other end has sent something recently."""
        return self.greeted and self._loop.time() - self._received_at < 2 * PING_S

    # what the two ends do

    def greet(self, kind: int, body: bytes) -> None:
        """A part of the greeting."""

    def received(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        """An envelope from the host, which has proved its identity."""

    def ended(self) -> None:
        """The connection has closed."""

    def emptied(self) -> None:
        """The other host has taken what it was sent."""

    # out

    def put(self, part: bytes) -> None:
        """Send soon: everything put in one turn of the event loop goes out as one write."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(part)

    def send(self, kind: int, body: bytes = b"", *, shard: int = 0, conn: int = 0) -> None:
        """Send a message between routers."""
        self.put(host_link.envelope(host_link.HOST, kind, body, shard=shard, conn=conn))

    def _flush(self) -> None:
        if self._pending and not self._transport.is_closing():
            self._transport.write(b"".join(self._pending))
        self._pending.clear()

    def abort(self, why: str = "") -> None:
        """End the connection at once."""
        if why and not self._transport.is_closing():
            _log.warning("dropped a connection to another host", host=self.peer or None, reason=why)
        self._transport.abort()

    def certificate(self) -> bytes | None:
        """The certificate that the other end presented (DER); None without TLS."""
        tls = self._transport.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    def _check(self) -> None:
        """Each second: check that the other end is still there."""
        if not self.greeted:
            self.abort("it did not prove who it is in time")
            return
        if self._loop.time() - self._received_at > SILENT_S and self._transport.is_reading():
            self.abort(f"silent for {SILENT_S:.0f} s")
            return
        self.send(host_link.PING)
        self._watch = self._loop.call_later(PING_S, self._check)

    def begin_watching(self) -> None:
        """The greeting is over: ping, and watch for silence."""
        self.greeted = True
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(PING_S, self._check)
