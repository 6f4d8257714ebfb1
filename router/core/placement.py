"""Which host should own a shard, and which hosts should follow it. Pure.

- A shard stays where it is while its host is alive and no host has two shards more than another.
- A shard whose host is dead goes to one of its followers, which have its file.
- A shard that should move is first followed by its new host, and moves once that host has caught up.
- A host that follows fewer shards than others takes on one of theirs; once it has caught up, they drop it.
- Rendezvous hashing chooses between equal hosts, so all hosts arrive at the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

MAX_LAG = 50  # records that a follower may be behind when its shard moves to it
MOVES = 2  # concurrent moves: a host that comes back must not be flooded with them


@dataclass(frozen=True, slots=True)
class Host:
    """A host that is alive."""

    id: str
    schema: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the store has it."""

    id: int
    home: str  # the host that should own it; "": not decided yet
    owner: str  # the host that owns it; "": no host
    position: int = 0
    schema: int = 0
    followers: Mapping[str, int] = field(default_factory=dict)  # host -> the position of its copy

    @property
    def is_moving(self) -> bool:
        return bool(self.owner) and self.owner != self.home


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a shard: another home, more or fewer followers."""

    shard: int
    home: str | None = None  # None: it stays
    follow: tuple[str, ...] = ()
    unfollow: tuple[str, ...] = ()


def rank(host: str, shard: int) -> bytes:
    """The host with the highest rank is preferred for a shard."""
    return blake2b(f"{host}/{shard}".encode(), digest_size=8).digest()


def plan(
    hosts: Sequence[Host],
    shards: Sequence[Shard],
    *,
    copies: int = 1,
    moves: int = MOVES,
    wanted: Mapping[int, str] | None = None,
    is_calm: bool = True,
) -> list[Change]:
    """The changes that are due. ``copies``: followers of each shard. ``wanted``: shards that an operator
    moves, and their new hosts; these come before balancing moves. Not ``is_calm``: shards are being taken
    over, so more copies and balancing, which can wait, do wait."""
    return _Plan(hosts, shards, copies, moves, wanted or {}, is_calm).made()


class _Plan:
    def __init__(
        self,
        hosts: Sequence[Host],
        shards: Sequence[Shard],
        copies: int,
        moves: int,
        wanted: Mapping[int, str],
        is_calm: bool,
    ) -> None:
        self._hosts = {host.id: host for host in hosts}
        self._shards = {shard.id: shard for shard in shards}
        self._copies = copies
        self._moves = moves - sum(shard.is_moving for shard in shards)
        self._wanted = wanted
        self._is_calm = is_calm
        self._homes: dict[int, str] = {}  # the planned homes
        self._joining: dict[int, str] = {}  # hosts that will soon follow a shard in place of another host
        self._targets: dict[int, str] = {}  # where shards will move, once the new host has caught up

    def made(self) -> list[Change]:
        for shard in self._shards.values():
            self._homes[shard.id] = self._home_of(shard)
        self._choose_targets()
        self._move()
        if self._is_calm:
            self._share_copies()
        return [change for shard in self._shards.values() if (change := self._change(shard)) is not None]

    # -- homes

    def _able(self, shard: Shard) -> list[str]:
        """The hosts that may own a shard: those that are not draining, if there are any."""
        able = [host for host in self._hosts.values() if host.schema >= shard.schema]
        return [host.id for host in able if not host.draining] or [host.id for host in able]

    def _home_of(self, shard: Shard) -> str:
        """A shard's home if it does not move: its present host, or one that can take it over."""
        if shard.home in self._hosts:
            return shard.home
        able = self._able(shard)
        followers = [host for host in able if host in shard.followers]
        if followers:
            return max(followers, key=lambda host: (shard.followers[host], rank(host, shard.id)))
        load = Counter(self._homes.values())
        return max(able, key=lambda host: (-load[host], rank(host, shard.id)), default=shard.home)

    def _choose_targets(self) -> None:
        """Choose new homes: first what an operator wants, then leaving hosts that drain, then balance."""
        for number, host in self._wanted.items():
            shard = self._shards.get(number)
            if shard is not None and host in self._able(shard) and self._homes[number] != host:
                self._targets[number] = host
        for shard in self._shards.values():
            home = self._hosts.get(self._homes[shard.id])
            if shard.id not in self._targets and home is not None and home.draining:
                self._leave(shard)
        while self._is_calm and self._balance():
            pass

    def _load(self) -> Counter[str]:
        """The number of shards of each host, once all planned moves are done."""
        return Counter({**self._homes, **self._targets}.values())

    def _leave(self, shard: Shard) -> None:
        load = self._load()
        able = [host for host in self._able(shard) if not self._hosts[host].draining]
        if able:
            self._targets[shard.id] = max(able, key=lambda host: (-load[host], rank(host, shard.id)))

    def _balance(self) -> bool:
        """Move one shard from the host with the most to the one with the fewest; returns whether one was
        due."""
        load = self._load()
        staying = [host.id for host in self._hosts.values() if not host.draining]
        pairs = sorted(
            ((load[giver] - load[taker], giver, taker) for giver in staying for taker in staying),
            reverse=True,
        )
        for difference, giver, taker in pairs:
            if difference < 2:
                return False
            movable = [
                shard
                for shard in self._shards.values()
                if self._homes[shard.id] == giver
                and shard.id not in self._targets
                and shard.id not in self._wanted
                and taker in self._able(shard)
            ]
            if movable:
                best = max(movable, key=lambda shard: rank(taker, shard.id))
                self._targets[best.id] = taker
                return True
        return False

    def _move(self) -> None:
        """Start as many moves as allowed, of the shards whose new host has caught up."""
        for number, host in sorted(self._targets.items()):
            shard = self._shards[number]
            behind = shard.position - shard.followers.get(host, -MAX_LAG - 1)
            if self._moves > 0 and shard.owner == shard.home and behind <= MAX_LAG:
                self._homes[number] = host
                self._moves -= 1

    # -- followers

    def _change(self, shard: Shard) -> Change | None:
        home = self._homes[shard.id]
        wanted = self._followers(shard, home)
        change = Change(
            shard.id,
            home if home != shard.home else None,
            tuple(sorted(wanted - shard.followers.keys())),
            tuple(sorted(shard.followers.keys() - wanted)),
        )
        return change if change != Change(shard.id) else None

    def _share_copies(self) -> None:
        """Have hosts that follow few shards take over copies from hosts that follow many."""
        room = MOVES - sum(len(self._copies_of(shard)) > self._copies for shard in self._shards.values())
        while room > 0 and self._join():
            room -= 1

    def _join(self) -> bool:
        """Have one host follow one more shard; returns whether one was due."""
        load = self._following() + Counter(self._joining.values())
        staying = [host.id for host in self._hosts.values() if not host.draining]
        giver = max(staying, key=lambda host: (load[host], host), default="")
        for taker in sorted(staying, key=lambda host: (load[host], host)):
            if load[giver] - load[taker] < 2:
                return False
            free = [
                shard
                for shard in self._shards.values()
                if giver in self._copies_of(shard)
                and taker not in (*shard.followers, self._homes[shard.id], self._targets.get(shard.id))
                and taker in self._able(shard)
                and shard.id not in self._joining
            ]
            if free:
                best = max(free, key=lambda shard: rank(taker, shard.id))
                self._joining[best.id] = taker
                return True
        return False

    def _copies_of(self, shard: Shard) -> list[str]:
        """The followers of a shard, except one that is about to own it."""
        able, passing = self._able(shard), (self._homes[shard.id], self._targets.get(shard.id))
        return [host for host in shard.followers if host in able and host not in passing]

    def _kept(self, shard: Shard) -> list[str]:
        """The followers to keep. If there are too many, the busiest is dropped once all have caught up."""
        copies, load = self._copies_of(shard), self._following()
        behind = max((shard.position - shard.followers[host] for host in copies), default=0)
        if len(copies) <= self._copies or (behind > MAX_LAG and len(copies) == self._copies + 1):
            return copies
        if behind > MAX_LAG:
            return sorted(copies, key=lambda host: (-shard.followers[host], host))[: self._copies]
        return sorted(copies, key=lambda host: (load[host], rank(host, shard.id)))[: self._copies]

    def _followers(self, shard: Shard, home: str) -> frozenset[str]:
        """The hosts that should follow a shard: the present followers, and others up to the number of
        copies."""
        able = [host for host in self._able(shard) if host not in (home, self._targets.get(shard.id))]
        load = self._following()
        kept = self._kept(shard)
        others = sorted(
            (host for host in able if host not in kept), key=lambda host: (load[host], rank(host, shard.id))
        )
        chosen = {*kept, *others[: max(0, self._copies - len(kept))]}
        if not self._is_calm:
            chosen = shard.followers.keys() - {home}
        if shard.id in self._joining:
            chosen.add(self._joining[shard.id])
        target = self._targets.get(shard.id)
        if target is not None and target != home:
            chosen.add(target)
        return frozenset(chosen)

    def _following(self) -> Counter[str]:
        return Counter(host for shard in self._shards.values() for host in shard.followers)


def applied(shards: Iterable[Shard], changes: Iterable[Change]) -> list[Shard]:
    """The shards after the changes, as the store will show them: for callers that look ahead."""
    by_shard = {change.shard: change for change in changes}
    after = []
    for shard in shards:
        change = by_shard.get(shard.id, Change(shard.id))
        followers = {host: seq for host, seq in shard.followers.items() if host not in change.unfollow}
        followers |= dict.fromkeys(change.follow, 0)
        after.append(replace(shard, home=change.home or shard.home, followers=followers))
    return after
