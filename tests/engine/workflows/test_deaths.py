"""Workflows whose workers, shards and router die: at random, and at every boundary of one of them.

A boundary is where a shard is about to commit what it has done, and then to say so. WORKFLOW_EXAMPLES is the
number of random lives, and by night every boundary is tried, instead of some.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from engine.shard_world import QUEUES
from engine.workflow_life import Life, SeveralShards, Story
from engine.workflow_world import HOUR
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import NIGHTLY, budget

EXAMPLES = budget(10, 400)
EVERY = NIGHTLY
VICTIMS = ("shard before its commit", "shard after its commit", "router")
PART = st.tuples(st.sampled_from(QUEUES), st.booleans())
OPERATION = st.one_of(
    st.tuples(st.just("step"), st.booleans()),
    st.tuples(st.just("sleep"), st.integers(1, 48 * HOUR)),
    st.tuples(st.just("signal")),
    st.tuples(st.just("broadcast"), st.sampled_from(("a", "b"))),
    st.tuples(st.just("loser"), st.integers(1, HOUR)),
    st.tuples(st.just("children"), st.lists(PART, min_size=1, max_size=4)),
    st.tuples(st.just("inner"), st.sampled_from(QUEUES)),
)
PROGRAM = st.lists(OPERATION, max_size=6).map(lambda program: list(without_twins(program)))
STORY = st.tuples(st.sampled_from(QUEUES), PROGRAM, st.booleans())


def without_twins(program: list[Any]) -> Iterator[Any]:
    """A workflow gets each broadcast once."""
    keys = set()
    for each in program:
        if each[0] != "broadcast" or each[1] not in keys:
            keys.add(each[1] if each[0] == "broadcast" else None)
            yield each


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from((1, 2, 4)), st.lists(STORY, min_size=1, max_size=3), st.integers(0, 2**32))
def test_deaths_change_nothing(shards: int, stories: list[Any], seed: int) -> None:
    with TemporaryDirectory() as folder:
        world = SeveralShards(Path(folder), shards, seed, crash_rate=0.04, cut_rate=0.03)
        try:
            some = [Story(f"w{number}", *story) for number, story in enumerate(stories)]
            life = Life(world, some, worker_dies=0.08)
            life.start()
            life.go_on(what_happens(life))
            life.finish()
            life.check()
        finally:
            world.close()


def what_happens(life: Life) -> Iterator[Callable[[], object]]:
    rng, world = life.rng, life.world
    things: list[Callable[[], object]] = [
        world.worker_dies,
        world.router_dies,
        *[lambda: world.pass_time(HOUR)] * 8,
    ]
    things += [lambda number=number: world.crash(number) for number in range(world.count)]  # type: ignore[misc]
    for story in life.stories.values():
        things += [lambda story=story: life.signal(story)] * rng.randrange(story.signals + 1)  # type: ignore[misc]
    keys = sorted({key for story in life.stories.values() for key in story.broadcasts})
    rng.shuffle(things)
    yield from things
    for key in keys:
        yield lambda key=key: life.broadcast(key)  # type: ignore[misc]


# -- one life, and a death at every boundary of it

PROGRAM_OF_ALL: list[Any] = [
    ("step", True),
    ("signal",),
    ("children", [("alpha", True), ("beta", False), ("gamma", True)]),
    ("step", False),
    ("broadcast", "a"),
    ("inner", "gamma"),
    ("loser", HOUR),
    ("step", True),
]


def live(folder: Path, fails: bool, fatal: int | None = None, victim: str = "") -> int:
    """The number of boundaries that there were."""
    world = SeveralShards(folder, 4, seed=7)
    world.fatal, world.victim = fatal, victim
    try:
        life = Life(world, [Story("w", "delta", PROGRAM_OF_ALL, fails)])
        life.start()
        while life.work():
            pass
        life.signal(life.stories["w"])
        while life.work():
            pass
        life.broadcast("a")
        life.finish()
        life.check()
        return world.passed
    finally:
        world.close()


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("fails", [False, True], ids=["completes", "is undone"])
def test_a_death_at_every_boundary(tmp_path: Path, fails: bool, victim: str) -> None:
    boundaries = live(tmp_path, fails)
    places = range(1, boundaries + 1)
    for place in places if EVERY else random.Random(victim).sample(places, 8):
        (tmp_path / str(place)).mkdir()
        live(tmp_path / str(place), fails, place, victim)
