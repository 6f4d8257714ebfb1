"""Lives of clusters in simulated time: whatever happened, once it is over each shard is served where it
should be, by one process, and nothing moves any more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from router_parts.cluster_world import Shard, World, remembered
from support.budget import budget

from router.core import membership, placement

SETTLES_S = 60.0
"""After the last fault: a lease, the turns of the hosts, and moves two at a time."""

Fault = Callable[[World], None]


@pytest.fixture(autouse=True)
def plans_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "plan", partial(remembered, placement.plan))


def kill(world: World) -> None:
    name = world.random.choice(world.names)
    world.kill(name)
    world.after(world.random.uniform(0.5, 9), lambda: world.running.get(name) or world.start(name))


def freeze(world: World) -> None:
    if world.running:
        host = world.random.choice(list(world.running.values()))
        host.thaws_at = world.now + world.random.uniform(1, 9)


def lose_store(world: World) -> None:
    if world.running:
        host = world.random.choice(list(world.running.values()))
        host.store_away = True
        world.after(world.random.uniform(1, 9), lambda: setattr(host, "store_away", False))


def lose_store_everywhere(world: World) -> None:
    for host in world.running.values():
        host.store_away = True
        world.after(8.0, lambda host=host: setattr(host, "store_away", False))


def cut(world: World) -> None:
    pair = frozenset(world.random.sample(world.names, 2))
    world.cut.add(pair)
    world.after(world.random.uniform(1, 9), lambda: world.cut.discard(pair))


def crash(world: World) -> None:
    if world.running:
        world.random.choice(list(world.running.values())).crash(world.random.randrange(len(world.shards)))


def kill_follower(world: World) -> None:
    if world.running:
        world.random.choice(list(world.running.values())).kill_follower()


def drain(world: World) -> None:
    name = world.random.choice(world.names)
    world.draining.add(name)
    world.after(world.random.uniform(2, 9), lambda: world.draining.discard(name))


def want(world: World) -> None:
    world.random.choice(world.shards).wanted = world.random.choice(world.names)


FAULTS: tuple[Fault, ...] = (
    kill,
    kill,
    freeze,
    lose_store,
    lose_store_everywhere,
    cut,
    crash,
    kill_follower,
    drain,
    want,
)


def live(seed: int) -> World:
    """A life: some faults, and then peace."""
    world = World(seed)
    world.run(world.random.uniform(1, 10))
    for _ in range(world.random.randrange(1, 5)):
        world.random.choice(FAULTS)(world)
        world.run(world.random.expovariate(0.4))
    world.run(9.0)  # the last fault is over
    for name in world.names:
        if name not in world.running:
            world.start(name)
    return world


def check(world: World, seed: int) -> None:
    """It comes to rest."""
    end = world.now + SETTLES_S
    while not is_at_rest(world) and world.now < end:
        world.run(2.0)
    assert world.unserved == [], f"seed {seed}: shards without an owner"
    for shard in world.shards:
        owner = world.owner(shard)
        assert owner is not None
        assert owner.name == shard.home, f"seed {seed}: shard {shard.id} is served by {owner.name}"
        running = [host.name for host in world.running.values() if shard.id in host.processes]
        assert running == [owner.name], f"seed {seed}: shard {shard.id} has processes on {running}"
        copies = set(shard.followers)
        assert len(copies) == world.copies, f"seed {seed}: shard {shard.id} has copies on {copies}"
        assert owner.name not in copies
    assert is_at_rest(world), f"seed {seed}: something still moves"
    for shard in world.shards:
        if shard.wanted:
            assert shard.home == shard.wanted, f"seed {seed}: shard {shard.id} is not where it is wanted"


def is_at_rest(world: World) -> bool:
    waits = any(not process.epoch for host in world.running.values() for process in host.processes.values())
    moves = any(_owner(shard) != shard.home or len(shard.followers) != world.copies for shard in world.shards)
    return world.now - world.last_change > 6.0 and not (world.unserved or waits or moves)


def _owner(shard: Shard) -> str:
    return shard.token.partition("/")[0]


def check_lives(lives: int) -> None:
    for seed in range(lives):
        check(live(seed), seed)


def test_every_life_comes_to_rest() -> None:
    check_lives(budget(150, 10_000))


@pytest.mark.parametrize(
    ("fault", "within_s"),
    [(kill, 5.0), (freeze, 5.0), (crash, 1.0)],
    ids=["a host is killed", "a host is frozen", "a process is killed"],
)
def test_a_shard_is_not_without_an_owner_for_long(fault: Fault, within_s: float) -> None:
    for seed in range(budget(30, 500)):
        world = World(seed)
        world.run(40.0)
        assert world.unserved == []
        fault(world)
        waited = 0.0
        while waited == 0.0 or (world.unserved and waited < 30):
            world.run(0.25)
            waited += 0.25
        assert waited <= within_s, f"seed {seed}: {waited} s"


def never_ready(self: membership.Membership, shard: object, now: float) -> list[object]:
    """The seeded bug: a shard is never given up."""
    return []


def test_the_check_sees_a_host_that_gives_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.Membership, "_give_up", never_ready)
    with pytest.raises(AssertionError):
        check_lives(20)


def test_the_check_sees_a_host_that_does_not_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.Membership, "_is_orphan", lambda self, shard, observed, now: False)
    with pytest.raises(AssertionError):
        test_a_shard_is_not_without_an_owner_for_long(kill, 5.0)


def test_the_check_sees_a_shard_that_is_started_while_its_file_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrange = membership.Membership.arrange
    monkeypatch.setattr(
        membership.Membership, "arrange", lambda self, open_files, now: arrange(self, frozenset(), now)
    )
    with pytest.raises(AssertionError, match="the follower has its file open"):
        check_lives(60)
