"""The router's end of the socket to one shard process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from bunqueue.logs import get_logger
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.backpressure import full_shard
from ..clients.hub import Hub
from ..core.ports import Buffer, Feeder, Host

HELLO_S = 10.0  # for a new connection to identify itself; a shard does so at once
HIGH_WATER = 1024 * 1024  # bytes not yet taken by the shard; above it, the clients that feed it wait
LARGE_BODY = 64 * 1024  # at this size and above, a separate write costs less than a copy

_HEADER = link_protocol.TO_ROUTER.size
_unpack = link_protocol.TO_ROUTER.unpack_from
_pack = link_protocol.TO_SHARD.pack

_log = get_logger("router")


class Owner(Protocol):
    """The supervisor of the shards, to which the links report what they receive."""

    def greeted(self, link: ShardLink, hello: link_protocol.ShardHello) -> bool:
        """A process claims to be a shard; returns whether to accept it."""

    def progressed(self, link: ShardLink, progress: link_protocol.ShardProgress) -> None:
        """It is still loading."""

    def recovered(self, link: ShardLink) -> None:
        """It is ready for commands."""

    def waiting(self, link: ShardLink, text: str) -> None:
        """It waits for the store, or for the end of another owner."""

    def ending(self, link: ShardLink, text: str) -> None:
        """It ends, and reports the reason."""

    def damaged(self, link: ShardLink, text: str) -> None:
        """It cannot serve until its file has been repaired."""

    def lost(self, link: ShardLink) -> None:
        """The connection has closed."""


class ShardLink(asyncio.Protocol):
    """One connection of a shard. Nothing is accepted before its HELLO."""

    is_local = True

    def __init__(self, hub: Hub, owner: Owner) -> None:
        self._hub = hub
        self._owner = owner
        self._carry: bytearray | None = None  # the beginning of an envelope
        self._need = 0
        self._feeders: set[Feeder] = set()  # they wait until the shard has taken what it has
        self._throttled_hosts: set[Host] = set()  # the same of other hosts
        self.shard = -1  # known from the HELLO on
        self.secret = ""  # with which it was started
        self.epoch = 0  # known after READY; 0 without a log
        self.full = False
        self.active = True  # data since the last check; the owner resets it

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self._transport.abort)

    def dialled(self, shard: int, epoch: int) -> None:
        """This is the link of a secondary router, which has dialled the shard itself."""
        self._deadline.cancel()
        self.shard, self.epoch = shard, epoch

    def data_received(self, data: bytes) -> None:
        self.active = True
        self._hub.received(len(data))
        if self._carry is not None:
            self._carry += data
            if len(self._carry) < self._need:
                return
            data, self._carry = bytes(self._carry), None
        clients, start, size = self._hub.clients, 0, len(data)
        need = _HEADER
        while size - start >= _HEADER:
            length, conn, kind, replies, slow = _unpack(data, start)
            body = start + _HEADER
            end = body + length
            if end > size:
                need = _HEADER + length
                break
            client = clients.get(conn)
            if client is not None:
                client.deliver(self.shard, replies, slow, data[body:end])
            else:
                self._other(conn, kind, replies, slow, data[body:end])
            start = end
        if start < size:
            self._carry = bytearray(data[start:])
            self._need = need

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self.resume_writing()
        if self.shard >= 0:
            self._owner.lost(self)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        feeders, self._feeders = self._feeders, set()
        for client in feeders:
            client.gate.open(full_shard(self.shard))
        hosts, self._throttled_hosts = self._throttled_hosts, set()
        for host in hosts:
            host.resume_reading()

    # To the shard

    def send(self, conn: int, kind: int, frames: Sequence[Buffer]) -> None:
        """Send whole frames of one connection, or ticket."""
        body = frames[0] if len(frames) == 1 else b"".join(frames)
        header = _pack(len(body), conn, kind)
        if len(body) < LARGE_BODY:
            self._write(header + body)
        else:
            self._write(header)
            self._write(body)

    def control(self, kind: int, conn: int = link_protocol.CONTROL, body: bytes = b"") -> None:
        """Send a message that is not a command."""
        self._write(link_protocol.envelope(conn, kind, body))

    def _write(self, data: Buffer) -> None:
        """Write, unless the connection has ended: uvloop raises an error then.

        At the end of each turn of its loop uvloop sends what was written in that turn with one call to the
        system. So what all clients send in one turn goes out together, and a single command does not wait for
        another turn.
        """
        if not self._transport.is_closing():
            self._transport.write(data)

    def throttle(self, client: Feeder) -> None:
        """Stop reading a client that fed this shard while its socket was full."""
        self._feeders.add(client)
        client.gate.close(full_shard(self.shard))

    def throttle_host(self, host: Host) -> None:
        """The same of another host, with all its clients."""
        self._throttled_hosts.add(host)
        host.pause_reading()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    # From the shard

    def _other(self, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        """Handle an envelope that is not for a connected client of this router."""
        if self.shard < 0 and kind != link_protocol.HELLO:
            self.abort()
        elif link_protocol.origin_of(conn) != self._hub.clients.origin and conn != link_protocol.CONTROL:
            self._hub.hosts.answer(self.shard, conn, kind, replies, slow, body)
        elif conn >= link_protocol.TICKET:
            self._hub.tickets.answer(conn, self.shard, body)
        elif conn == link_protocol.CONTROL:
            self._control(kind, body)

    def _control(self, kind: int, body: bytes) -> None:
        """A message from the shard itself. Unknown kinds are those of a later version."""
        if (handle := _CONTROL.get(kind)) is not None:
            handle(self, body)

    def _ready(self, body: bytes) -> None:
        self.epoch = int.from_bytes(body)
        self._owner.recovered(self)

    def _returned(self, body: bytes) -> None:
        self._hub.returned(self.shard, link_protocol.unpack_connections(body[:4])[0], body[4:])

    def _greet(self, body: bytes) -> None:
        self._deadline.cancel()
        hello = link_protocol.decode_hello(body)
        if self._owner.greeted(self, hello):
            self.shard = hello.shard
        else:
            _log.warning("refused a process that claims to be a shard", shard=hello.shard, pid=hello.pid)
            self.abort()


_CONTROL: dict[int, Callable[[ShardLink, bytes], object]] = {
    link_protocol.HELLO: ShardLink._greet,
    link_protocol.PROGRESS: lambda link, body: link._owner.progressed(
        link, link_protocol.decode_progress(body)
    ),
    link_protocol.TO_PEER: lambda link, body: link._hub.peer_message(link.shard, body),
    link_protocol.LOST: lambda link, body: link._hub.answers_lost(
        link.shard, link_protocol.unpack_connections(body)
    ),
    link_protocol.READY: ShardLink._ready,
    link_protocol.STANDBY: lambda link, body: link._hub.hosts.became_standby(link.shard),
    link_protocol.RETURNED: ShardLink._returned,
    link_protocol.RELEASED: lambda link, body: link._hub.hosts.gave_up(link.shard),
    link_protocol.WAITING: lambda link, body: link._owner.waiting(link, body.decode()),
    link_protocol.ENDING: lambda link, body: link._owner.ending(link, body.decode()),
    link_protocol.DAMAGED: lambda link, body: link._owner.damaged(link, body.decode()),
    link_protocol.EVENTS: lambda link, body: link._hub.deliver_events(link.shard, body),
}
