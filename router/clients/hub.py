"""All connections: clients on one side, shards on the other, and the traffic between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from bunqueue.logs import get_logger
from bunqueue.model.names import allow_namespaces
from bunqueue.model.quota import Quota
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.server.audit.trail import Trail
from bunqueue.server.commands.server_commands import ServerCommands
from bunqueue.server.commands.workers import Worker, Workers
from bunqueue.server.host.busy_poll import LoopPoll
from bunqueue.server.host.descriptors import MAX_LINGERING
from bunqueue.server.identities.directory import Directory
from bunqueue.server.identities.last_used import LastUsed
from bunqueue.server.identities.watch import directory_of
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.links.pipe_messages import Shipping
from bunqueue.server.settings.settings import Settings

from ..core.hosts import Hosts
from ..core.ports import Endpoint, RemoteEndpoint
from ..core.shard_map import ShardMap
from ..core.siblings import Sibling, Siblings
from ..event_loop import LoopLag
from ..processes.deaths import Deaths
from ..processes.kernel_processes import born
from .client_table import ClientTable
from .memory_bounds import Bounds
from .own_commands import now_ms
from .pending import PendingCommands
from .ports import Client
from .quotas import Quotas
from .subscription import resume_all
from .tickets import Tickets
from .turns import Turns
from .unauthenticated import MAX_EACH, Unauthenticated

SWEEP_S = 5.0
GONE_S = 0.25  # from the end of a connection to that of its process: the kernel closes files first
LINGER_SWEEPS = 1  # how long a connection that we ended may take to notice; until then we swallow its bytes

ENDED = "The rights of this connection have ended or changed: connect again"

_log = get_logger("router")


class Limits:
    """What a client may do, the largest number of clients, and what is noted of them."""

    def __init__(self, settings: Settings) -> None:
        self.protocol: int = settings.default_protocol
        """The version that a client speaks until it names another one; also the kind of its envelopes."""
        self.directory = directory_of(settings)
        self.quotas = Quotas(self.directory.quotas)
        if settings.identities:
            allow_namespaces()
        self.last_used = LastUsed(settings)
        self.trail = Trail(settings, "router-0")
        self.rate_limit = settings.rate_limit
        self.connections = settings.max_connections
        """Clients of this router; fewer than `in_all` where the limit of open files is low."""
        self.in_all = settings.max_connections
        """Clients of all routers of the host together."""
        self.lingering = MAX_LINGERING
        self.refused = 0
        """Clients since the last sweep, because there were too many."""


class Health:
    """What the router knows of how it does."""

    def __init__(self) -> None:
        self.lag = LoopLag()
        self.started = time.monotonic()
        self.deaths = Deaths()
        self.certificate_ends = 0.0
        """That of TLS, in seconds since the epoch; 0 without one."""
        self.client_certificate_ends = 0.0
        """The first end of a certificate that an identity has lately shown; 0 without one."""
        self.exposed: dict[str, str] = {}
        """What other users of the machine can read, and what to do about it."""
        self.shipping: Shipping | None = None
        """How far what changes is backed up; None: it is not."""
        self.shipped_at = self.started
        """When it was stored for the last time, by the monotonic clock."""


class Hub:
    """The table of clients and of shards. One per process; only its event loop touches it."""

    def __init__(self, settings: Settings) -> None:
        self.limits = Limits(settings)
        self.health = Health()
        self.clients = ClientTable()
        self.bounds = Bounds(self.clients)
        self.shards = ShardMap(settings.shards)
        self.siblings = Siblings()
        self.hosts = Hosts()
        self.unauthenticated = Unauthenticated()
        self.turns = Turns()
        self.workers = Workers(self._worker_presence)
        self.commands = ServerCommands(self.workers, now_ms)
        deaths = self.health.deaths.summary
        self.pending = PendingCommands(self.shards, deaths, waits=bool(settings.cluster or settings.follow))
        self.tickets = Tickets(self.shards, self.turns, self.pending)
        self.received = LoopPoll(settings.busy_poll).on_read
        self._emptied = asyncio.Event()

    # Clients

    def add(self, client: Client) -> int:
        """Enter a client; its number, which is not used again before all others were."""
        number = self.clients.enter(client)
        self.siblings.joined(number, len(self.clients))
        return number

    @property
    def connections(self) -> list[int]:
        """Those of this host's clients."""
        return [*self.clients, *self.siblings.connections]

    @property
    def is_full(self) -> bool:
        """Whether there are as many clients as there may be, here or at all routers of the host."""
        limits = self.limits
        return len(self.clients) >= limits.connections or self.siblings.all_connections >= limits.in_all

    def one_of(
        self, siblings: Siblings, routers: int, number: int, origin: int, incarnation: int = 0
    ) -> None:
        """This is one of several routers of the host: see `ClientTable.of_router`."""
        self.siblings = siblings
        self.tickets.base = self.clients.of_router(number, origin, incarnation)
        self.bounds.routers = routers
        self.unauthenticated.most_each = max(32, MAX_EACH // routers)
        self.commands.router = number

    def remove(self, client: Client, kind: int) -> None:
        """A client is gone: tell the shards that it used.  ``kind`` is CLOSED, SEVERED or BROKEN."""
        if self.clients.pop(client.number, None) is None:
            return
        self.unauthenticated.leave(client)
        self.siblings.left(client.number, len(self.clients))
        workers = self.workers.disconnected(client.number)
        if self.clients.draining:  # the shards are about to end
            if not self.clients:
                self._emptied.set()
            return
        for shard in client.in_flight:
            link = self.shards.links[shard]
            if link is not None:
                link.control(kind, client.number)
        self._check_workers(workers)

    def workers_left(self, conn: int) -> None:
        """A connection of another router, with workers registered here, has ended."""
        self._check_workers(self.workers.disconnected(conn))

    def _check_workers(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            if worker.born is not None and not self.clients.draining:
                asyncio.get_running_loop().call_later(GONE_S, self._check_worker, worker)

    def _check_worker(self, worker: Worker) -> None:
        """The connection of a worker on this machine has ended: if its process has ended as well, the shards
        need not wait for it."""
        if born(worker.pid) == worker.born:
            return
        for link in self.shards.served:
            if not self.clients.draining:
                link.control(link_protocol.GONE, link_protocol.CONTROL, worker.id.encode())

    def resumed(self, paused_s: float) -> None:
        """The process was paused for this many seconds: renew all worker leases instead of expiring them."""
        _log.warning("the router stood still", seconds=round(paused_s, 1))
        self.workers.renew(now_ms())

    def lost(self, client: Client, error: Exception | None) -> None:
        """The socket of a client is closed."""
        # The kernel reports a broken pipe if the client had closed its side before.
        orderly = error is None or client.half_closed or isinstance(error, BrokenPipeError)
        self.remove(client, link_protocol.CLOSED if orderly else link_protocol.BROKEN)
        self.clients.lingering.pop(client, None)

    async def emptied(self) -> None:
        """Wait, at the end, until the last client is gone."""
        if self.clients:
            await self._emptied.wait()

    def identities_changed(self, directory: Directory) -> None:
        """There are other identities, or one has expired: end the clients with rights that they no longer
        have. Their jobs wait for them, as after a broken connection."""
        if directory.quotas != self.limits.directory.quotas:
            for link in self.shards.served_here:
                self._send_quotas(link, directory.quotas)
        self.limits.directory = directory
        self.limits.quotas.change(directory.quotas)
        now_s, ended = time.time(), 0
        for client in list(self.clients.values()):
            grant = client.granted
            if client.limited and grant is not None and not directory.holds(grant, now_s):
                client.finish(link_protocol.BROKEN, CommandError(ENDED, Code.NOT_AUTHENTICATED))
                ended += 1
        if ended:
            _log.info("connections ended, as their rights have", connections=ended)

    def sweep(self) -> None:
        """End the clients that have stalled; called every SWEEP_S seconds."""
        self.bounds.sweep()
        if news := self.unauthenticated.sweep():
            self.limits.trail.wrong_tokens(*news)
        limits = self.limits
        if limits.refused:
            _log.warning(
                "clients were turned away", clients=limits.refused, max_connections=limits.connections
            )
            limits.refused = 0
        for client, sweeps in list(self.clients.lingering.items()):
            self.clients.lingering[client] = sweeps + 1
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
            self.hosts.events(shard, elsewhere, frames)

    # Other hosts

    def join_cluster(self, hosts: Hosts, origin: int) -> None:
        """This host is one of several, and its connections have numbers of their own."""
        self.hosts = hosts
        self.clients.of_host(origin)
        self.tickets.base = self.clients.base

    def _elsewhere(self, connections: Iterable[int]) -> list[int]:
        """Those that other hosts have."""
        origin = self.clients.origin
        return [conn for conn in connections if link_protocol.origin_of(conn) != origin]

    def remote_up(self, remote: RemoteEndpoint) -> None:
        """Another host reports that it owns a shard.  Of two that do the later owner is right."""
        if self.shards.is_overtaken(remote):
            return
        known = self.shards.links[remote.shard]
        if known is not None and known.is_local:
            self.link_down(known)  # this host has lost it, and does not know it yet
        self.shards.serve(remote)
        for link in self.shards.served_here:
            link.control(link_protocol.PEER, link_protocol.CONTROL, bytes((remote.shard,)))
            # What this shard has answered over the broken connection is lost: the other one must ask again as
            # well.
            remote.announce(link.shard)
        self._send_presence(remote)
        resume_all(self.clients, remote)
        self.pending.release(remote.shard, remote)
        self.hosts.remote_up(remote)
        self.siblings.shard_up(remote)

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        """Commands that waited at a shard which has been given up: the next owner gets them."""
        if link_protocol.origin_of(conn) != self.clients.origin:
            self.hosts.returned(shard, conn, body)
        elif (sibling := self.sibling_of(conn)) is not None:
            sibling.returned(shard, conn, body)
        else:
            self.pending.returned(shard, self.clients.get(conn), body)

    def sibling_of(self, conn: int) -> Sibling | None:
        """The other router of this host that has a connection, or a ticket; None if that is this one."""
        return self.siblings.of(link_protocol.router_of(conn) - link_protocol.router_of(self.clients.base))

    def pause(self, link: Endpoint, done: Callable[[], None] = lambda: None) -> None:
        """A shard is about to move: nothing more is sent to it, and what is under way is still answered.
        ``done`` is called once that is true of all routers of the host."""
        self.shards.pause(link)
        self.siblings.pause(link.shard, done)

    def released(self, remote: Endpoint) -> None:
        """A shard of another host has been given up there."""
        self.fail_unanswered(remote.shard)
        self.siblings.shard_down(remote)

    # Shards

    def link_up(self, link: Endpoint, others: Sequence[int] = ()) -> None:
        """A shard has recovered: from now on it gets commands.  ``others``: connections of other hosts."""
        live = link_protocol.pack_connections([*self.connections, *others])
        link.control(link_protocol.LIVE, link_protocol.CONTROL, live)
        if quotas := self.limits.directory.quotas:
            self._send_quotas(link, quotas)
        before = self.shards.links[link.shard]
        if before is not None and before is not link:  # another host had it
            self.link_down(before)
        self.shards.serve_here(link)
        for other in self.shards.served:
            if other is not link:
                other.control(link_protocol.PEER, link_protocol.CONTROL, bytes((link.shard,)))
                link.control(link_protocol.PEER, link_protocol.CONTROL, bytes((other.shard,)))
        self._send_presence(link)
        self.siblings.shard_up(link)
        if self.pending.waits:
            resume_all(self.clients, link)
            self.pending.release(link.shard, link)

    def _send_quotas(self, link: Endpoint, quotas: Mapping[str, Quota]) -> None:
        """Tell a shard the bounds of namespaces."""
        link.control(link_protocol.QUOTAS, link_protocol.CONTROL, link_protocol.encode(quotas))

    def _send_presence(self, link: Endpoint) -> None:
        """Tell a shard which of its queues have workers that are registered here."""
        mine = [queue for queue in self.workers.by_queue if self.shards.routes.of_queue(queue) == link.shard]
        if mine:
            presence = link_protocol.WorkerPresence(mine, True, self.workers.names_of(mine))
            link.control(link_protocol.WORKER_PRESENCE, self.clients.base, link_protocol.encode(presence))

    def _worker_presence(self, queue: str) -> None:
        """A queue has its first worker, has lost its last one, or other jobs of it are run than before."""
        link = self.shards.links[self.shards.routes.of_queue(queue)]
        if link is not None and not self.clients.draining:
            present, names = queue in self.workers.by_queue, self.workers.names_of((queue,))
            presence = link_protocol.WorkerPresence([queue], present, names)
            link.control(link_protocol.WORKER_PRESENCE, self.clients.base, link_protocol.encode(presence))

    def peer_message(self, source: int, body: bytes) -> None:
        """A message from one shard to another; when that is down, it asks again on its own."""
        link = self.shards.links[body[0]]
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
            self.hosts.answers_lost(shard, elsewhere)

    def link_down(self, link: Endpoint) -> None:
        """A shard died: what was in flight there may or may not have happened, so nobody is answered.

        Their connections are closed instead, and so are those of subscribers, as events may be missing. The
        other shards see these connections as SEVERED: the client is still there, and keeps its locked jobs.
        """
        if not self.shards.lost(link):
            return
        self.fail_unanswered(link.shard)
        if not self.clients.draining:
            self.siblings.shard_down(link)
        if link.is_local:
            self.hosts.lost(link.shard)

    def fail_unanswered(self, shard: int) -> None:
        """An owner of a shard answers nothing any more: cut off those that still wait for its answers.  What
        it has given back goes to the next one, which may be there already."""
        self.shards.handed_over(shard)
        victims = [client for client in self.clients.values() if self._is_victim(client, shard)]
        for client in victims:
            client.finish(link_protocol.SEVERED)
        self.tickets.shard_lost(shard)
        if victims and not self.clients.draining:
            _log.warning("closed connections with commands in flight", shard=shard, connections=len(victims))
        link = self.shards.links[shard]
        if link is not None:
            self.pending.release(shard, link)

    def _is_victim(self, client: Client, shard: int) -> bool:
        """Whether nobody knows what became of something that a client has asked a shard.  In a cluster events
        continue with the next owner, and what waits for that one was not asked yet."""
        if client.in_flight.get(shard, 0) > self.pending.count(shard, client):
            return True
        events = client.subscription
        return not self.pending.waits and events is not None and events.shard == shard
