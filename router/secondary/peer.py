"""The first router's end of the link to a secondary one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from bunqueue.model.scope import Scope, read_scope
from bunqueue.server.commands.server_commands import ServerCommands
from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import router_protocol as router_link
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.backpressure import ReadGate
from ..clients.hub import Hub
from ..clients.own_commands import answer
from ..core.ports import Subscribed
from ..core.routing import HERE, peek
from .link import RouterLink

MAX_UNREAD = 128 << 20  # bytes of replies that it has not taken; then it stands still, and is started again


class Routers(Protocol):
    """The first router's object for all others, as one link sees it."""

    def begun(self, link: PeerRouter) -> None: ...

    def disconnected(self, link: PeerRouter) -> None: ...

    def wrong_token(self, address: str, sender: PeerRouter) -> None: ...

    def shard_paused(self, link: PeerRouter, shard: int) -> None: ...


class Asker:
    """A connection of a secondary router that has sent a command for the first one."""

    subscription: Subscribed | None = None
    limited = True

    def __init__(self, link: PeerRouter, number: int) -> None:
        self._link = link
        self.number = number
        self.kind = 0
        self.scope: Scope | None = None
        self.finished = False

    @property
    def commands(self) -> ServerCommands:
        return self._link.hub.commands

    def authenticate(self, token: str) -> bool:
        """Its own router does that."""
        raise NotImplementedError

    def limit_to(self, scope: Scope | None) -> None:
        """Its own router does that."""
        raise NotImplementedError

    def count_slow(self) -> None:
        """Its own router has counted it."""

    def gathered(self, reply: bytes) -> None:
        """The reply to its command."""
        if not self.finished:
            self._link.send(router_link.ANSWER, reply, conn=self.number)

    def finish(self, kind: int) -> None:
        """The outcome of its command is unknown."""
        if not self.finished:
            self._link.send(router_link.CUT, conn=self.number)


class PeerRouter(RouterLink):
    """A secondary router. A shard of another host pauses it as it does a client."""

    def __init__(self, hub: Hub, routers: Routers, number: int) -> None:
        super().__init__()
        self.hub = hub
        self._routers = routers
        self.number = number
        self.live: set[int] = set()  # its connections
        self.active = True  # since the last ping
        self._askers: dict[int, Asker] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.gate = ReadGate(self._transport)

    def received(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        self.active = True
        if channel == host_link.TO_SHARD:
            self._to_shard(shard, conn, kind, body)
            return
        match kind:
            case router_link.JOINED:
                self.live.add(conn)
            case router_link.LEFT:
                self._left(conn)
            case router_link.ASK:
                self._asked(conn, replies, body)
            case router_link.WRONG_TOKEN:
                self._routers.wrong_token(body.decode(), self)
            case router_link.BEGUN:
                self._routers.begun(self)
            case router_link.PAUSED:
                self._routers.shard_paused(self, shard)

    def _left(self, conn: int) -> None:
        self.live.discard(conn)
        asker = self._askers.pop(conn, None)
        if asker is not None:
            asker.finished = True
            self.hub.workers_left(conn)

    def _to_shard(self, shard: int, conn: int, kind: int, body: bytes) -> None:
        """What it asks a shard of another host."""
        link = self.hub.shards.remote(shard)
        if link is not None:
            link.control(kind, conn, body)
            if link.full:
                link.throttle(self)
        elif kind in link_protocol.COMMAND_KINDS:  # the link has just broken, as it will soon learn
            replies, slow, frames = self.hub.pending.refusals(shard, kind, body)
            self.from_shard(shard, conn, link_protocol.REPLIES, replies, slow, frames)

    def from_shard(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        """Pass on what a shard of another host answers to a connection, or a ticket, of this router."""
        channel = host_link.FROM_SHARD
        self.put(host_link.envelope(channel, kind, body, shard=shard, conn=conn, replies=replies, slow=slow))
        if self._transport.get_write_buffer_size() > MAX_UNREAD:
            self.abort("it does not take what it was sent")

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        """Commands of its client that waited at an owner which has given the shard up."""
        self.send(router_link.RETURNED, body, shard=shard, conn=conn)

    def _asked(self, conn: int, kind: int, body: bytes) -> None:
        """A command that the first router answers for all."""
        asker = self._askers.get(conn)
        if asker is None:
            asker = self._askers[conn] = Asker(self, conn)
        asker.kind, scope, payload = link_protocol.split_scope(kind, body)
        asker.scope = read_scope(scope) if scope else None
        self.hub.turns.begin(asker, partial(self._answer, asker, payload))

    def _answer(self, asker: Asker, payload: bytes) -> None:
        """Answer it, in its turn."""
        peeked = peek(payload)
        if self.hub.hosts.answers(peeked):
            self.hub.hosts.answer_later(asker, payload)
        elif peeked.handling == HERE:
            asker.gathered(answer(asker, payload))
        else:
            refused: list[bytes] = []
            self.hub.tickets.gather(asker, peeked, payload, refused)
            for reply in refused:
                asker.gathered(reply)

    def ended(self) -> None:
        """The process has gone, and its connections with it."""
        for conn in list(self._askers):
            self._left(conn)
        self.live.clear()
        self._routers.disconnected(self)

    def send_up(self, up: router_link.Up, shard: int) -> None:
        self.send(router_link.SHARD_UP, router_link.encode(up), shard=shard)
