"""The line to the first router, and the shards that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from bunqueue.protocol import host_link, router_line
from bunqueue.protocol import link as link_protocol
from bunqueue.protocol.commands import COMMANDS, Route

from ..shard_link import ShardLink
from .line import Line

if TYPE_CHECKING:
    from ..connection import ClientConnection
    from ..hub import Hub
    from ..routing import Peek

AGAIN_S = 0.1  # between two tries to reach a shard

_HERE = frozenset({"Hello", "Auth", "Ping", "UnsubscribeEvents"})  # about the connection, or nothing
# What the first router answers: who works where, and all that it completes with what it knows of all.
FROM_FIRST = frozenset({"Metrics", "Prometheus", "DashboardOverview"}).union(
    name for name, spec in COMMANDS.items() if spec.route is Route.ROUTER and name not in _HERE
)


class FirstRouter(Line):
    """As another router sees it; it is also what the links to the shards belong to."""

    def __init__(self, hub: Hub, number: int) -> None:
        super().__init__()
        self._hub = hub
        self._number = number
        self._owner = _Owner(self)
        self._ups: dict[int, router_line.Up] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self.begun = asyncio.Event()
        """The first router has named all shards that serve, and these are reached."""
        self.stopped = asyncio.Event()
        """It wants this one to end."""
        self.renew: Callable[[], None] = lambda: None

    def heard(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        if kind == router_line.ANSWER:
            client = self._hub.clients.get(conn)
            if client is not None:
                client.gathered(body)
        elif kind == router_line.SHARD_UP:
            self._up(shard, router_line.decode_up(body))
        elif kind == router_line.SHARD_DOWN:
            self._ups.pop(shard, None)
        elif kind == router_line.SHARD_DAMAGED:
            self._hub.damaged[shard] = body.decode()
        elif kind == router_line.CUT:
            client = self._hub.clients.get(conn)
            if client is not None:
                client.finish(link_protocol.SEVERED)
        elif kind == router_line.GUESS:
            self._hub.strangers.wrong_elsewhere(body.decode())
        elif kind == router_line.PING:
            self.say(router_line.PONG)
        elif kind == router_line.BEGIN:
            self._dialling[-1] = asyncio.get_running_loop().create_task(self._begin())
        elif kind == router_line.RENEW:
            self.renew()
        elif kind == router_line.STOP:
            self.stopped.set()

    async def _begin(self) -> None:
        if tasks := [task for shard, task in self._dialling.items() if shard >= 0]:
            await asyncio.wait(tasks)
        self.begun.set()

    # Clients

    def joined(self, number: int) -> None:
        """A client has connected."""
        self.say(router_line.JOINED, conn=number)

    def left(self, number: int) -> None:
        """It is gone."""
        self.say(router_line.LEFT, conn=number)

    def answers(self, look: Peek) -> bool:
        """Whether a command is for the first router."""
        return look.spec.name in FROM_FIRST

    def ask(self, client: ClientConnection, payload: bytes) -> None:
        """Have it answer a command; the client has counted it as slow."""
        channel, kind = host_link.HOST, router_line.ASK
        self.put(host_link.envelope(channel, kind, payload, conn=client.number, replies=client.kind))

    # Shards

    def _up(self, shard: int, up: router_line.Up) -> None:
        """It serves, perhaps after a restart."""
        before = self._hub.links[shard]
        if before is not None:
            self._hub.link_down(before)
        self._ups[shard] = up
        self._hub.damaged.pop(shard, None)
        self._dial_soon(shard, up)

    def _dial_soon(self, shard: int, up: router_line.Up) -> None:
        if (task := self._dialling.pop(shard, None)) is not None:
            task.cancel()
        self._dialling[shard] = asyncio.get_running_loop().create_task(self._dial(shard, up))

    async def _dial(self, shard: int, up: router_line.Up) -> None:
        """Until it is reached, or has ended."""
        loop, hub = asyncio.get_running_loop(), self._hub
        while self._ups.get(shard) is up:
            link = ShardLink(hub, self._owner)
            try:
                await loop.create_unix_connection(lambda made=link: made, up.path)  # type: ignore[misc]
            except OSError:
                await asyncio.sleep(AGAIN_S)
                continue
            link.dialled(shard, up.epoch)
            live = link_protocol.pack_connections(list(hub.clients))
            hello = link_protocol.RouterHello(self._number, up.secret, live)
            base = self._number << link_protocol.ROUTER_SHIFT
            link.control(link_protocol.ROUTER, base, link_protocol.encode(hello))
            hub.links[shard] = link
            return

    def lost(self, link: ShardLink) -> None:
        """A shard's end of a link is closed: it has ended, or has dropped this router."""
        self._hub.link_down(link)
        up = self._ups.get(link.shard)
        if up is not None and not self.stopped.is_set() and self._hub.links[link.shard] is None:
            self._dial_soon(link.shard, up)

    def ended(self) -> None:
        """The first router is gone, and the shards with it."""
        self.stopped.set()


class _Owner:
    """Of the links: all that shards say of themselves but their end, they say to the first router."""

    def __init__(self, first: FirstRouter) -> None:
        self._first = first

    def lost(self, link: ShardLink) -> None:
        self._first.lost(link)

    def greeted(self, link: ShardLink, hello: link_protocol.ShardHello) -> bool:
        return False

    def progressed(self, link: ShardLink, progress: link_protocol.ShardProgress) -> None: ...

    def recovered(self, link: ShardLink) -> None: ...

    def waiting(self, link: ShardLink, text: str) -> None: ...

    def stands_by(self, link: ShardLink) -> None: ...

    def returned(self, link: ShardLink, conn: int, body: bytes) -> None: ...

    def released(self, link: ShardLink) -> None: ...

    def damaged(self, link: ShardLink, text: str) -> None: ...
