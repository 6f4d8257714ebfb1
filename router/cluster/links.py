"""The connections to all other hosts: one that this router has dialled to each, and one that came from each.

The first carries commands of this host's clients to shards that others own, the second those of other hosts'
clients to the shards here. A connection's number encodes its host (`shard_link.origin_of`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
from collections import defaultdict
from collections.abc import Iterable, Mapping

from bunqueue.logs import get_logger
from bunqueue.server.host.acceptor import Acceptor
from bunqueue.server.links import host_link
from bunqueue.server.links import shard_link as link_protocol

from ..core.cluster_view import HostRow
from ..hub import Hub
from ..sockets import BoundSockets
from . import certificates
from .downlink import Downlink
from .uplink import Uplink
from .wire import Listener

LIVE_S = 1.0  # for the other hosts to report their open connections
REDIAL_S, LAST_REDIAL_S = 0.2, 2.0  # doubled each time
DIAL_S = 3.0
MAX_OPEN = 128  # incoming connections, including those in a TLS handshake; each other host has one
BACKLOG = 128
GONE_S = 10.0  # after it, the connections of a host that does not come back count as closed

_log = get_logger("cluster")


class Links:
    """The connections to and from all other hosts."""

    def __init__(self, hub: Hub, cluster: str, store: str, identity: certificates.Identity) -> None:
        self.hub = hub
        self.hosts: Mapping[str, HostRow] = {}
        self.me = ""  # the id of this host
        self.number = 0
        self.secret = ""
        self.life = secrets.token_hex(8)
        self.cluster: Listener
        self.cluster_name = cluster
        self._store, self._identity = store, identity
        self._tls = certificates.server_context(identity, ())
        self._trusted: set[str] = set()
        self._bound: BoundSockets | None = None
        self._open: set[Downlink] = set()
        self._acceptor = Acceptor(lambda counted: Downlink(self, counted), lambda: len(self._open), MAX_OPEN)
        self._acceptor.tls = self._tls
        self._uplinks: dict[str, Uplink] = {}
        self._dialling: dict[str, tuple[HostRow, asyncio.Task[None]]] = {}
        self._downlinks: dict[str, Downlink] = {}
        self._known: defaultdict[int, set[int]] = defaultdict(set)  # origin -> its connections, as known here
        self._lives: dict[int, str] = {}  # origin -> its current incarnation
        self._going: dict[int, asyncio.TimerHandle] = {}  # origins that are disconnected
        self._asked: dict[str, asyncio.Future[frozenset[int]]] = {}

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
        for timer in self._going.values():
            timer.cancel()
        for connection in (*self._uplinks.values(), *self._open):
            connection.abort()

    # -- dialling ------------------------------------------------------------------------------

    def reach(self, hosts: Iterable[HostRow]) -> None:
        """Keep a connection to each of these hosts, and to no others."""
        rows = {host.id: host for host in hosts}
        self.hosts = rows
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
            if host.id != self.me and host.id not in self._dialling:
                task = asyncio.get_running_loop().create_task(self._dial(host))
                self._dialling[host.id] = host, task

    async def _dial(self, host: HostRow) -> None:
        """Connect again and again."""
        loop = asyncio.get_running_loop()
        address, _, port = host.link.rpartition(":")
        context = certificates.client_context(self._identity, host.certificate)
        delay = REDIAL_S
        said = False
        while True:
            uplink: Uplink | None = None
            try:
                async with asyncio.timeout(DIAL_S):
                    _, uplink = await loop.create_connection(
                        lambda: Uplink(self, host), address.strip("[]"), int(port), ssl=context
                    )
            except (OSError, TimeoutError, ssl.SSLError) as error:
                if not said:
                    said = True
                    reason = str(error) or "no answer"
                    _log.warning("another host is not reached", host=host.name, link=host.link, reason=reason)
            if uplink is not None:
                await asyncio.wait([uplink.closed])
                if uplink.greeted:
                    delay, said = REDIAL_S, False
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
        uplink.say(host_link.LIVE, self.live())
        self.cluster.uplink_made(uplink.peer)

    def uplink_lost(self, uplink: Uplink) -> None:
        if self._uplinks.get(uplink.peer) is uplink:
            del self._uplinks[uplink.peer]
            self.cluster.uplink_lost(uplink.peer)
            _log.warning("lost the connection to another host", host=self.name(uplink.peer))

    def name(self, host: str) -> str:
        """The host's name, for people."""
        return self.hosts[host].name if host in self.hosts else host

    # -- identity and greeting -----------------------------------------------------------------

    def hello(self) -> host_link.Hello:
        oldest, newest = host_link.VERSIONS
        return host_link.Hello(
            self.cluster_name, self._store, self.me, self.number, self.life, oldest, newest
        )

    def welcome(self, version: int) -> host_link.Welcome:
        return host_link.Welcome(version, self.me, self.life)

    def prove(self, challenge: bytes) -> bytes:
        return host_link.prove(self.secret, challenge, self.me)

    def proves(self, host: str, challenge: bytes, proof: bytes) -> bool:
        return hmac.compare_digest(host_link.prove(self.secret, challenge, host), proof)

    def problem_of(self, hello: host_link.Hello) -> str | None:
        """Why a host is refused; None if it may prove its identity."""
        if (hello.cluster, hello.store) != (self.cluster_name, self._store):
            return f"this is the cluster {self.cluster_name} of another store"
        if host_link.agree(hello.oldest, hello.newest) is None:
            oldest, newest = host_link.VERSIONS
            return (
                f"no common version: this host speaks {oldest} to {newest} of the protocol between hosts, "
                f"not {hello.oldest} to {hello.newest}; upgrade the older host"
            )
        row = self.hosts.get(hello.host)
        if row is None:
            self.cluster.look_soon()
            return "this host is not known from the store yet: try again"
        if row.number != hello.number or hello.host == self.me:
            return "the store has this host under another number"
        return None

    # -- hosts that have dialled ---------------------------------------------------------------

    def downlink_made(self, downlink: Downlink) -> None:
        before = self._downlinks.get(downlink.peer)
        if before is not None and before is not downlink:
            before.abort("it has connected again")
        self._downlinks[downlink.peer] = downlink
        origin = downlink.origin
        if (timer := self._going.pop(origin, None)) is not None:
            timer.cancel()
        if self._lives.get(origin, downlink.life) != downlink.life:
            self._gone(origin)
        self._lives[origin] = downlink.life
        for link in self.hub.shards.served_here:
            downlink.say(host_link.UP, link.epoch.to_bytes(8), shard=link.shard)

    def downlink_lost(self, downlink: Downlink) -> None:
        if self._downlinks.get(downlink.peer) is not downlink:
            return
        del self._downlinks[downlink.peer]
        self.cluster.parted(downlink.peer)
        future = self._asked.get(downlink.peer)
        if future is not None and not future.done():
            future.set_result(frozenset())
        for link in self.hub.shards.served_here:  # lest they hand out jobs that nobody gets
            link.control(link_protocol.ORIGIN_CUT, downlink.origin << link_protocol.ORIGIN_SHIFT)
        loop = asyncio.get_running_loop()
        self._going[downlink.origin] = loop.call_later(GONE_S, self._gone, downlink.origin)

    def _gone(self, origin: int) -> None:
        """A host's router has ended, or was unreachable for too long: its connections count as closed."""
        self._going.pop(origin, None)
        self._lives.pop(origin, None)
        self._ended(origin, self._known.pop(origin, set()))
        for link in self.hub.shards.served_here:
            link.control(link_protocol.ORIGIN_GONE, origin << link_protocol.ORIGIN_SHIFT)

    def _ended(self, origin: int, connections: Iterable[int]) -> None:
        """These connections are not there any more; their workers may come back over others."""
        links = self.hub.shards.served_here
        for conn in connections:
            for link in links:
                link.control(link_protocol.BROKEN, conn)

    def known_of(self, downlink: Downlink) -> set[int]:
        """The connections of a host that shards here may know."""
        return self._known[downlink.origin]

    def live(self) -> bytes:
        """The connections of this host that are open."""
        return link_protocol.pack_connections(self.hub.connections)

    def say_live(self) -> None:
        """Connections of another router of this host have ended with it."""
        for uplink in self._uplinks.values():
            uplink.say(host_link.LIVE, self.live())

    def lives(self, downlink: Downlink, connections: frozenset[int]) -> None:
        """A host reports which of its connections are open."""
        known = self._known[downlink.origin]
        self._ended(downlink.origin, known - connections)
        known &= connections
        future = self._asked.get(downlink.peer)
        if future is not None and not future.done():
            future.set_result(connections)

    async def others_live(self) -> list[int]:
        """The open connections of all other hosts: a shard that has just started leaves them their jobs."""
        loop = asyncio.get_running_loop()
        asked = [downlink for downlink in self._downlinks.values() if downlink.is_heard]
        for downlink in asked:
            if downlink.peer not in self._asked or self._asked[downlink.peer].done():
                self._asked[downlink.peer] = loop.create_future()
            downlink.say(host_link.LIVE)
        if asked:
            await asyncio.wait([self._asked[downlink.peer] for downlink in asked], timeout=LIVE_S)
        found: list[int] = []
        for downlink in asked:
            future = self._asked[downlink.peer]
            if future.done():
                found += future.result()
                self._known[downlink.origin] |= future.result()
        return found

    # -- reports about shards of this host -----------------------------------------------------

    def say(self, kind: int, shard: int, body: bytes = b"") -> None:
        """Tell all hosts that use the shards here."""
        for downlink in self._downlinks.values():
            downlink.say(kind, body, shard=shard)

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
            downlink.say(host_link.RETURNED, body, shard=shard, conn=conn)

    def _by_host(self, connections: Iterable[int]) -> list[tuple[Downlink, list[int]]]:
        by_origin: defaultdict[int, list[int]] = defaultdict(list)
        for conn in connections:
            by_origin[link_protocol.origin_of(conn)].append(conn)
        found = ((self._of_origin(origin), some) for origin, some in by_origin.items())
        return [(downlink, some) for downlink, some in found if downlink is not None]

    def _of_origin(self, origin: int) -> Downlink | None:
        return next((link for link in self._downlinks.values() if link.origin == origin), None)
