"""What a host of a cluster does about its shards: which ones it starts, takes over, gives up and follows.

Each event is a method.  It gets the time by the host's own clock, in seconds, and returns what to do;
`router.cluster.cluster` carries that out, and decides nothing.  All of it may be wrong for a moment without
harm: who owns a shard is decided by the shard's log.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from bunqueue.server.links.pipe_messages import OwnerObservation

from . import placement
from .cluster_view import ShardRow, View
from .liveness import Liveness
from .placement import Change

SUSPECT_S = 2.0  # of an owner's silence: its shard's next process starts, to be ready at the end of the lease
HUNG_UP_S = 0.2  # the same, of an owner whose host has just closed its connection
TURN_S = 1.0  # for each host whose copy is nearer to the end of the log
BUSY_S = 20.0  # for shards without an owner: so long no new copies are made, which would be in the way
STANDBY_S = 20.0  # then a process that waits for an owner's end in vain is ended
READY_S = 3.0  # for which a host is ready to own a shard after its last report, which it repeats every second


class Process(enum.Enum):
    """A shard's process on this host."""

    STARTING = "it loads, waits for its owner's end, or is started again"
    READY = "it serves"


@dataclass(frozen=True, slots=True)
class Start:
    """Start a shard's process; ``observed``: its owner until now, if one is known."""

    shard: int
    observed: OwnerObservation | None


@dataclass(frozen=True, slots=True)
class End:
    """End a shard's process: it is not needed."""

    shard: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow these shards, and no others."""

    shards: frozenset[int]


@dataclass(frozen=True, slots=True)
class Move:
    """Have a shard give itself up: another host is ready for it."""

    shard: int
    to: str


@dataclass(frozen=True, slots=True)
class Takeover:
    """For people: a shard has no owner that is alive, and this host tries to own it."""

    shard: int
    owner: str


Action = Start | End | Follow | Move | Takeover


class Membership:
    """One host's part in a cluster."""

    def __init__(self, me: str, copies: int) -> None:
        """``copies``: followers of each shard."""
        self._me = me
        self._copies = copies
        self.view: View | None = None
        self.liveness = Liveness(me)
        self._served_at = 0.0  # when each shard had an owner that was alive
        self._processes: dict[int, Process] = {}
        self._observed: dict[int, tuple[OwnerObservation, float]] = {}  # by shard; and when
        self._taking: dict[int, str] = {}  # shards that this host takes over -> the owner that is gone
        self._standing_by: dict[int, float] = {}  # shards whose process waits for the owner's end
        self._wanted_by: dict[int, tuple[str, float]] = {}  # shards here that a host is ready for; when
        self._moving: set[int] = set()

    # -- what happens --------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """This host is in the cluster; it has seen nothing yet."""
        self.liveness.read_at = self._served_at = now

    def store_read(self, view: View, now: float) -> list[Change]:
        """The store was read; changes of the placement that are due."""
        self.liveness.store_read(view.hosts, now)
        self.view = view
        alive = [
            placement.Host(host.id, host.schema, host.draining)
            for host in view.hosts
            if self.is_alive(host.id)
        ]
        return placement.plan(
            alive,
            [shard.for_plan for shard in view.shards],
            copies=self._copies,
            wanted={shard.id: shard.wanted for shard in view.shards if shard.wanted},
            is_calm=self._is_calm(view, now),
        )

    def arrange(self, open_files: frozenset[int], now: float) -> list[Action]:
        """What to do about the shards, as they were seen last. ``open_files``: shards whose files the
        follower has open at this moment, or may be about to open; their processes must not open them."""
        if self.view is None:
            return []
        actions: list[Action] = []
        follow = set()
        for shard in self.view.shards:
            if shard.id in self._processes:
                actions += self._judge(shard, now)
            elif shard.home == self._me or shard.id in self._taking:
                if shard.id not in open_files:  # else its follower is asked to, and reports again soon
                    actions.append(self._start(shard.id, now))
            elif self._me in shard.followers:
                follow.add(shard.id)
        actions.append(Follow(frozenset(follow)))
        return actions

    def reported(
        self, seen: Sequence[OwnerObservation], open_files: frozenset[int], now: float, *, store_answers: bool
    ) -> list[Action]:
        """The follower has looked at the shards' owners. ``open_files``: as of `arrange`."""
        for observed in seen:
            self._observed[observed.shard] = observed, now
        if self.view is None:
            return []
        actions: list[Action] = []
        for observed in seen:
            shard = self.view.shards[observed.shard]
            if store_answers and shard.id not in self._taking and self._is_orphan(shard, observed, now):
                actions.append(Takeover(shard.id, shard.owner))
                self._taking[shard.id] = shard.owner
        return actions + self.arrange(open_files, now)

    def became_standby(self, shard: int, now: float) -> None:
        """A process here waits for the end of the shard's owner, and lacks nothing else."""
        self._standing_by.setdefault(shard, now)

    def wanted(self, shard: int, host: str, open_files: frozenset[int], now: float) -> list[Action]:
        """Another host reports that it is ready to own a shard of this one."""
        self._wanted_by[shard] = host, now
        return self.arrange(open_files, now)

    def recovered(self, shard: int) -> str:
        """A process here owns its shard now; the owner whom it took it from, "" if that gave it up."""
        if shard in self._processes:  # else it has ended in the meantime
            self._processes[shard] = Process.READY
        self._standing_by.pop(shard, None)
        return self._taking.pop(shard, "")

    def ended(self, shard: int) -> None:
        """A process has ended, whether it served or not.  It is started again, unless it is `stopped`."""
        self._standing_by.pop(shard, None)
        self._wanted_by.pop(shard, None)
        if shard in self._processes:
            self._processes[shard] = Process.STARTING

    def stopped(self, shard: int) -> None:
        """There is no process for a shard any more, and none is started again."""
        self._processes.pop(shard, None)
        self._standing_by.pop(shard, None)

    def moved(self, shard: int) -> None:
        """The shard was given up, or that has failed."""
        self._moving.discard(shard)

    # -- what is known -------------------------------------------------------------------------

    def is_alive(self, host: str) -> bool:
        return self.liveness.is_alive(host)

    @property
    def others_alive(self) -> list[str]:
        hosts = [] if self.view is None else self.view.hosts
        return [host.id for host in hosts if host.id != self._me and self.is_alive(host.id)]

    @property
    def standbys(self) -> list[tuple[int, str]]:
        """Shards that a process here waits for, with the owners that are to know it."""
        owners = {} if self.view is None else {shard.id: shard.owner for shard in self.view.shards}
        return [(shard, owners.get(shard, "")) for shard in self._standing_by]

    # -- the decisions -------------------------------------------------------------------------

    def _is_calm(self, view: View, now: float) -> bool:
        """Whether no shard is being taken over."""
        if all(shard.owner and self.is_alive(shard.owner) for shard in view.shards):
            self._served_at = now
        return not 0 < now - self._served_at < BUSY_S

    def _start(self, shard: int, now: float) -> Start:
        self._processes[shard] = Process.STARTING
        observed, at = self._observed.pop(shard, (None, now))
        if observed is None or not observed.token:
            return Start(shard, None)
        return Start(shard, replace(observed, unchanged_s=observed.unchanged_s + now - at))

    def _judge(self, shard: ShardRow, now: float) -> list[Action]:
        """A shard's process runs here: whether it still should."""
        if self._processes[shard.id] is Process.READY:
            gives_up = shard.home not in ("", self._me) and shard.owner == self._me
            return self._give_up(shard, now) if gives_up else []
        if shard.owner == self._me:
            return []  # it is about to be ready: ended now, it would be missed until its lease is over
        waited = now - self._standing_by.get(shard.id, now)
        if shard.home != self._me and (shard.id not in self._taking or waited > STANDBY_S):
            self._taking.pop(shard.id, None)
            self._standing_by.pop(shard.id, None)
            return [End(shard.id)]
        return []

    def _give_up(self, shard: ShardRow, now: float) -> list[Action]:
        """Give a shard up, once its next owner is ready."""
        host, said_at = self._wanted_by.get(shard.id, ("", 0.0))
        if host != shard.home or now - said_at >= READY_S or shard.id in self._moving:
            return []
        self._moving.add(shard.id)
        return [Move(shard.id, host)]

    def _is_orphan(self, shard: ShardRow, observed: OwnerObservation, now: float) -> bool:
        """Whether a shard's owner is silent or gone, and it is this host's turn to take it over."""
        if not observed.epoch:
            return False
        if not observed.token:  # it was given up: on purpose, if the next owner is alive
            return shard.home == self._me or not self.is_alive(shard.home)
        patience = HUNG_UP_S if self.liveness.has_just_hung_up(shard.owner, now) else SUSPECT_S
        return observed.unchanged_s > patience + TURN_S * self._better_copies(shard)

    def _better_copies(self, shard: ShardRow) -> int:
        """How many hosts come before this one."""
        me = self._me
        if me not in shard.followers:
            return 0

        def order(host: str) -> tuple[int, bytes]:
            return shard.followers[host], placement.rank(host, shard.id)

        return sum(order(host) > order(me) for host in shard.followers if host != me and self.is_alive(host))
