"""Hosts of a cluster in simulated time: their memberships are the real ones, all else is simulated.

The store is a table of hosts and one of shards.  Who owns a shard is an epoch there: a process takes a shard
over once its owner's heartbeat was unchanged for a lease, and an owner that finds another one is dead.  Every
host looks at the store each second, its owners raise their heartbeats each half second, and its follower
reports as often.  A frozen host does nothing; one that is cut off from the store neither reads nor
writes it; one that is cut off from another host gets none of its messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from bunqueue.server.links.pipe_messages import LEASE_S, OwnerObservation
from router.core import placement
from router.core.cluster_view import HostRow, ShardRow, View
from router.core.membership import READY_S, Action, End, Follow, Membership, Move, Start, Takeover
from router.core.placement import Change

POLL_S, BEAT_S, REPORT_S = 1.0, 0.5, 0.5
LOAD_S = 0.3  # for a shard's process to be ready to own it
GIVE_UP_S = 0.1


_plans: dict[object, list[Change]] = {}


def remembered(
    plan: Callable[..., list[Change]],
    hosts: Sequence[placement.Host],
    shards: Sequence[placement.Shard],
    *,
    wanted: Mapping[int, str],
    **given: object,
) -> list[Change]:
    """`placement.plan`, which is pure: most looks at the store see what the last one saw."""
    rows = [(row.id, row.home, row.owner, tuple(sorted(row.followers.items()))) for row in shards]
    key = tuple(hosts), tuple(rows), tuple(sorted(wanted.items())), tuple(given.items())
    found = _plans.get(key)
    if found is None:
        if len(_plans) > 10_000:
            _plans.clear()
        found = _plans[key] = plan(hosts, shards, wanted=wanted, **given)
    return found


@dataclass
class Shard:
    """A row of the store."""

    id: int
    home: str = ""
    token: str = ""
    epoch: int = 0
    beat: int = 0
    wanted: str = ""
    followers: dict[str, int] = field(default_factory=dict)


@dataclass
class Process:
    """A shard's process on a host."""

    token: str
    seen: tuple[str, int, int] = ("", 0, 0)
    since: float = 0.0
    epoch: int = 0  # with which it owns the shard; 0: it does not
    fails: bool = False  # it is killed, and started again in a moment


class Host:
    """One host, in one of its lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.membership = Membership(name, world.copies)
        self.membership.begin(world.now)
        self.processes: dict[int, Process] = {}
        self.following: dict[int, tuple[tuple[str, int, int], float]] = {}
        self.wanted: frozenset[int] = frozenset()
        self.open: frozenset[int] = frozenset()  # as `router.cluster.followers.Followers.open`
        self.loads_until = self.follower_starts = 0.0  # it downloads a snapshot; it was killed
        self.alive = True
        self.thaws_at = 0.0
        self.store_away = False
        self.last_answer = world.now
        for every, act in ((POLL_S, self.look), (BEAT_S, self.beat), (REPORT_S, self.report)):
            world.after(world.random.random() * every, partial(self._again, every, act))

    def _again(self, every: float, act: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.world.now < self.thaws_at:
            self.world.at(self.thaws_at, partial(self._again, every, act))
            return
        act()
        self.world.after(every, partial(self._again, every, act))

    # What it does

    def look(self) -> None:
        world = self.world
        if self.store_away:
            return
        world.hosts[self.name] += 1
        changes = self.membership.store_read(world.view(), world.now)
        for change in changes:
            world.apply(change)
        self._do(self.membership.arrange(self.open, world.now))
        self._send_standbys()

    def _send_standbys(self) -> None:
        for shard, owner in self.membership.standbys:
            self.world.send(self.name, owner, lambda host, shard=shard: host.stood_by(shard, self.name))

    def stood_by(self, shard: int, by: str) -> None:
        self.world.ready[by, shard] = self.world.now
        self._do(self.membership.wanted(shard, by, self.open, self.world.now))

    def beat(self) -> None:
        """Owners raise their heartbeats; processes that wait look at the owner."""
        if self.store_away:
            return
        world = self.world
        for shard_id, process in list(self.processes.items()):
            shard = world.shards[shard_id]
            if process.epoch:
                if (shard.epoch, shard.token) != (process.epoch, process.token):
                    self._lost(shard_id)
                else:
                    shard.beat += 1
                continue
            seen = shard.token, shard.epoch, shard.beat
            if seen != process.seen:
                process.seen, process.since = seen, world.now
            if not shard.token or world.now - process.since >= LEASE_S or _of(shard.token) == self.name:
                self._own(shard, process)
            else:
                self.membership.became_standby(shard_id, world.now)
                self._send_standbys()

    def _own(self, shard: Shard, process: Process) -> None:
        world = self.world
        shard.epoch += 1
        shard.token, process.epoch = process.token, shard.epoch
        world.owned(shard)
        before = self.membership.recovered(shard.id)
        alive = [host for host in self.membership.others_alive if host != before]
        if shard.home not in [self.name, *alive]:
            shard.home = self.name
        shard.followers.pop(self.name, None)

    def report(self) -> None:
        world = self.world
        if world.now < max(self.loads_until, self.follower_starts):
            return
        for shard in list(self.following):
            if shard not in self.wanted:
                del self.following[shard]
        if self.wanted - self.following.keys() and world.random.random() < 0.2:
            self.following |= dict.fromkeys(self.wanted - self.following.keys(), (("", 0, 0), world.now))
            self.loads_until = world.now + world.random.uniform(0.5, 5)
            return
        for number in self.wanted:
            if self.store_away:
                break
            shard = world.shards[number]
            seen = shard.token, shard.epoch, shard.beat
            known = self.following.get(number)
            if known is None or known[0] != seen:
                self.following[number] = seen, world.now
            elif (
                world.now - self.last_answer > REPORT_S * 2
            ):  # the store was unavailable: nobody could change a heartbeat
                self.following[number] = seen, world.now
            if self.name in shard.followers:
                shard.followers[self.name] = 100
        if not self.store_away:
            self.last_answer = world.now
        observed = [
            OwnerObservation(number, 100, token, epoch, beat, world.now - since)
            for number, ((token, epoch, beat), since) in self.following.items()
        ]
        self.open = frozenset(self.following)
        self._do(self.membership.reported(observed, self.open, world.now, store_answers=not self.store_away))

    def _do(self, actions: list[Action]) -> None:
        world = self.world
        for action in actions:
            world.actions += 1
            match action:
                case Start(shard, observed):
                    assert shard not in self.processes, "it runs already"
                    assert shard not in self.following, "the follower has its file open"
                    world.last_change = world.now
                    process = self.processes[shard] = Process(f"{self.name}/{next(world.numbers)}")
                    if observed is not None:
                        process.seen = observed.token, observed.epoch, observed.heartbeat
                        process.since = world.now - observed.unchanged_s
                    else:
                        process.since = world.now
                case End(shard):
                    world.last_change = world.now
                    world.after(0.05, partial(self._gone, shard, self.processes[shard]))
                case Follow(shards):
                    if shards != self.wanted and world.now >= self.follower_starts:
                        self.open |= shards
                    self.wanted = shards
                case Move(shard, to):
                    world.last_change = world.now
                    ready_at = world.ready.get((to, shard), float("-inf"))
                    assert world.now - ready_at < READY_S, "the other host has not said that it is ready"
                    world.after(GIVE_UP_S, partial(self._give_up, shard, self.processes[shard]))
                case Takeover():
                    world.last_change = world.now

    def _give_up(self, shard: int, process: Process) -> None:
        row = self.world.shards[shard]
        if self.alive and self.processes.get(shard) is process:
            if row.token == process.token and not self.store_away:
                row.token = ""
            self._gone(shard, process)
            self.membership.moved(shard)

    def _gone(self, shard: int, process: Process) -> None:
        if self.alive and self.processes.get(shard) is process:
            del self.processes[shard]
            self.membership.ended(shard)
            self.membership.stopped(shard)

    def _lost(self, shard: int) -> None:
        """Another process owns it: this one ends, and is started again."""
        process = self.processes[shard]
        process.token, process.epoch = f"{self.name}/{next(self.world.numbers)}", 0
        process.seen, process.since = ("", 0, 0), self.world.now
        self.membership.ended(shard)

    def kill_follower(self) -> None:
        """It is started again in a moment, and opens what it is told to."""
        self.following.clear()
        self.open, self.loads_until = frozenset(), 0.0
        self.follower_starts = self.world.now + self.world.random.uniform(0.3, 6)
        self.world.at(self.follower_starts, self._follower_started)

    def _follower_started(self) -> None:
        if self.alive:
            self.open |= self.wanted

    def crash(self, shard: int) -> None:
        """A process is killed."""
        if shard in self.processes:
            self._lost(shard)


def _of(token: str) -> str:
    return token.partition("/")[0]


class World:
    """The store, the hosts, and the time."""

    def __init__(self, seed: int, hosts: int = 3, shards: int = 8, copies: int = 1) -> None:
        self.random = Random(seed)
        self.now, self.copies = 0.0, copies
        self.numbers = count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.names = [f"h{number}" for number in range(hosts)]
        self.hosts: dict[str, int] = {}  # the store's rows: heartbeats
        self.draining: set[str] = set()
        self.shards = [Shard(number) for number in range(shards)]
        self.running: dict[str, Host] = {}
        self.cut: set[frozenset[str]] = set()  # pairs of hosts that do not reach each other
        self.epochs: dict[tuple[int, int], str] = {}
        self.actions = 0
        self.last_change = 0.0
        self.ready: dict[tuple[str, int], float] = {}  # when a host has said that it is ready for a shard
        for name in self.names:
            self.start(name)

    # Time

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self.numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end

    # The store

    def view(self) -> View:
        hosts = [
            HostRow(name, name, at, "", "", "", "", 1, 1, 1, beat, name in self.draining)
            for at, (name, beat) in enumerate(sorted(self.hosts.items()))
        ]
        shards = [
            ShardRow(
                shard.id, shard.home, shard.token, shard.epoch, shard.beat, 100, 1, shard.wanted, 0,
                dict(shard.followers),
            )
            for shard in self.shards
        ]  # fmt: skip
        return View(hosts, shards)

    def apply(self, change: Change) -> None:
        shard = self.shards[change.shard]
        if change.home is not None:
            shard.home = change.home
        for host in change.follow:
            shard.followers.setdefault(host, 0)
        for host in change.unfollow:
            shard.followers.pop(host, None)
        self.last_change = self.now

    def owned(self, shard: Shard) -> None:
        """A process has taken a shard: nobody else may have this epoch."""
        assert self.epochs.setdefault((shard.id, shard.epoch), shard.token) == shard.token

    # The hosts

    def start(self, name: str) -> None:
        self.hosts.setdefault(name, 0)
        self.running[name] = Host(self, name)

    def kill(self, name: str) -> None:
        host = self.running.pop(name, None)
        if host is not None:
            host.alive = False
            for other in self.running.values():
                if frozenset((name, other.name)) not in self.cut:
                    other.membership.liveness.disconnected(name, self.now)

    def send(self, source: str, target: str, act: Callable[[Host], None]) -> None:
        host = self.running.get(target)
        if host is not None and frozenset((source, target)) not in self.cut and self.now >= host.thaws_at:
            act(host)

    def owner(self, shard: Shard) -> Host | None:
        """The host whose process owns a shard and knows it."""
        host = self.running.get(_of(shard.token))
        process = None if host is None else host.processes.get(shard.id)
        return host if process is not None and process.epoch == shard.epoch else None

    @property
    def unserved(self) -> list[int]:
        return [shard.id for shard in self.shards if self.owner(shard) is None]
