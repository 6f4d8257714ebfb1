"""Shards, their files and their logs in simulated time: hosts die, stop and are cut off, logs fail over.

The shards are real, loop and SQLite included.  A run is a seed: `SEED=123` repeats one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replication.simulation.bugs import BUGS
from replication.simulation.host import Kinds
from replication.simulation.world import World, run
from support.budget import budget

SIMULATIONS = budget(16, 2_000)
PARTS = 4
ENOUGH = 3_000  # runs until a seeded bug must have been found
SELDOM = (
    "appends are not checked for the epoch",
    "messages between shards leave before the acknowledgement",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The shards have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_acknowledged_is_lost_whatever_happens(part: int) -> None:
    seeds = [int(os.environ["SEED"])] if "SEED" in os.environ else range(part, SIMULATIONS, PARTS)
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"SEED={seed}: {error}") from error


@pytest.mark.nightly
def test_the_runs_have_what_they_are_for() -> None:
    """Faults of every kind, take-overs, and work in between: or the runs would show nothing."""
    worlds = [run(seed) for seed in range(1_000_000, 1_000_040)]
    happened = Counter(what for world in worlds for what in [*world.happened, *world.scheduler.happened])
    happened += Counter(what for world in worlds for log in world.logs for what in log.happened)
    assert happened.keys() >= {
        "shard killed", "shard stopped", "host stopped", "router killed", "power cut", "folder lost",
        "stopped in order", "cut off", "the other host", "failover of all", "snapshot",
        "killed at a moment", "stopped at a moment", "cut", "cancel", "delay", "failover", "restart",
    }  # fmt: skip
    assert sum(world.books.promises for world in worlds) > 15 * len(worlds)
    assert sum(log.final.epoch for world in worlds for log in world.logs) > 5 * len(worlds)
    assert any(log.final.trimmed for world in worlds for log in world.logs)
    assert sum(map(_took_turns, worlds)) > 5


def _took_turns(world: World) -> bool:
    """Whether both hosts have written to one log."""
    return len(world.hosts) == 2 and all(any(disk.image for disk in host.disks) for host in world.hosts)


def _bug(name: str) -> Any:
    """Some are found within seconds, the others by night."""
    return pytest.param(BUGS[name], id=name, marks=[pytest.mark.nightly] * (name in SELDOM))


@pytest.mark.parametrize("kinds", [*map(_bug, BUGS)])
def test_a_seeded_bug_is_found(kinds: Kinds) -> None:
    for seed in range(ENOUGH):
        try:
            run(seed, kinds)
        except Exception:
            return
    pytest.fail(f"{ENOUGH} runs have not found it")


def test_a_seed_repeats_its_run() -> None:
    """In another process, too, where sets and maps have another order."""
    program = "from replication.test_simulation import digest; print(digest(7))"
    path = os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parents[2])))
    for order in "12":
        environ = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
        assert done.stdout.split()[-1:] == [digest(7)], done.stderr


def digest(seed: int) -> str:
    logging.disable(logging.CRITICAL)
    world = run(seed)
    bodies = [entry.body for log in world.logs for entry in log.final.records]
    return hashlib.sha256(b"".join(bodies)).hexdigest()
