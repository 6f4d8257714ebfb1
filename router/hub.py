"""All connections: clients on one side, shards on the other, and the traffic between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from bunqueue.busy_poll import LoopPoll
from bunqueue.descriptors import MAX_LINGERING
from bunqueue.logs import get_logger
from bunqueue.protocol import link as link_protocol
from bunqueue.server_commands.additions import Additions
from bunqueue.server_commands.commands import ServerCommands
from bunqueue.server_commands.workers import Worker, Workers
from bunqueue.settings import Settings

from .admission import Tokens
from .bounds import Bounds
from .deaths import Deaths
from .kernel_processes import born
from .lag import LoopLag
from .local import now_ms
from .own_figures import figures
from .routing import Routes
from .strangers import MAX_EACH, Strangers
from .subscription import resume_all
from .tickets import Tickets
from .turns import Turns

if TYPE_CHECKING:
    from .cluster.cluster import Cluster
    from .cluster.holds import Holds
    from .cluster.links import Links
    from .cluster.remote_shard import RemoteShard
    from .connection import ClientConnection
    from .further.first import FirstRouter
    from .further.peer import PeerRouter
    from .further.supervisor import FurtherRouters
    from .further.table import Table
    from .shard_link import ShardLink

SWEEP_S = 5.0
GONE_S = 0.25  # from the end of a connection to that of its process: the kernel closes files first
LIVES, NUMBERS_OF_LIFE = 32, 4096  # of a secondary router, before it reuses the first numbers
LINGER_SWEEPS = 1  # time for a client to notice that we ended it; until then its bytes are discarded

_log = get_logger("router")


class Hub:
    """The table of clients and of shards. One per process; only its event loop touches it."""

    def __init__(self, settings: Settings) -> None:
        self.shards = settings.shards
        self.default_kind: int = settings.default_protocol
        self.tokens = Tokens.of(settings.auth_token, settings.read_only_token)
        self.rate_limit = settings.rate_limit
        self.max_connections = self.most_connections = settings.max_connections
        self.max_lingering = MAX_LINGERING
        self.routes = Routes(self.shards)
        self.clients: dict[int, ClientConnection] = {}
        self.bounds = Bounds(self.clients)
        self.links: list[ShardLink | RemoteShard | None] = [None] * self.shards  # None: down, or not ready
        self.origin = 0  # of this router's connections; different in each host of a cluster
        self._base, self._most = 0, link_protocol.MAX_NUMBER  # range of this router's connection numbers
        self.further: FurtherRouters | None = None  # in the first of several routers of a host
        self.first: FirstRouter | None = None  # in the others
        self.table: Table | None = None  # shared by all of them
        self.cluster: Cluster | None = None
        self.holds: Holds | None = None  # in a cluster: commands that wait for the next owner of a shard
        self.damaged: dict[int, str] = {}  # shards that stay down, and how to fix them
        self.exposed: dict[str, str] = {}  # what other users of the machine can read, and the fix
        self.strangers = Strangers()
        self.turns = Turns()
        self.workers = Workers(self._worker_presence)
        self.commands = ServerCommands(self.workers, now_ms)
        self.deaths = Deaths()
        self.tickets = Tickets(self.links, self.damaged, self.turns, self.deaths.said_of)
        self.refused = 0  # clients since the last sweep, because there are too many
        self.lag = LoopLag()
        self.heard = LoopPoll(settings.busy_poll).heard
        self.started = time.monotonic()
        additions = Additions(lambda: figures(self), lambda: self.workers.listing(now_ms()))
        self.tickets.additions = additions.by_command
        self.draining = False
        self.lingering: dict[ClientConnection, int] = {}  # ended by us -> sweeps since
        self.open = 0  # sockets of clients, including those that linger and those that are being closed
        self._last_number = 0
        self._leaving: dict[int, ShardLink | RemoteShard] = {}  # shards that are given up, and still answer
        self._emptied = asyncio.Event()

    # Clients

    def add(self, client: ClientConnection) -> int:
        """Register a client; returns its number, which is not reused before all other numbers were."""
        number, base, most = self._last_number, self._base, self._most
        while number in self.clients or number == self._last_number:
            number = base + (number - base) % most + 1  # 1 .. most
        self._last_number = number
        self.clients[number] = client
        if self.table is not None:
            self.table.connected(len(self.clients))
        if self.first is not None:
            self.first.joined(number)
        return number

    @property
    def connections(self) -> list[int]:
        """The connections of this host's clients."""
        return [*self.clients, *(() if self.further is None else self.further.connections)]

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of clients is reached, here or over all routers of the host."""
        if len(self.clients) >= self.max_connections:
            return True
        return self.table is not None and self.table.connections >= self.most_connections

    @property
    def base(self) -> int:
        """The number before the first one of this router's connections."""
        return self._base

    def one_of(self, table: Table, number: int, origin: int, life: int = 0) -> None:
        """Make this one of several routers of the host. ``life``: the number of its earlier starts; an answer
        to a client of an earlier start must not reach a client that has the same number now."""
        self.table = table
        self.origin, self._most = origin, (1 << link_protocol.ROUTER_SHIFT) - 1
        self._base = origin << link_protocol.ORIGIN_SHIFT | number << link_protocol.ROUTER_SHIFT
        self._last_number = self.tickets.base = self._base + life % LIVES * NUMBERS_OF_LIFE
        self.bounds.routers = len(table.rows)
        self.strangers.most_each = max(32, MAX_EACH // len(table.rows))
        self.commands.router = number

    def remove(self, client: ClientConnection, kind: int) -> None:
        """A client is gone: notify the shards that it used. ``kind`` is CLOSED, SEVERED or BROKEN."""
        if self.clients.pop(client.number, None) is None:
            return
        self.strangers.leave(client)
        if self.table is not None:
            self.table.connected(len(self.clients))
        if self.first is not None:
            self.first.left(client.number)
        workers = self.workers.disconnected(client.number)
        if self.draining:  # the shards are about to end
            if not self.clients:
                self._emptied.set()
            return
        for shard in client.in_flight:
            link = self.links[shard]
            if link is not None:
                link.control(kind, client.number)
        self._look_after(workers)

    def workers_left(self, conn: int) -> None:
        """A connection of another router, with workers registered here, has ended."""
        self._look_after(self.workers.disconnected(conn))

    def _look_after(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            if worker.born is not None and not self.draining:
                asyncio.get_running_loop().call_later(GONE_S, self._look_whether_gone, worker)

    def _look_whether_gone(self, worker: Worker) -> None:
        """The connection of a worker on this machine has ended: if its process has ended as well, the shards
        need not wait for it."""
        if born(worker.pid) == worker.born:
            return
        for link in self.links:
            if link is not None and not self.draining:
                link.control(link_protocol.GONE, link_protocol.CONTROL, worker.id.encode())

    def returned(self, away: float) -> None:
        """The process was paused for this many seconds: renew all worker leases instead of expiring them."""
        _log.warning("the router stood still", seconds=round(away, 1))
        self.workers.renew(now_ms())

    def lost(self, client: ClientConnection, error: Exception | None) -> None:
        """The socket of a client is closed."""
        # The kernel reports a broken pipe if the client had closed its side before.
        orderly = error is None or client.half_closed or isinstance(error, BrokenPipeError)
        self.remove(client, link_protocol.CLOSED if orderly else link_protocol.BROKEN)
        self.lingering.pop(client, None)

    async def emptied(self) -> None:
        """Wait, at the end, until the last client is gone."""
        if self.clients:
            await self._emptied.wait()

    def sweep(self) -> None:
        """End the clients that have stalled; called every SWEEP_S seconds."""
        self.bounds.sweep()
        self.strangers.sweep()
        if self.refused:
            _log.warning(
                "clients were turned away", clients=self.refused, max_connections=self.max_connections
            )
            self.refused = 0
        for client, sweeps in list(self.lingering.items()):
            self.lingering[client] = sweeps + 1
            if sweeps >= LINGER_SWEEPS:
                client.abort()

    def deliver_events(self, shard: int, body: bytes) -> None:
        """Deliver the events of a queue to its subscribers."""
        connections, frames = link_protocol.unpack_events(body)
        for conn in connections:
            client = self.clients.get(conn)
            if client is not None and client.subscription is not None:
                client.subscription.deliver(shard, frames)
        if elsewhere := self._elsewhere(connections):
            self.others.events(shard, elsewhere, frames)

    # Other hosts

    def join_cluster(self, cluster: Cluster, origin: int) -> None:
        """Make this host part of a cluster, in which its connections have a number range of their own."""
        self.cluster, self.origin = cluster, origin
        self.commands.cluster_status = cluster.commands.status
        self._last_number = self._base = self.tickets.base = origin << link_protocol.ORIGIN_SHIFT
        self.hold(cluster.holds)

    def hold(self, holds: Holds) -> None:
        """Let commands for a shard without an owner wait here: in a cluster it has one again in seconds."""
        self.holds = self.tickets.holds = holds

    @property
    def others(self) -> Links:
        """The connections to the other hosts of the cluster."""
        assert self.cluster is not None
        return self.cluster.links

    def _elsewhere(self, connections: Iterable[int]) -> list[int]:
        """The connections that belong to other routers."""
        if self.cluster is None:
            return []
        return [conn for conn in connections if link_protocol.origin_of(conn) != self.origin]

    def answer_elsewhere(
        self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes
    ) -> None:
        """Pass on what a shard here sends to a connection, or a ticket, of another router."""
        if self.cluster is not None:
            self.others.answer(shard, conn, kind, replies, slow, body)

    def answering(self, shard: int) -> tuple[ShardLink | RemoteShard | None, ShardLink | RemoteShard | None]:
        """The owner of a shard, and the one that is giving it up but still answers; None where there is
        none."""
        return self.links[shard], self._leaving.get(shard)

    def local_link(self, shard: int) -> ShardLink | None:
        """The shard's process on this host, while it serves, or answers what it still has."""
        here = (link for link in self.answering(shard) if link is not None and link.is_local)
        return cast("ShardLink | None", next(here, None))

    def remote_link(self, shard: int) -> RemoteShard | None:
        """The same for a shard of another host."""
        elsewhere = (link for link in self.answering(shard) if link is not None and not link.is_local)
        return cast("RemoteShard | None", next(elsewhere, None))

    def local_links(self) -> list[ShardLink]:
        """The shards that this host owns."""
        return [cast("ShardLink", link) for link in self.links if link is not None and link.is_local]

    def remote_up(self, remote: RemoteShard) -> None:
        """Another host reports that it owns a shard. If two hosts do, the one with the higher epoch is
        right."""
        known = self.links[remote.shard]
        if known is not None and known.epoch > remote.epoch:
            return
        if known is not None and known.is_local:
            self.link_down(known)  # this host has lost it, and does not know it yet
        self.links[remote.shard] = remote
        self.damaged.pop(remote.shard, None)
        for link in self.local_links():
            link.control(link_protocol.PEER, link_protocol.CONTROL, bytes((remote.shard,)))
            # What this shard has answered over the broken connection is lost: the other one must ask again as
            # well.
            remote.announce(link.shard)
        self._say_presence(remote)
        resume_all(self.clients, remote)
        assert self.cluster is not None
        self.cluster.holds.release(remote.shard, remote)
        self.cluster.changed()
        if self.further is not None:
            self.further.shard_up(remote)

    def peer_of(self, conn: int) -> PeerRouter | None:
        """The other router of this host that has a connection, or a ticket; None if it belongs to this
        one."""
        if self.further is None:
            return None
        return self.further.link_to(link_protocol.router_of(conn) - link_protocol.router_of(self._base))

    def pause(self, link: ShardLink | RemoteShard, done: Callable[[], None] = lambda: None) -> None:
        """A shard is about to move: send nothing more to it; commands in flight are still answered. ``done``
        is called once all routers of the host have stopped sending."""
        if self.links[link.shard] is link:
            self.links[link.shard] = None
            self._leaving[link.shard] = link
        if self.further is None:
            done()
        else:
            self.further.hold(link.shard, done)

    def released(self, remote: RemoteShard) -> None:
        """A shard of another host has been given up there."""
        self.settle(remote.shard)
        if self.further is not None:
            self.further.shard_down(remote)

    # Shards

    def link_up(self, link: ShardLink, others: Sequence[int] = ()) -> None:
        """A shard has recovered and now receives commands. ``others``: connections of other hosts."""
        live = link_protocol.pack_connections([*self.connections, *others])
        link.control(link_protocol.LIVE, link_protocol.CONTROL, live)
        before = self.links[link.shard]
        if before is not None and before is not link:  # another host had it
            self.link_down(before)
        self.links[link.shard] = link
        self._leaving.pop(link.shard, None)
        self.damaged.pop(link.shard, None)
        for other in self.links:
            if other is not None and other is not link:
                other.control(link_protocol.PEER, link_protocol.CONTROL, bytes((link.shard,)))
                link.control(link_protocol.PEER, link_protocol.CONTROL, bytes((other.shard,)))
        self._say_presence(link)
        if self.further is not None:
            self.further.shard_up(link)
        if self.cluster is not None:
            resume_all(self.clients, link)

    def _say_presence(self, link: ShardLink | RemoteShard) -> None:
        """Tell a shard which of its queues have workers that are registered here."""
        mine = [queue for queue in self.workers.by_queue if self.routes.of_queue(queue) == link.shard]
        if mine:
            presence = link_protocol.WorkerPresence(mine, True, self.workers.names_of(mine))
            link.control(link_protocol.WORKER_PRESENCE, self._base, link_protocol.encode(presence))

    def _worker_presence(self, queue: str) -> None:
        """A queue has its first worker, has lost its last one, or the job names its workers run have
        changed."""
        link = self.links[self.routes.of_queue(queue)]
        if link is not None and not self.draining:
            present, names = queue in self.workers.by_queue, self.workers.names_of((queue,))
            presence = link_protocol.WorkerPresence([queue], present, names)
            link.control(link_protocol.WORKER_PRESENCE, self._base, link_protocol.encode(presence))

    def peer_message(self, source: int, body: bytes) -> None:
        """Pass a message from one shard to another; if that one is down, the sender asks again on its own."""
        link = self.links[body[0]]
        if link is not None:
            link.control(link_protocol.PEER_MESSAGE, link_protocol.CONTROL, bytes((source,)) + body[1:])

    def answers_lost(self, shard: int, numbers: Iterable[int]) -> None:
        """The commands of these connections, or tickets, may or may not have happened: see `link_down`."""
        for number in numbers:
            client = self.clients.get(number)
            if number >= link_protocol.TICKET:
                self.tickets.lost(number, shard)
            elif client is not None:
                client.finish(link_protocol.SEVERED)
        if elsewhere := self._elsewhere(numbers):
            self.others.lost(shard, elsewhere)

    def link_down(self, link: ShardLink | RemoteShard) -> None:
        """A shard died: what was in flight there may or may not have happened, so no command is answered.

        Their connections are closed instead, and so are those of subscribers, as events may be missing. The
        other shards see these connections as SEVERED: the client is still there, and keeps its locked jobs.
        """
        shard = link.shard
        if self.links[shard] is link:
            self.links[shard] = None
        elif self._leaving.get(shard) is not link and link.is_local:
            return
        self.settle(shard)
        if self.further is not None and not self.draining:
            self.further.shard_down(link)
        if self.cluster is not None and link.is_local:
            self.cluster.lost(shard)

    def settle(self, shard: int) -> None:
        """An owner of a shard answers nothing any more: close the connections that still wait for its
        answers. Commands that it has sent back go to the next owner, which may be there already."""
        self._leaving.pop(shard, None)
        victims = [client for client in self.clients.values() if self._is_victim(client, shard)]
        for client in victims:
            client.finish(link_protocol.SEVERED)
        self.tickets.shard_lost(shard)
        if victims and not self.draining:
            _log.warning("closed connections with commands in flight", shard=shard, connections=len(victims))
        link = self.links[shard]
        if link is not None and self.holds is not None:
            self.holds.release(shard, link)

    def _is_victim(self, client: ClientConnection, shard: int) -> bool:
        """Whether the outcome of a command that a client sent to a shard is unknown. In a cluster, event
        streams resume on their own, and commands that wait for the next owner have not been sent yet."""
        under_way = client.in_flight.get(shard, 0)
        if self.holds is not None:
            return under_way > self.holds.count(shard, client)
        return bool(under_way) or (client.subscription is not None and client.subscription.shard == shard)
