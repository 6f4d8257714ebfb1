"""A connection from another host: its router has dialled this one, and uses the shards that this host
owns."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from typing import Protocol

from msgspec import MsgspecError

from bunqueue.logs import get_logger
from bunqueue.server.host.acceptor import Counted
from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.hub import Hub
from .greeting import Greeting
from .wire import HostConnection, Listener

_log = get_logger("cluster")


class Known(Protocol):
    """The connections of other hosts, as one of their links sees them."""

    def known_of(self, downlink: Downlink) -> set[int]: ...

    def report(self, downlink: Downlink, connections: frozenset[int]) -> None: ...


class Downlinks(Protocol):
    """All connections of other hosts, as one of them sees them."""

    cluster: Listener

    @property
    def hub(self) -> Hub: ...

    @property
    def greeting(self) -> Greeting: ...

    @property
    def origins(self) -> Known: ...

    def came(self, downlink: Downlink) -> None: ...

    def went(self, downlink: Downlink) -> None: ...

    def downlink_made(self, downlink: Downlink) -> None: ...

    def downlink_lost(self, downlink: Downlink) -> None: ...


class Downlink(HostConnection):
    """One connection of one host."""

    def __init__(self, links: Downlinks, counted: Counted) -> None:
        """``counted`` is called once the links count it as open."""
        super().__init__()
        self._links, self._counted = links, counted
        self._challenge = secrets.token_bytes(host_link.SECRET_BYTES)
        self._hello: host_link.Hello | None = None
        self.origin = 0  # of the connections it has
        self.incarnation = ""
        self.paused_shards: set[int] = set()  # shards given up here; it sends them no more

    # -- the greeting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._links.came(self)
        self._counted()

    def greet(self, kind: int, body: bytes) -> None:
        match kind, self._hello:
            case host_link.HELLO, None:
                self._receive_hello(body)
            case host_link.PROOF, host_link.Hello() as hello:
                self._receive_proof(hello, body)
            case _:
                self.abort("it does not speak this protocol")

    def _receive_hello(self, body: bytes) -> None:
        try:
            hello = host_link.decode_hello(body)
        except MsgspecError:
            self.abort("it does not speak this protocol")
            return
        problem = self._links.greeting.problem_of(hello)
        shown = self.certificate()
        known = self._links.greeting.hosts.get(hello.host)
        if problem is None and known is not None and shown != ssl.PEM_cert_to_DER_cert(known.certificate):
            problem = "the certificate is not the one that this host has in the store"
        if problem is not None:
            self._refuse(problem)
            return
        self._hello = hello
        self.send(host_link.CHALLENGE, self._challenge)

    def _receive_proof(self, hello: host_link.Hello, proof: bytes) -> None:
        if not self._links.greeting.proves(hello.host, self._challenge, proof):
            self._refuse("the proof is wrong: the store's secret is another one")
            return
        version = host_link.agree(hello.oldest, hello.newest)
        assert version is not None  # else it was refused
        self.peer, self.origin, self.incarnation = hello.host, hello.number, hello.incarnation
        self.send(host_link.WELCOME, host_link.encode(self._links.greeting.welcome(version)))
        self.begin_watching()
        self._links.downlink_made(self)

    def _refuse(self, why: str) -> None:
        _log.warning("refused another host", reason=why)
        self.send(host_link.REFUSED, why.encode())
        self._flush()
        self._transport.close()

    # -- incoming

    def received(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        if channel == host_link.TO_SHARD:
            self._to_shard(shard, conn, kind, body)
            return
        match kind:
            case host_link.PAUSED:
                self.paused_shards.add(shard)
                self._links.cluster.shard_paused(shard)
            case host_link.LIVE:
                self._links.origins.report(self, frozenset(link_protocol.unpack_connections(body)))
            case host_link.PING:
                self.send(host_link.PONG)
            case _:
                self._links.cluster.received(self, kind, shard, conn, body)

    def _to_shard(self, shard: int, conn: int, kind: int, body: bytes) -> None:
        link = self._links.hub.shards.local(shard)
        if kind in link_protocol.COMMAND_KINDS and conn < link_protocol.TICKET:
            self._links.origins.known_of(self).add(conn)
        elif kind in link_protocol.END_KINDS:
            self._links.origins.known_of(self).discard(conn)
        if link is None:
            if kind in link_protocol.COMMAND_KINDS:
                self._refuse_commands(shard, conn, kind, body)
            return
        link.control(kind, conn, body)
        if link.full:
            link.throttle_host(self)

    def _refuse_commands(self, shard: int, conn: int, kind: int, body: bytes) -> None:
        """The shard is not here: another host owns it, and the sending host will soon be notified."""
        replies, slow, frames = self._links.hub.pending.refusals(shard, kind, body)
        self.from_shard(shard, conn, link_protocol.REPLIES, replies, slow, frames)

    # -- outgoing

    def from_shard(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        """Pass on what a shard of this host answers to a connection, or a ticket, of the other one."""
        channel = host_link.FROM_SHARD
        self.put(host_link.envelope(channel, kind, body, shard=shard, conn=conn, replies=replies, slow=slow))

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def ended(self) -> None:
        self._links.went(self)
        if self.greeted:
            self._links.downlink_lost(self)
