"""All connections: clients on one side, shards on the other, and the traffic between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

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
from .kernel_processes import born
from .lag import LoopLag
from .local import now_ms
from .own_figures import figures
from .routing import Routes
from .strangers import Strangers
from .tickets import Tickets
from .turns import Turns

if TYPE_CHECKING:
    from .connection import ClientConnection
    from .shard_link import ShardLink

SWEEP_S = 5.0
GONE_S = 0.25  # from the end of a connection to that of its process: the kernel closes files first
LINGER_SWEEPS = 1  # how long a connection that we ended may take to notice; until then we swallow its bytes

_log = get_logger("router")


class Hub:
    """The table of clients and of shards.  One for the process; it is touched by its event loop only."""

    def __init__(self, settings: Settings) -> None:
        self.shards = settings.shards
        self.default_kind: int = settings.default_protocol
        self.tokens = Tokens.of(settings.auth_token, settings.read_only_token)
        self.rate_limit = settings.rate_limit
        self.max_connections = settings.max_connections
        self.max_lingering = MAX_LINGERING
        self.routes = Routes(self.shards)
        self.clients: dict[int, ClientConnection] = {}
        self.bounds = Bounds(self.clients)
        self.links: list[ShardLink | None] = [None] * self.shards  # None: down, or not ready
        self.damaged: dict[int, str] = {}  # shards that stay down, and what is to be done about it
        self.exposed: dict[str, str] = {}  # what other users of the machine can read, and what to do about it
        self.strangers = Strangers()
        self.turns = Turns()
        self.workers = Workers(self._worker_presence)
        self.commands = ServerCommands(self.workers, now_ms)
        self.tickets = Tickets(self.links, self.clients, self.damaged)
        self.refused = 0  # clients since the last sweep, because there are too many
        self.lag = LoopLag()
        self.heard = LoopPoll(settings.busy_poll).heard
        self.started = time.monotonic()
        additions = Additions(lambda: figures(self), lambda: self.workers.listing(now_ms()))
        self.tickets.additions = additions.by_command
        self.draining = False
        self.lingering: dict[ClientConnection, int] = {}  # ended by us -> sweeps since
        self.open = 0  # sockets of clients, those that linger and those that are being closed among them
        self._last_number = 0
        self._emptied = asyncio.Event()

    # Clients

    def add(self, client: ClientConnection) -> int:
        """Enter a client; its number, which is not used again before all others were."""
        number = self._last_number
        while number in self.clients or number == self._last_number:
            number = number % (link_protocol.TICKET - 1) + 1  # 1 .. TICKET - 1
        self._last_number = number
        self.clients[number] = client
        return number

    def remove(self, client: ClientConnection, kind: int) -> None:
        """A client is gone: tell the shards that it used.  ``kind`` is CLOSED, SEVERED or BROKEN."""
        if self.clients.pop(client.number, None) is None:
            return
        self.strangers.leave(client)
        workers = self.workers.disconnected(client.number)
        if self.draining:  # the shards are about to end
            if not self.clients:
                self._emptied.set()
            return
        for shard in client.in_flight:
            link = self.links[shard]
            if link is not None:
                link.control(kind, client.number)
        for worker in workers:
            if worker.born is not None:
                asyncio.get_running_loop().call_later(GONE_S, self._look_whether_gone, worker)

    def _look_whether_gone(self, worker: Worker) -> None:
        """The connection of a worker on this machine has ended: if its process has, too, nobody has to wait
        for it."""
        if born(worker.pid) == worker.born:
            return
        for link in self.links:
            if link is not None and not self.draining:
                link.control(link_protocol.GONE, link_protocol.CONTROL, worker.id.encode())

    def returned(self, away: float) -> None:
        """The router has stood still for so many seconds: nobody is to blame for not being heard."""
        _log.warning("the router stood still", seconds=round(away, 1))
        self.workers.renew(now_ms())

    def lost(self, client: ClientConnection, error: Exception | None) -> None:
        """The socket of a client is closed."""
        # The kernel speaks of a broken pipe where the client had closed its side before.
        orderly = error is None or isinstance(error, BrokenPipeError)
        self.remove(client, link_protocol.CLOSED if orderly else link_protocol.BROKEN)
        self.lingering.pop(client, None)

    async def emptied(self) -> None:
        """Wait, at the end, for the last client to go."""
        if self.clients:
            await self._emptied.wait()

    def sweep(self) -> None:
        """End the clients that have stopped; called every SWEEP_S seconds."""
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
        """What happened in a queue, for those who subscribed to it."""
        connections, frames = link_protocol.unpack_events(body)
        for conn in connections:
            client = self.clients.get(conn)
            if client is not None and client.subscription is not None:
                client.subscription.deliver(shard, frames)

    # Shards

    def link_up(self, link: ShardLink) -> None:
        """A shard has recovered: from now on it gets commands."""
        link.control(
            link_protocol.LIVE, link_protocol.CONTROL, link_protocol.pack_connections(list(self.clients))
        )
        self.links[link.shard] = link
        for other in self.links:
            if other is not None and other is not link:
                other.control(link_protocol.PEER, link_protocol.CONTROL, bytes((link.shard,)))
                link.control(link_protocol.PEER, link_protocol.CONTROL, bytes((other.shard,)))

        mine = [queue for queue in self.workers.by_queue if self.routes.of_queue(queue) == link.shard]
        if mine:
            link.control(
                link_protocol.WORKER_PRESENCE,
                link_protocol.CONTROL,
                link_protocol.encode(link_protocol.WorkerPresence(mine, True)),
            )

    def _worker_presence(self, queue: str, present: bool) -> None:
        """A queue has its first worker, or has lost its last one."""
        link = self.links[self.routes.of_queue(queue)]
        if link is not None and not self.draining:
            link.control(
                link_protocol.WORKER_PRESENCE,
                link_protocol.CONTROL,
                link_protocol.encode(link_protocol.WorkerPresence([queue], present)),
            )

    def peer_message(self, source: int, body: bytes) -> None:
        """One shard says something to another; when that is down, it asks again by itself."""
        link = self.links[body[0]]
        if link is not None:
            link.control(link_protocol.PEER_MESSAGE, link_protocol.CONTROL, bytes((source,)) + body[1:])

    def answers_lost(self, shard: int, numbers: Iterable[int]) -> None:
        """What these connections, or tickets, asked a shard may or may not have happened: see `link_down`."""
        for number in numbers:
            client = self.clients.get(number)
            if number >= link_protocol.TICKET:
                self.tickets.lost(number, shard)
            elif client is not None:
                client.finish(link_protocol.SEVERED)

    def link_down(self, link: ShardLink) -> None:
        """A shard died: what was in flight there may or may not have happened, so nobody is answered.

        The connections are closed instead, those that get its events among them, as some may be missing.
        To the other shards they are SEVERED: the client is still there, and its locked jobs stay its own.
        """
        shard = link.shard
        if self.links[shard] is not link:
            return
        self.links[shard] = None
        victims = [
            client
            for client in self.clients.values()
            if client.in_flight.get(shard)
            or (client.subscription is not None and client.subscription.shard == shard)
        ]
        for client in victims:
            client.finish(link_protocol.SEVERED)
        self.tickets.shard_lost(shard)
        if victims and not self.draining:
            _log.warning("closed connections with commands in flight", shard=shard, connections=len(victims))
