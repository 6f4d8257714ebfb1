"""The link to the first router, and the shards that it announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bunqueue.protocol.commands import COMMANDS, Route
from bunqueue.protocol.framing import frame
from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import router_protocol as router_link
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.hub import Hub
from ..clients.subscription import resume_all
from ..cluster.remote_shard import RemoteShard, receive
from ..core.ports import Asks, Endpoint
from ..core.routing import Peek
from ..core.siblings import Siblings
from ..shards.link import ShardLink
from .link import RouterLink
from .shared_figures import SharedFigures

AGAIN_S = 0.1  # between two tries to reach a shard

_HERE = frozenset({"Hello", "Auth", "Ping", "UnsubscribeEvents", "ActFor"})  # about the connection, or no-ops
# What the first router answers: which workers are where, and all that needs the whole server's figures.
FROM_FIRST = frozenset({"Metrics", "Prometheus", "DashboardOverview"}).union(
    name for name, spec in COMMANDS.items() if spec.route is Route.ROUTER and name not in _HERE
)


class FirstRouter(Siblings, RouterLink):
    """As another router sees it; it is also what the links to the shards belong to."""

    def __init__(self, hub: Hub, table: SharedFigures) -> None:
        super().__init__()
        self._hub, self._table = hub, table
        self._owner = _Owner(self)
        self._ups: dict[int, router_link.Up] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self.begun = asyncio.Event()
        """The first router has announced all shards that serve, and these are connected."""
        self.stopped = asyncio.Event()
        """The first router wants this one to end."""
        self.renew: Callable[[], object] = lambda: None

    def received(
        self, channel: int, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        if channel == host_link.FROM_SHARD:
            receive(self._hub, shard, conn, kind, replies, slow, body)
            return
        match kind:
            case router_link.ANSWER:
                client = self._hub.clients.get(conn)
                if client is not None:
                    client.gathered(body)
            case router_link.SHARD_UP:
                self._up(shard, router_link.decode_up(body))
            case router_link.SHARD_DOWN:
                self._down(shard, int.from_bytes(body))
            case router_link.MOVING:
                self._moving(shard)
            case router_link.RETURNED:
                self._hub.returned(shard, conn, body)
            case router_link.SHARD_DAMAGED:
                self._hub.shards.damaged[shard] = body.decode()
            case router_link.CUT:
                client = self._hub.clients.get(conn)
                if client is not None:
                    client.finish(link_protocol.SEVERED)
            case router_link.WRONG_TOKEN:
                self._hub.unauthenticated.wrong_elsewhere(body.decode(), self)
            case router_link.PING:
                self.send(router_link.PONG)
            case router_link.BEGIN:
                self._dialling[-1] = asyncio.get_running_loop().create_task(self._begin())
            case router_link.RENEW:
                self.renew()
            case router_link.STOP:
                self.stopped.set()

    async def _begin(self) -> None:
        if tasks := [task for shard, task in self._dialling.items() if shard >= 0]:
            await asyncio.wait(tasks)
        self.begun.set()

    # Clients

    @property
    def all_connections(self) -> int:
        return self._table.connections

    def joined(self, number: int, connections: int) -> None:
        self._table.connected(connections)
        self.send(router_link.JOINED, conn=number)

    def left(self, number: int, connections: int) -> None:
        self._table.connected(connections)
        self.send(router_link.LEFT, conn=number)

    def answers(self, peeked: Peek) -> bool:
        return peeked.spec.name in FROM_FIRST

    def ask(self, client: Asks, payload: bytes) -> None:
        version, scope = client.kind, client.scope
        if scope is not None:
            version, payload = version | link_protocol.SCOPED, frame(scope.wire) + payload
        channel, kind = host_link.HOST, router_link.ASK
        self.put(host_link.envelope(channel, kind, payload, conn=client.number, replies=version))

    # Shards

    def _up(self, shard: int, up: router_link.Up) -> None:
        """It serves, perhaps after a restart."""
        before = self._hub.shards.links[shard]
        if before is not None:
            self._hub.link_down(before)
        self._ups[shard] = up
        self._hub.shards.damaged.pop(shard, None)
        if self._hub.shards.local(shard) is None:  # else what that one still sends comes first: see `lost`
            self._reach(shard, up)

    def _reach(self, shard: int, up: router_link.Up) -> None:
        if (task := self._dialling.pop(shard, None)) is not None:
            task.cancel()
        if up.path:
            self._dialling[shard] = asyncio.get_running_loop().create_task(self._dial(shard, up))
        else:
            self._attach(RemoteShard(shard, up.epoch, self))

    def _attach(self, link: Endpoint) -> None:
        hub = self._hub
        hub.shards.serve(link)
        if hub.pending.waits:
            resume_all(hub.clients, link)
            hub.pending.release(link.shard, link)

    def _down(self, shard: int, epoch: int) -> None:
        """A shard does not serve any more; for one of this host, its own connection shows when it has
        ended."""
        up = self._ups.get(shard)
        if up is not None and up.epoch == epoch:
            del self._ups[shard]
        for link in self._hub.shards.answering(shard):
            if isinstance(link, RemoteShard) and link.epoch == epoch:
                link.emptied()
                self._hub.link_down(link)

    def _moving(self, shard: int) -> None:
        """A shard is about to get another owner: send nothing more; commands in flight are still answered."""
        self._ups.pop(shard, None)
        link = self._hub.shards.links[shard]
        if isinstance(link, RemoteShard):
            link.emptied()
        elif link is not None:
            link.control(link_protocol.DRAIN, self._hub.clients.base)
        if link is not None:
            self._hub.pause(link)
        self.send(router_link.PAUSED, shard=shard)

    def emptied(self) -> None:
        for shard in self._ups:
            if (remote := self._hub.shards.remote(shard)) is not None:
                remote.emptied()

    async def _dial(self, shard: int, up: router_link.Up) -> None:
        """Dial until the shard is connected, or has ended."""
        loop, hub = asyncio.get_running_loop(), self._hub
        while self._ups.get(shard) is up:
            link = ShardLink(hub, self._owner)
            try:
                await loop.create_unix_connection(lambda made=link: made, up.path)  # type: ignore[misc]
            except OSError:
                await asyncio.sleep(AGAIN_S)
                continue
            if self._ups.get(shard) is not up:
                link.abort()
                return
            link.dialled(shard, up.epoch)
            live = link_protocol.pack_connections(list(hub.clients))
            hello = link_protocol.RouterHello(link_protocol.router_of(hub.clients.base), up.secret, live)
            link.control(link_protocol.ROUTER, hub.clients.base, link_protocol.encode(hello))
            self._attach(link)
            return

    def lost(self, link: ShardLink) -> None:
        """A shard's end of a link is closed: it has ended, or has dropped this router."""
        self._hub.link_down(link)
        up = self._ups.get(link.shard)
        if up is not None and not self.stopped.is_set() and self._hub.shards.links[link.shard] is None:
            self._reach(link.shard, up)

    def ended(self) -> None:
        """The first router is gone, and the shards with it."""
        self.stopped.set()


class _Owner:
    """Owner of the links to the shards, which report nearly everything about themselves to the first
    router."""

    def __init__(self, first: FirstRouter) -> None:
        self._first = first

    def lost(self, link: ShardLink) -> None:
        self._first.lost(link)

    def greeted(self, link: ShardLink, hello: link_protocol.ShardHello) -> bool:
        return False

    def progressed(self, link: ShardLink, progress: link_protocol.ShardProgress) -> None: ...

    def recovered(self, link: ShardLink) -> None: ...

    def waiting(self, link: ShardLink, text: str) -> None: ...

    def ending(self, link: ShardLink, text: str) -> None: ...

    def damaged(self, link: ShardLink, text: str) -> None: ...
