"""This host's side of the cluster: heartbeat, shard ownership, links to the other hosts.

Every second, and whenever something has happened:

1. write this host's heartbeat, and read which hosts are alive and what each should own
   (`store.ClusterStore.look`);
2. if the placement should change and no other host is changing it, change it (`placement.plan`);
3. dial new hosts; start and give up shards; report which shards to follow.

Any of this may be wrong for a moment without harm: the log of a shard decides who owns it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from msgspec.msgpack import Decoder

from bunqueue.logs import get_logger
from bunqueue.protocol import host_link
from bunqueue.protocol import link as link_protocol
from bunqueue.protocol.commands.cluster import ClusterView
from bunqueue.protocol.commands.workers import WorkerList
from bunqueue.settings import Settings
from bunqueue.store.answer_timeout import AnswerTimeout
from bunqueue.store.database import StoreError, StoreUnavailable

from ..core.ports import Asks, LocalEndpoint, RemoteEndpoint
from ..core.single_host import Shards, SingleHost
from ..errors import StartError
from ..hub import Hub
from ..launcher import Launcher
from ..local import now_ms
from ..routing import HERE, Peek
from . import certificates, placement
from .commands import ClusterCommands
from .followers import Followers, Report, Sight
from .forwards import Forwards
from .holds import Holds
from .links import Links
from .store import ClusterStore, HostRow, ShardRow, View, for_plan
from .wire import HostConnection

LOOK_S = 1.0  # between two looks at the store
TTL_S = 4.0  # a host whose beat has not changed for so long is dead
SILENT_S = 3.0  # a store that does not answer for so long is away
SUSPECT_S = 2.0  # an owner: its shard's next process starts, so that it is ready at the end of the lease
HUNG_UP_S = 0.2  # the same, of an owner whose host has just closed its connection, as one that is killed does
JUST_S = 3.0
BUSY_S = 20.0  # for shards without an owner: so long no new copies are made, which would be in the way
TURN_S = 1.0  # for each host whose copy is nearer to the end of the log
STOOD_STILL_S = 2.5  # between two looks: this host was stopped, and must not think that the others were
WITHDRAW_S = 8.0  # for other hosts to take the shards over, when this one ends in order
HOLDING_S = 2.0  # for the other hosts to send nothing more to a shard that is given up
SERVED_S = 30.0  # for all shards to have owners, before this host says that it is ready
STANDBY_S = 20.0  # then a process that waits for an owner's end in vain ends itself
READY_S = 3 * LOOK_S  # for which a host is ready to own a shard after it has said so; it says so at each look

_decode_workers = Decoder(WorkerList).decode
_log = get_logger("cluster")


class Processes(Shards, Protocol):
    """The supervisor, as far as it starts and ends the shards' processes of a host in a cluster."""

    def run(
        self, index: int, token: str = "", epoch: int = 0, beat: int = 0, unchanged_s: float = 0.0
    ) -> None: ...

    def runs(self, index: int) -> bool: ...

    def has(self, link: LocalEndpoint) -> bool: ...

    def is_ready(self, index: int) -> bool: ...

    def look(self, index: int) -> None: ...

    def end(self, index: int) -> None: ...

    async def hand_over(self, index: int) -> None: ...


class Cluster(SingleHost):
    """Who owns what, as this host sees it."""

    in_cluster = True

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
        self.pending = Holds(hub.tickets.refused)
        self._entering: set[asyncio.Task[None]] = set()
        self._answer_timeout = AnswerTimeout()
        self.store = ClusterStore(settings.store, replace(me, certificate=identity.certificate))
        self.commands = ClusterCommands(self)
        self.forwards = Forwards(hub, self.links)
        self.view: View | None = None
        self._away = ""
        self._asked_at: float | None = None  # when the poll in progress began
        self._followers = Followers(settings, me.id, self._reported, launcher)
        self._seen: dict[str, tuple[int, float]] = {}  # host -> its heartbeat, and since when it has been so
        self._loads: dict[str, float] = {}
        self._looked_at = 0.0
        self._look_now = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._sights: dict[int, tuple[Sight, float]] = {}  # of followed shards; and when it was made
        self._hung_up: dict[str, float] = {}  # hosts that have closed their connection, and when
        self._served_at = 0.0  # when each shard last had an owner that was alive
        self._taking: dict[int, str] = {}  # shards whose owner is silent or gone -> that owner;
        # this host tries to own them
        self._standing_by: dict[int, float] = {}  # shards whose process waits for the owner's end, since when
        self._wanted_by: dict[int, tuple[str, float]] = {}  # shards here that another host is ready to own,
        # and the time of its report
        self._moves: dict[int, asyncio.Task[None]] = {}
        self._holding: dict[int, asyncio.Event] = {}
        self._changed = asyncio.Event()

    @property
    def me(self) -> HostRow:
        return self.store.me

    @property
    def cluster_name(self) -> str:
        return self._settings.cluster

    @property
    def reached(self) -> frozenset[str]:
        """The hosts that this one has a connection to."""
        return self.links.reached

    # -- start and stop ------------------------------------------------------------------------

    def owned_at_start(self, shards: int) -> Sequence[int]:
        return ()

    async def start(self) -> None:
        """Listen for other hosts, enter this one, and begin.  StartError if it may not be one of them."""
        links, loop = self.links, asyncio.get_running_loop()
        host, _, port = self._settings.cluster_address.rpartition(":")
        bound = links.listen(host.strip("[]"), int(port))
        self.store.advertise(bound)
        try:
            await self.store.join(self._settings.cluster)
        except StoreError as error:
            raise StartError(f"cluster: {error}") from error
        links.me, links.number, links.secret = self.me.id, self.me.number, self.store.secret
        links.cluster = self
        self._hub.join_cluster(self, self.me.number)
        self._followers.start()
        self._looked_at = self._served_at = loop.time()
        self._looking = loop.create_task(self._keep_looking())
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

    def remote_up(self, remote: RemoteEndpoint) -> None:
        self._changed.set()

    async def withdraw(self) -> None:
        """This host is about to end: hand its shards to others while it still serves its clients."""
        if not self._others_alive():
            return
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                await self.store.drain(self.me.id, draining=True)
                self.look_soon()
                self.poke()
                while self._hub.shards.served_here:
                    await self._next_change()

    async def stop(self) -> None:
        """The shards here have ended: leave the cluster."""
        if self._looking is not None:
            self._looking.cancel()
        for task in self._moves.values():
            task.cancel()
        await self._followers.stop()
        with suppress(StoreError, TimeoutError):
            await asyncio.wait_for(self.store.leave(), 2.0)
            self.poke()
        await self.links.close()
        with suppress(Exception):
            await asyncio.wait_for(self.store.close(), 2.0)

    # -- polling the store ---------------------------------------------------------------------

    def look_soon(self) -> None:
        """Something has happened: poll now."""
        self._look_now.set()

    async def look_now(self) -> None:
        """Poll, to see a change that was just made. Raises StoreError."""
        await self._look()
        self.poke()

    async def _keep_looking(self) -> None:
        while True:
            try:
                self._asked_at = asyncio.get_running_loop().time()
                await self._look_in_time(self._asked_at)
                if self._away:
                    _log.info("the store answers again")
                self._away = ""
            except StoreError as error:
                if not self._away:
                    _log.warning("the store cannot be read", error=str(error))
                self._away = str(error)
            except Exception:
                _log.exception("the cluster could not be looked after")
            self._asked_at = None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), LOOK_S)
            self._look_now.clear()

    async def _look_in_time(self, begun: float) -> None:
        """Raises StoreUnavailable if there is no answer. The next poll may reach another server, the new
        leader."""
        seconds = self._answer_timeout.seconds
        try:
            async with asyncio.timeout(seconds):
                await self._look()
        except TimeoutError:
            raise StoreUnavailable(f"it has not answered for {seconds:.0f} s") from None
        finally:
            self._answer_timeout.took(asyncio.get_running_loop().time() - begun)

    async def _look(self) -> None:
        view = await self.store.look()
        self._watch(view)
        self.view = view
        self.links.reach(view.hosts)
        alive = [placement.Host(h.id, h.schema, h.draining) for h in view.hosts if self.lives_on(h.id)]
        changes = placement.plan(
            alive,
            [for_plan(shard) for shard in view.shards],
            copies=self._settings.cluster_copies,
            wanted={shard.id: shard.wanted for shard in view.shards if shard.wanted},
            is_calm=self._is_calm(view),
        )
        if changes and await self.store.change(changes, view):
            for change in changes:
                if change.home is not None:
                    _log.info("a shard gets another host", shard=change.shard, host=self.name(change.home))
            self.poke()
            self.look_soon()
        self._arrange()
        self._say_standbys()
        self._say_workers()
        self._say_load()

    def _is_calm(self, view: View) -> bool:
        """Whether no shard is being taken over."""
        if all(shard.owner and self.lives_on(shard.owner) for shard in view.shards):
            self._served_at = self._looked_at
        return not 0 < self._looked_at - self._served_at < BUSY_S

    def _say_workers(self) -> None:
        """Send the other hosts the workers registered here, if the list has changed."""
        listing = host_link.encode(self._hub.workers.here(now_ms()))
        for host in self.links.reached:
            uplink = self.links.uplink(host)
            if uplink is not None and uplink.workers_said != listing:
                uplink.workers_said = listing
                uplink.say(host_link.WORKERS, listing)

    def _say_load(self) -> None:
        load = self._loads[self.me.id] = os.getloadavg()[0] / (os.cpu_count() or 1)
        body = host_link.encode(host_link.Load(load))
        for host in self.links.reached:
            if (uplink := self.links.uplink(host)) is not None:
                uplink.say(host_link.LOAD, body)

    def load_of(self, host: str) -> float | None:
        """The load of a host's machine, see `host_link.Load`; None while it is unknown."""
        return self._loads.get(host)

    def beat_age_ms(self, host: str) -> float | None:
        """The time since this host last saw a host's heartbeat change; None while it is unknown."""
        seen = self._seen.get(host)
        return None if seen is None else round(1000 * (asyncio.get_running_loop().time() - seen[1]))

    def parted(self, host: str) -> None:
        """A host has no connection to this one any more."""
        self._hung_up[host] = asyncio.get_running_loop().time()
        self._loads.pop(host, None)
        self._hub.workers.elsewhere(host, None)

    def _watch(self, view: View) -> None:
        """Note which heartbeats have changed."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at > STOOD_STILL_S:
            self._seen.clear()  # a stop of this host must not count against the others
        self._looked_at = now
        for host in view.hosts:
            known = self._seen.get(host.id)
            if known is None or known[0] != host.beat:
                self._seen[host.id] = host.beat, now

    @property
    def away(self) -> str:
        """Why the store cannot be read; "" while it can."""
        if self._away or self._asked_at is None:
            return self._away
        silent_s = asyncio.get_running_loop().time() - self._asked_at
        return f"it has not answered for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    def lives_on(self, host: str) -> bool:
        """Whether a host was alive when the store was last read."""
        if host == self.me.id:
            return True
        seen = self._seen.get(host)
        listed = self.view is None or any(row.id == host for row in self.view.hosts)
        return listed and seen is not None and self._looked_at - seen[1] < TTL_S

    def _others_alive(self) -> list[str]:
        hosts = [] if self.view is None else self.view.hosts
        return [host.id for host in hosts if host.id != self.me.id and self.lives_on(host.id)]

    def name(self, host: str) -> str:
        """The host's name, for people."""
        return self.links.name(host)

    def poke(self) -> None:
        """The placement has changed: notify the other hosts, so they need not wait for their next poll."""
        for host in self.links.reached:
            if (uplink := self.links.uplink(host)) is not None:
                uplink.say(host_link.POKE)

    # -- shards of this host -------------------------------------------------------------------

    def _arrange(self) -> None:
        """Start the shards that this host should own, give up others, and follow the rest."""
        view, me, supervisor = self.view, self.me.id, self._supervisor
        if view is None:
            return
        follow = set()
        for shard in view.shards:
            runs = supervisor.runs(shard.id)
            if runs:
                self._look_at(shard)
            elif shard.home == me or shard.id in self._taking:
                self._own(shard.id)
            elif me in shard.followers:
                follow.add(shard.id)
        self._followers.follow(frozenset(follow))

    def _look_at(self, shard: ShardRow) -> None:
        """A shard's process runs here: end it or move the shard if it no longer should."""
        me, supervisor = self.me.id, self._supervisor
        if supervisor.is_ready(shard.id):
            if shard.home not in ("", me) and shard.owner == me:
                self._consider_moving(shard.id, shard.home)
            return
        if shard.owner == me:
            return  # about to be ready: if it ended now, the shard would have no owner until its lease ends
        since = self._standing_by.get(shard.id)
        waited = 0.0 if since is None else asyncio.get_running_loop().time() - since
        if shard.home != me and (shard.id not in self._taking or waited > STANDBY_S):
            self._taking.pop(shard.id, None)
            self._standing_by.pop(shard.id, None)
            supervisor.end(shard.id)

    def _own(self, shard: int) -> None:
        """Start a shard's process, once the follower has closed its file."""
        if shard in self._followers.open:
            return  # the follower has been ordered to close it, and will report soon
        known = self._sights.pop(shard, None)
        if known is None:
            self._supervisor.run(shard)
            return
        sight, at = known
        unchanged_s = sight.unchanged_s + asyncio.get_running_loop().time() - at
        self._supervisor.run(shard, sight.token, sight.epoch, sight.beat, unchanged_s)

    def _reported(self, report: Report) -> None:
        """The follower has read the store."""
        now = asyncio.get_running_loop().time()
        for sight in report.sights:
            self._sights[sight.shard] = sight, now
        if self.view is not None:
            for sight in report.sights:
                shard = self.view.shards[sight.shard]
                if shard.id not in self._taking and self._is_orphan(shard, sight):
                    _log.warning(
                        "a shard has no owner that lives", shard=shard.id, owner=self.name(shard.owner)
                    )
                    self._taking[shard.id] = shard.owner
            self._arrange()

    def _is_orphan(self, shard: ShardRow, sight: Sight) -> bool:
        """Whether a shard's owner is silent or gone, and it is this host's turn to take the shard over."""
        if not sight.epoch or self.away:
            return False
        if not sight.token:  # it was given up: on purpose, if its new home is alive
            return shard.home == self.me.id or not self.lives_on(shard.home)
        patience = HUNG_UP_S if self._has_just_hung_up(shard.owner) else SUSPECT_S
        return sight.unchanged_s > patience + TURN_S * self._better_copies(shard)

    def _has_just_hung_up(self, host: str) -> bool:
        since = asyncio.get_running_loop().time() - self._hung_up.get(host, float("-inf"))
        return since < JUST_S and host not in self.links.reached

    def _better_copies(self, shard: ShardRow) -> int:
        """The number of hosts that come before this one."""
        me = self.me.id
        if me not in shard.followers:
            return 0

        def order(host: str) -> tuple[int, bytes]:
            return shard.followers[host], placement.rank(host, shard.id)

        return sum(order(host) > order(me) for host in shard.followers if host != me and self.lives_on(host))

    # -- called by the supervisor --------------------------------------------------------------

    def stands_by(self, shard: int) -> None:
        """A shard's process here is ready, apart from waiting for its owner's end."""
        self._standing_by.setdefault(shard, asyncio.get_running_loop().time())
        self._say_standby(shard)

    def _say_standbys(self) -> None:
        for shard in self._standing_by:
            self._say_standby(shard)

    def _say_standby(self, shard: int) -> None:
        """Tell the owner, whom the store and the links may know at different times."""
        remote = self._hub.shards.remote(shard)
        owners = set() if remote is None else {remote.host}
        if self.view is not None:
            owners.add(self.view.shards[shard].owner)
        for owner in owners:
            if (uplink := self.links.uplink(owner)) is not None:
                uplink.say(host_link.STANDBY, shard=shard)

    def recovered(self, link: LocalEndpoint, shards: Shards) -> None:
        task = asyncio.get_running_loop().create_task(self.enter(link))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def enter(self, link: LocalEndpoint) -> None:
        """A shard owned by this host is ready: before it serves, it hears which connections are open."""
        self._standing_by.pop(link.shard, None)
        before = self._taking.pop(link.shard, "")
        others = await self.links.others_live()
        if self._hub.shards.is_overtaken(link) or not self._supervisor.has(link):
            return  # another host has the shard by now, or the process has ended
        self._hub.link_up(link, others)
        self.links.say(host_link.UP, link.shard, link.epoch.to_bytes(8))
        self.pending.release(link.shard, link)
        self._changed.set()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self._answer_timeout.seconds):
                await self.store.owns(link.shard, [host for host in self._others_alive() if host != before])
        self.poke()
        self.look_soon()

    def lost(self, shard: int) -> None:
        """A shard's process here has ended."""
        self._wanted_by.pop(shard, None)
        self._changed.set()
        self.links.say(host_link.DOWN, shard)

    def ended(self, shard: int) -> None:
        """A shard's process here has ended, whether it served or not; the next one reports when it is
        ready."""
        self._standing_by.pop(shard, None)

    def gave_up(self, shard: int) -> None:
        """A shard of this host has no owner now: the host that is ready for it may own it."""
        _log.info("gave a shard up", shard=shard)
        self._hub.settle(shard)
        self.links.say(host_link.RELEASED, shard)

    def returned(self, shard: int, conn: int, body: bytes) -> None:
        """Commands that waited at a shard that is given up: send them to the next owner."""
        if link_protocol.origin_of(conn) != self.me.number:
            self.links.returned(shard, conn, body)
        elif (sibling := self._hub.sibling_of(conn)) is not None:
            sibling.returned(shard, conn, body)
        else:
            self.pending.returned(shard, self._hub.clients.get(conn), body)

    # -- giving a shard up ---------------------------------------------------------------------

    def _consider_moving(self, shard: int, to: str) -> None:
        """Give a shard up, once its new host is ready."""
        host, said_at = self._wanted_by.get(shard, ("", 0.0))
        is_ready = host == to and asyncio.get_running_loop().time() - said_at < READY_S
        if is_ready and shard not in self._moves:
            _log.info("a shard moves", shard=shard, host=self.name(to))
            task = asyncio.get_running_loop().create_task(self._move(shard))
            self._moves[shard] = task
            task.add_done_callback(lambda task: self._moved(shard, task))

    def _moved(self, shard: int, task: asyncio.Task[None]) -> None:
        self._moves.pop(shard, None)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a shard could not be given up", shard=shard, error=repr(task.exception()))

    async def _move(self, shard: int) -> None:
        """No host sends the shard anything more; then it answers what it has, and gives itself up."""
        link = self._hub.shards.links[shard]
        if link is None or not link.is_local:
            return
        self._hub.pause(link)
        waiting = [downlink for downlink in self.links.downlinks if downlink.greeted]
        for downlink in waiting:
            downlink.is_holding.discard(shard)
        self.links.say(host_link.MOVING, shard)
        event = self._holding[shard] = asyncio.Event()
        try:
            async with asyncio.timeout(HOLDING_S):
                while not all(shard in link.is_holding or link.closed.done() for link in waiting):
                    await event.wait()
                    event.clear()
        except TimeoutError:
            silent = [self.name(link.peer) for link in waiting if shard not in link.is_holding]
            _log.warning(
                "a shard moves, and hosts did not answer in time", shard=shard, hosts=" ".join(silent)
            )
        del self._holding[shard]
        await self._supervisor.hand_over(shard)

    def holding(self, shard: int) -> None:
        """A host has stopped sending to a shard that is given up here."""
        if shard in self._holding:
            self._holding[shard].set()

    # -- what shards here answer to other hosts, and commands ----------------------------------

    def answer(self, shard: int, conn: int, kind: int, replies: int, slow: int, body: bytes) -> None:
        self.links.answer(shard, conn, kind, replies, slow, body)

    def events(self, shard: int, connections: Iterable[int], frames: bytes) -> None:
        self.links.events(shard, connections, frames)

    def answers_lost(self, shard: int, connections: Iterable[int]) -> None:
        self.links.lost(shard, connections)

    def connections_changed(self) -> None:
        self.links.say_live()

    def status(self) -> ClusterView:
        return self.commands.view()

    def answers(self, look: Peek) -> bool:
        return look.handling == HERE and look.spec.heavy

    def answer_later(self, client: Asks, payload: bytes) -> None:
        self.commands.answer_later(client, payload)

    # -- what other hosts say ------------------------------------------------------------------

    def released(self, shard: int) -> None:
        """A shard has no owner now; a process here may become the next one."""
        self._supervisor.look(shard)
        self.look_soon()

    def uplink_made(self) -> None:
        """There is a connection to a host that there was none to."""
        self._say_standbys()

    def heard(self, connection: HostConnection, kind: int, shard: int, conn: int, body: bytes) -> None:
        if kind == host_link.POKE:
            self.look_soon()
        elif kind == host_link.WORKERS:
            self._hub.workers.elsewhere(connection.peer, _decode_workers(body))
        elif kind == host_link.LOAD:
            self._loads[connection.peer] = host_link.decode_load(body).per_core
        elif kind == host_link.FORWARD:
            self.forwards.hear(connection, conn, body)
        elif kind == host_link.FORWARDED:
            self.forwards.answered(conn, body)
        elif kind == host_link.STANDBY:
            self._wanted_by[shard] = connection.peer, asyncio.get_running_loop().time()
            self._arrange()
            self.look_soon()
