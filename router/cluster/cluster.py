"""One host's part in a cluster: its heartbeat, its shards, its connections to the other hosts.

Every second, and whenever something has happened:

1. give a sign of life, and read which other hosts are alive and what each should own (`store.ClusterStore`);
2. if something is to change, and no other host is changing it, change it (`router.core.placement`);
3. dial the hosts that are new; start and give up shards; say which ones to follow (`router.core.membership`).

Decisions are made there and carried out here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from bunqueue.logs import get_logger
from bunqueue.protocol.commands.cluster import ClusterView
from bunqueue.server.links import host_protocol as host_link
from bunqueue.server.links.pipe_messages import OwnerObservation, Report
from bunqueue.server.settings.settings import Settings
from bunqueue.store.database import StoreError

from ..clients.hub import Hub
from ..core.cluster_view import HostRow, View
from ..core.hosts import Hosts
from ..core.membership import Action, End, Follow, Membership, Move, Start, Takeover
from ..core.ports import Asks, LocalEndpoint, RemoteEndpoint
from ..core.routing import HERE, Peek
from ..errors import StartError
from ..processes.launcher import Launcher
from . import certificates
from .commands import ClusterCommands
from .exchange import Exchange
from .followers import Followers
from .forwards import Forwards
from .handovers import Handovers
from .links import Links
from .store import ClusterStore
from .store_watch import StoreWatch
from .wire import HostConnection

WITHDRAW_S = 8.0  # for other hosts to take the shards over, when this one shuts down cleanly
SERVED_S = 30.0  # for all shards to have owners, before this host says that it is ready

_log = get_logger("cluster")


class Processes(Protocol):
    """The supervisor, as far as it starts and ends the shards' processes of a host in a cluster."""

    def run(self, index: int, observed: OwnerObservation | None) -> None: ...

    def has(self, link: LocalEndpoint) -> bool: ...

    def check_owner(self, index: int) -> None: ...

    def end(self, index: int) -> None: ...

    async def hand_over(self, index: int) -> None: ...


class Cluster(Hosts):
    """Who owns what, as this host sees it."""

    def __init__(
        self,
        hub: Hub,
        supervisor: Processes,
        launcher: Launcher,
        settings: Settings,
        me: HostRow,
        store: str,
    ) -> None:
        """``store`` is the store's id."""
        identity = certificates.make(me.name)
        self._hub, self._supervisor, self._settings = hub, supervisor, settings
        self.links = Links(hub, settings.cluster, store, identity)
        self.store = ClusterStore(settings.store, replace(me, certificate=identity.certificate))
        self.commands = ClusterCommands(self)
        self.forwards = Forwards(hub, self.links)
        self.membership = Membership(me.id, settings.cluster_copies)
        self._watch = StoreWatch(self._refresh)
        self._exchange = Exchange(hub, self.links, me.id)
        self._followers = Followers(settings, me.id, self._reported, launcher)
        self._handovers = Handovers(hub, self.links, supervisor.hand_over, self.membership.moved)
        self._entering: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    # -- start and stop ------------------------------------------------------------------------

    def owned_at_start(self, shards: int) -> Sequence[int]:
        return ()

    async def start(self) -> None:
        """Listen for other hosts, enter this one, and begin.  StartError if it may not be one of them."""
        links = self.links
        host, _, port = self._settings.cluster_address.rpartition(":")
        self.store.advertise(links.listen(host.strip("[]"), int(port)))
        try:
            await self.store.join(self._settings.cluster)
        except StoreError as error:
            raise StartError(f"cluster: {error}") from error
        greeting = links.greeting
        greeting.me, greeting.number, greeting.secret = self.me.id, self.me.number, self.store.secret
        links.cluster = self
        self._hub.join_cluster(self, self.me.number)
        self._hub.commands.cluster_status = self.commands.status
        self._followers.start()
        self.membership.begin(self._now)
        self._watch.start()
        if not await self._until_served(SERVED_S):
            _log.warning("not all shards have an owner yet")

    async def _until_served(self, within_s: float) -> bool:
        """Wait until each shard has an owner that is reached; whether that was so in time."""
        links = self._hub.shards.links
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while None in links:
                    await self._next_change()
        return None not in links

    async def _next_change(self) -> None:
        """Wait until a shard has come here, gone from here, or moved elsewhere."""
        self._changed.clear()
        await self._changed.wait()

    async def withdraw(self) -> None:
        """This host is about to end: give its shards to others, while it still serves its clients."""
        if not self.membership.others_alive:
            return
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                await self.store.drain(self.me.id, draining=True)
                self.refresh_soon()
                self._wake_others()
                while self._hub.shards.served_here:
                    await self._next_change()

    async def stop(self) -> None:
        """The shards here have ended: leave."""
        self._watch.stop()
        self._handovers.stop()
        await self._followers.stop()
        with suppress(StoreError, TimeoutError):
            await asyncio.wait_for(self.store.leave(), 2.0)
            self._wake_others()
        await self.links.close()
        with suppress(Exception):
            await asyncio.wait_for(self.store.close(), 2.0)

    # -- what is known -------------------------------------------------------------------------

    @property
    def me(self) -> HostRow:
        return self.store.me

    @property
    def view(self) -> View | None:
        return self.membership.view

    @property
    def cluster_name(self) -> str:
        return self._settings.cluster

    @property
    def reached(self) -> frozenset[str]:
        """The hosts that this one has a connection to."""
        return self.links.reached

    @property
    def store_error(self) -> str:
        """Why the store cannot be read; "" while it can."""
        return self._watch.error

    def name(self, host: str) -> str:
        """The host's name, for people."""
        return self.links.name(host)

    def is_alive(self, host: str) -> bool:
        """Whether a host had given a sign of life lately when the store was read last."""
        return self.membership.is_alive(host)

    def load_of(self, host: str) -> float | None:
        return self._exchange.load_of(host)

    def heartbeat_age_ms(self, host: str) -> float | None:
        """The age of a host's heartbeat, as this host sees it; None while it is not known."""
        age = self.membership.liveness.age_s(host, self._now)
        return None if age is None else round(1000 * age)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- each second ---------------------------------------------------------------------------

    def refresh_soon(self) -> None:
        """Something has happened."""
        self._watch.soon()

    async def refresh(self) -> None:
        """See what has just been changed.  StoreError."""
        await self._refresh()
        self._wake_others()

    async def _refresh(self) -> None:
        view = await self.store.read()
        changes = self.membership.store_read(view, self._now)
        self.links.reach(view.hosts)
        if changes and await self.store.change(changes, view):
            for change in changes:
                if change.home is not None:
                    _log.info("a shard gets another host", shard=change.shard, host=self.name(change.home))
            self._wake_others()
            self.refresh_soon()
        self._carry_out(self.membership.arrange(self._followers.open, self._now))
        self._send_standbys()
        self._exchange.send()

    def _wake_others(self) -> None:
        """The placement has changed: the other hosts need not find out on their own."""
        for uplink in self.links.uplinks:
            uplink.send(host_link.POKE)

    def _reported(self, report: Report) -> None:
        """The follower has looked at the store."""
        actions = self.membership.reported(
            report.observed, self._followers.open, self._now, store_answers=not self.store_error
        )
        self._carry_out(actions)

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(shard, observed):
                    self._supervisor.run(shard, observed)
                case End(shard):
                    self._supervisor.end(shard)
                case Follow(shards):
                    self._followers.follow(shards)
                case Move(shard, to):
                    _log.info("a shard moves", shard=shard, host=self.name(to))
                    self._handovers.begin(shard)
                case Takeover(shard, owner):
                    _log.warning("a shard has no owner that is alive", shard=shard, owner=self.name(owner))

    # -- called by the supervisor --------------------------------------------------------------

    def became_standby(self, shard: int) -> None:
        self.membership.became_standby(shard, self._now)
        self._send_standbys()

    def _send_standbys(self) -> None:
        """Tell the owners of shards that a process here waits for.  The store and the links may know them at
        different times."""
        for shard, owner in self.membership.standbys:
            remote = self._hub.shards.remote(shard)
            for host in {owner} if remote is None else {owner, remote.host}:
                if (uplink := self.links.uplink(host)) is not None:
                    uplink.send(host_link.STANDBY, shard=shard)

    def recovered(self, link: LocalEndpoint) -> bool:
        task = asyncio.get_running_loop().create_task(self.enter(link))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)
        return False

    async def enter(self, link: LocalEndpoint) -> None:
        """A shard owned by this host is ready: before it serves, it gets the open connections."""
        before = self.membership.recovered(link.shard)
        others = await self.links.others_live()
        if self._hub.shards.is_overtaken(link) or not self._supervisor.has(link):
            return  # another host has the shard by now, or the process has ended
        self._hub.link_up(link, others)
        self.links.broadcast(host_link.UP, link.shard, link.epoch.to_bytes(8))
        self._changed.set()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self._watch.timeout_s):
                others_alive = [host for host in self.membership.others_alive if host != before]
                await self.store.owns(link.shard, others_alive)
        self._wake_others()
        self.refresh_soon()

    def lost(self, shard: int) -> None:
        self._changed.set()
        self.links.broadcast(host_link.DOWN, shard)

    def ended(self, shard: int) -> None:
        self.membership.ended(shard)

    def stopped(self, shard: int) -> None:
        self.membership.stopped(shard)

    def gave_up(self, shard: int) -> None:
        """A shard of this host has no owner now: the host that is ready for it may own it."""
        _log.info("gave a shard up", shard=shard)
        self._hub.fail_unanswered(shard)
        self.links.broadcast(host_link.RELEASED, shard)

    # -- what shards here answer to other hosts, and commands ----------------------------------

    def answer(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        self.links.answer(shard, conn, kind, replies, slow, body)

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        self.links.returned(shard, conn, body)

    def events(self, shard: int, connections: Iterable[int], frames: bytes) -> None:
        self.links.events(shard, connections, frames)

    def answers_lost(self, shard: int, connections: Iterable[int]) -> None:
        self.links.lost(shard, connections)

    def connections_changed(self) -> None:
        self.links.send_live()

    def remote_up(self, remote: RemoteEndpoint) -> None:
        self._changed.set()

    def status(self) -> ClusterView:
        return self.commands.view()

    def answers(self, peeked: Peek) -> bool:
        return bool(peeked.handling == HERE and peeked.spec.heavy)

    def answer_later(self, client: Asks, payload: bytes) -> None:
        self.commands.answer_later(client, payload)

    # -- what other hosts say ------------------------------------------------------------------

    def disconnected(self, host: str) -> None:
        """A host has no connection to this one any more."""
        self.membership.liveness.disconnected(host, self._now)
        self._exchange.disconnected(host)

    def uplink_made(self, host: str) -> None:
        """A host is connected that was not connected before."""
        self.membership.liveness.reached(host)
        self._send_standbys()

    def uplink_lost(self, host: str) -> None:
        """It is connected no longer."""
        self.membership.liveness.unreached(host)

    def released(self, shard: int) -> None:
        """A shard has no owner now; a process here may become the next one."""
        self._supervisor.check_owner(shard)
        self.refresh_soon()

    def shard_paused(self, shard: int) -> None:
        """A host sends nothing more to a shard that is given up here."""
        self._handovers.shard_paused(shard)

    def received(self, connection: HostConnection, kind: int, shard: int, conn: int, body: bytes) -> None:
        match kind:
            case host_link.POKE:
                self.refresh_soon()
            case host_link.WORKERS:
                self._exchange.workers(connection.peer, body)
            case host_link.LOAD:
                self._exchange.load(connection.peer, body)
            case host_link.WRONG_TOKEN:
                self._exchange.wrong_token(connection, body)
            case host_link.FORWARD:
                self.forwards.receive(connection, conn, body)
            case host_link.FORWARDED:
                self.forwards.answered(conn, body)
            case host_link.STANDBY:
                open_files = self._followers.open
                self._carry_out(self.membership.wanted(shard, connection.peer, open_files, self._now))
                self.refresh_soon()
