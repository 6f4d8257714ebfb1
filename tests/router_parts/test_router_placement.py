"""Which host is to own and to follow which shard: hosts come and go, and the plan settles."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from router.core.placement import MOVES, Host, Shard, applied, plan

ROUNDS = 600  # seconds; with 64 shards, two at a time


def step(hosts: Sequence[Host], shards: Sequence[Shard], copies: int) -> tuple[list[Shard], int]:
    """One look of a host, and what the hosts make of it: owners move, followers catch up.  And the moves."""
    changed = applied(shards, plan(hosts, shards, copies=copies))
    alive = {host.id for host in hosts}
    after, moved = [], 0
    for shard in changed:
        followers = {host: shard.position for host in shard.followers if host in alive}
        if shard.owner != shard.home and shard.home in alive:
            moved += bool(shard.owner in alive)
            followers.pop(shard.home, None)
            shard = replace(shard, owner=shard.home)
        after.append(replace(shard, followers=followers, position=shard.position + 1))
    return after, moved


def settle(hosts: Sequence[Host], shards: Sequence[Shard], copies: int) -> list[Shard]:
    shards = list(shards)
    for _ in range(ROUNDS):
        if not plan(hosts, shards, copies=copies):
            return shards
        shards, moved = step(hosts, shards, copies)
        assert moved <= MOVES, "a host that comes back is not buried in shards"
    raise AssertionError("the plan does not settle")


def check(hosts: Sequence[Host], shards: Sequence[Shard], copies: int) -> None:
    names = [host.id for host in hosts]
    owned = Counter(shard.owner for shard in shards)
    followed = Counter(host for shard in shards for host in shard.followers)
    assert set(owned) | set(followed) <= set(names)
    for shard in shards:
        assert shard.owner == shard.home
        assert shard.owner not in shard.followers
        assert len(shard.followers) == min(copies, len(hosts) - 1)
    assert max(owned[name] for name in names) - min(owned[name] for name in names) < 2
    if len(hosts) > copies + 1:
        assert max(followed[name] for name in names) - min(followed[name] for name in names) < 3


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_shares_and_copies_are_even_whoever_comes_and_goes(seed: int, copies: int) -> None:
    choice = random.Random(seed)
    count = choice.choice([4, 16, 64])
    hosts = [Host("a", 1)]
    shards = settle(hosts, [Shard(number, "", "") for number in range(count)], copies)
    for name in "bcdefgh":
        hosts.append(Host(name, 1))
        if len(hosts) > 3 and choice.random() < 0.5:  # and one dies
            hosts.remove(choice.choice(hosts))
        shards = settle(hosts, shards, copies)
        check(hosts, shards, copies)


def test_a_host_that_comes_back_owns_and_follows_again() -> None:
    hosts = [Host(name, 1) for name in "abc"]
    shards = settle(hosts, [Shard(number, "", "") for number in range(64)], 1)
    without = settle(hosts[:2], shards, 1)
    assert not any("c" in (shard.owner, *shard.followers) for shard in without)
    after = settle(hosts, without, 1)
    assert 20 <= sum(shard.owner == "c" for shard in after) <= 22
    assert 20 <= sum("c" in shard.followers for shard in after) <= 23


def test_while_shards_are_taken_over_hosts_do_nothing_that_can_wait() -> None:
    """The copies that died with a host are made when all shards are served again."""
    hosts = [Host("a", 1), Host("b", 1)]
    shards = [
        Shard(0, "a", "a", 10, 1, {"b": 10}),
        Shard(1, "b", "b", 10, 1, {"c": 10}),  # its copy is gone
        Shard(2, "c", "c", 10, 1, {"a": 9, "b": 10}),
        Shard(3, "c", "c", 10, 1, {"b": 10}),
        Shard(4, "b", "b", 10, 1, {"a": 10}),
    ]
    changed = {change.shard: change for change in plan(hosts, shards, is_calm=False)}
    assert {shard: change.home for shard, change in changed.items()} == {2: "b", 3: "b"}
    assert not any(change.follow for change in changed.values())
    assert plan(hosts, applied(shards, changed.values()), is_calm=False) == []
    later = plan(hosts, applied(shards, changed.values()))
    assert any(change.follow for change in later)
