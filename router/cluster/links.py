"""The connections to all other hosts: one that this router has dialled to each, and one that came from each.

The first carries commands of this host's clients to shards that others own, the second those of other hosts'
clients to the shards here. A connection's number encodes its host (`shard_link.origin_of`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Iterable

from bunqueue.logs import get_logger
from bunqueue.server.host.acceptor import Acceptor
from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links import shard_protocol as link_protocol

from ..clients.hub import Hub
from ..core.cluster_view import HostRow
from ..sockets import BoundSockets
from . import certificates
from .downlink import Downlink
from .greeting import Greeting
from .origins import Origins
from .uplink import Uplink
from .wire import Listener

REDIAL_S, LAST_REDIAL_S = 0.2, 2.0  # doubled each time
DIAL_S = 3.0
MAX_OPEN = 128  # incoming connections, including those in a TLS handshake; each other host has one
BACKLOG = 128

_log = get_logger("cluster")


class Links:
    """The connections to and from all other hosts."""

    def __init__(self, hub: Hub, cluster: str, store: str, identity: certificates.Identity) -> None:
        self.hub = hub
        self.cluster: Listener
        self.greeting = Greeting(cluster, store, lambda: self.cluster.refresh_soon())
        self._identity = identity
        self._tls = certificates.server_context(identity, ())
        self._trusted: set[str] = set()
        self._bound: BoundSockets | None = None
        self._open: set[Downlink] = set()
        self._acceptor = Acceptor(lambda counted: Downlink(self, counted), lambda: len(self._open), MAX_OPEN)
        self._acceptor.tls = self._tls
        self._uplinks: dict[str, Uplink] = {}
        self._dialling: dict[str, tuple[HostRow, asyncio.Task[None]]] = {}
        self._downlinks: dict[str, Downlink] = {}
        self.origins = Origins(hub)

    # -- start and stop ------------------------------------------------------------------------

    def listen(self, host: str, port: int) -> int:
        """Listen for other hosts; returns the port. StartError if that is not possible."""
        bound = BoundSockets(host, port, "--cluster-address", host_flag="--cluster-address")
        bound.bind()
        self._bound = bound
        for sock in bound.sockets:
            self._acceptor.listen(sock, BACKLOG)
        return int(bound.sockets[0].getsockname()[1])

    def came(self, downlink: Downlink) -> None:
        """A peer presented a certificate registered in the store."""
        self._open.add(downlink)

    def went(self, downlink: Downlink) -> None:
        """The connection has closed, whether it was greeted or not."""
        self._open.discard(downlink)

    async def close(self) -> None:
        for _, task in self._dialling.values():
            task.cancel()
        self._acceptor.close()
        if self._bound is not None:
            self._bound.close()
        self.origins.close()
        for connection in (*self._uplinks.values(), *self._open):
            connection.abort()

    # -- dialling ------------------------------------------------------------------------------

    def reach(self, hosts: Iterable[HostRow]) -> None:
        """Keep a connection to each of these hosts, and to no others."""
        rows = {host.id: host for host in hosts}
        self.greeting.hosts = rows
        for host in rows.values():
            if host.certificate not in self._trusted:
                self._trusted.add(host.certificate)
                certificates.trust(self._tls, [host.certificate])
        for host_id, (row, task) in list(self._dialling.items()):
            now = rows.get(host_id)
            if now is None or (now.link, now.certificate) != (row.link, row.certificate):
                task.cancel()
                del self._dialling[host_id]
                if host_id in self._uplinks:
                    self._uplinks[host_id].abort("it has left, or started again")
        for host in rows.values():
            if host.id != self.greeting.me and host.id not in self._dialling:
                task = asyncio.get_running_loop().create_task(self._dial(host))
                self._dialling[host.id] = host, task

    async def _dial(self, host: HostRow) -> None:
        """Connect again and again."""
        loop = asyncio.get_running_loop()
        address, _, port = host.link.rpartition(":")
        context = certificates.client_context(self._identity, host.certificate)
        delay = REDIAL_S
        logged = False
        while True:
            uplink: Uplink | None = None
            try:
                async with asyncio.timeout(DIAL_S):
                    _, uplink = await loop.create_connection(
                        lambda: Uplink(self, host), address.strip("[]"), int(port), ssl=context
                    )
            except (OSError, TimeoutError, ssl.SSLError) as error:
                if not logged:
                    logged = True
                    reason = str(error) or "no answer"
                    _log.warning("another host is not reached", host=host.name, link=host.link, reason=reason)
            if uplink is not None:
                await asyncio.wait([uplink.closed])
                if uplink.greeted:
                    delay, logged = REDIAL_S, False
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_REDIAL_S)

    def uplink(self, host: str) -> Uplink | None:
        """The connection to a host, while there is one."""
        return self._uplinks.get(host)

    @property
    def uplinks(self) -> list[Uplink]:
        return list(self._uplinks.values())

    @property
    def reached(self) -> frozenset[str]:
        """The hosts that this one has a connection to."""
        return frozenset(self._uplinks)

    def uplink_made(self, uplink: Uplink) -> None:
        self._uplinks[uplink.peer] = uplink
        _log.info("reached another host", host=self.name(uplink.peer))
        uplink.send(host_link.LIVE, self.live())
        self.cluster.uplink_made(uplink.peer)

    def uplink_lost(self, uplink: Uplink) -> None:
        if self._uplinks.get(uplink.peer) is uplink:
            del self._uplinks[uplink.peer]
            self.cluster.uplink_lost(uplink.peer)
            _log.warning("lost the connection to another host", host=self.name(uplink.peer))

    def name(self, host: str) -> str:
        """For people."""
        return self.greeting.name(host)

    # -- hosts that have dialled ---------------------------------------------------------------

    def downlink_made(self, downlink: Downlink) -> None:
        before = self._downlinks.get(downlink.peer)
        if before is not None and before is not downlink:
            before.abort("it has connected again")
        self._downlinks[downlink.peer] = downlink
        self.origins.arrived(downlink)
        for link in self.hub.shards.served_here:
            downlink.send(host_link.UP, link.epoch.to_bytes(8), shard=link.shard)

    def downlink_lost(self, downlink: Downlink) -> None:
        if self._downlinks.get(downlink.peer) is not downlink:
            return
        del self._downlinks[downlink.peer]
        self.cluster.disconnected(downlink.peer)
        self.origins.left(downlink)

    def live(self) -> bytes:
        """The connections of this host that are open."""
        return link_protocol.pack_connections(self.hub.connections)

    def send_live(self) -> None:
        """Connections of another router of this host have ended with it."""
        for uplink in self._uplinks.values():
            uplink.send(host_link.LIVE, self.live())

    async def others_live(self) -> list[int]:
        """The open connections of all other hosts: a shard that has just started leaves them their jobs."""
        return await self.origins.ask([link for link in self._downlinks.values() if link.is_responsive])

    # -- reports about shards of this host -----------------------------------------------------

    def broadcast(self, kind: int, shard: int, body: bytes = b"") -> None:
        """Tell all hosts that use the shards here."""
        for downlink in self._downlinks.values():
            downlink.send(kind, body, shard=shard)

    @property
    def downlinks(self) -> list[Downlink]:
        return list(self._downlinks.values())

    # -- answers of shards here to others' connections -----------------------------------------

    def answer(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        """Answer a connection, or a ticket, of another host."""
        downlink = self._of_origin(link_protocol.origin_of(conn))
        if downlink is not None:
            downlink.from_shard(shard, conn, kind, replies, slow, body)

    def events(self, shard: int, connections: Iterable[int], frames: bytes) -> None:
        """Events for subscribers at other hosts."""
        for downlink, some in self._by_host(connections):
            body = link_protocol.pack_events(some, [frames])
            downlink.from_shard(shard, link_protocol.CONTROL, link_protocol.EVENTS, 0, 0, body)

    def lost(self, shard: int, connections: Iterable[int]) -> None:
        """The outcome of these connections' commands is unknown."""
        for downlink, some in self._by_host(connections):
            body = link_protocol.pack_connections(some)
            downlink.from_shard(shard, link_protocol.CONTROL, link_protocol.LOST, 0, 0, body)

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        """Commands of another host's connection, to be sent to the shard's next owner."""
        downlink = self._of_origin(link_protocol.origin_of(conn))
        if downlink is not None:
            downlink.send(host_link.RETURNED, body, shard=shard, conn=conn)

    def _by_host(self, connections: Iterable[int]) -> list[tuple[Downlink, list[int]]]:
        by_origin: defaultdict[int, list[int]] = defaultdict(list)
        for conn in connections:
            by_origin[link_protocol.origin_of(conn)].append(conn)
        found = ((self._of_origin(origin), some) for origin, some in by_origin.items())
        return [(downlink, some) for downlink, some in found if downlink is not None]

    def _of_origin(self, origin: int) -> Downlink | None:
        return next((link for link in self._downlinks.values() if link.origin == origin), None)
