"""A child that is removed before it has completed is for its parent what a child is that failed for good.

Whatever removed it, wherever its parent is, and whoever dies in between: no parent waits for nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.shard_world import QUEUES, World, state_of
from support.budget import budget

POLICIES = {
    "failParentOnFailure": "failed",
    "removeDependencyOnFailure": "waiting",
    "ignoreDependencyOnFailure": "waiting",
    "continueParentOnFailure": "waiting",
}


def make(world: World, policy: str | None, number: int = 0, **options: Any) -> tuple[str, str]:
    """A parent in one queue and its child in another one: their ids."""
    parent, child = f"parent-{number}", f"child-{number}"
    fields = {"data": {}, "parentId": parent, **options, **({policy: True} if policy else {})}
    reply = world.ask(
        cmd="PUSHF",
        jobs=[
            {"id": child, "queue": QUEUES[number % 3], "input": fields},
            {
                "id": parent,
                "queue": QUEUES[3 + number % 3],
                "input": {"data": {}, "dependsOn": [child], "childrenIds": [child]},
            },
        ],
    )
    assert reply is None or reply["ok"], reply
    if not world.crash_rate:
        world.settle()
    return parent, child


def cancel(world: World, child: str, number: int) -> None:
    world.ask(cmd="Cancel", id=child)


def drain(world: World, child: str, number: int) -> None:
    world.ask(cmd="Drain", queue=QUEUES[number % 3])


def clean(world: World, child: str, number: int) -> None:
    world.now += 10
    world.ask(cmd="Clean", queue=QUEUES[number % 3], grace=1)


def obliterate(world: World, child: str, number: int) -> None:
    world.ask(cmd="Obliterate", queue=QUEUES[number % 3])


def expire(world: World, child: str, number: int) -> None:
    world.now += 60_000
    world.ask(cmd="PULL", queue=QUEUES[number % 3])


def fail(world: World, child: str, number: int) -> None:
    world.ask(cmd="PULL", queue=QUEUES[number % 3])
    world.ask(cmd="FAIL", id=child, error="no", unrecoverable=True)


def ask(world: World, **request: Any) -> dict[str, Any]:
    """A command that nothing keeps from being answered."""
    reply = world.ask(**request)
    assert reply is not None
    return reply


ENDS = [cancel, drain, clean, obliterate, expire, fail]


def work_off(world: World) -> None:
    """Long work goes in slices, when there is time."""
    for _ in range(20):
        for number, shard in enumerate(world.shards):
            shard.engine.work()
            world.finish(number)
        world.settle()


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("policy", POLICIES)
def test_parents_hear_of_children_that_are_removed(
    tmp_path: Path, policy: str, end: Any, shards: int
) -> None:
    world = World(tmp_path, shards, 1, crash_rate=0.0)
    parent, child = make(world, policy, ttl=30_000, removeOnFail=True)
    end(world, child, 0)
    work_off(world)
    assert state_of(world, child) == "unknown"
    assert state_of(world, parent) == POLICIES[policy]
    world.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_without_a_policy_parents_wait_on(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 1, crash_rate=0.0)
    parent, child = make(world, None)
    cancel(world, child, 0)
    work_off(world)
    assert (state_of(world, child), state_of(world, parent)) == ("unknown", "waiting-children")
    world.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_removing_what_a_parent_wants_no_more_does_not_fail_it(tmp_path: Path, shards: int) -> None:
    world = World(tmp_path, shards, 1, crash_rate=0.0)
    parent, child = make(world, "failParentOnFailure")
    assert world.ask(cmd="RemoveUnprocessedChildren", id=parent) == {"ok": True}
    work_off(world)
    assert (state_of(world, child), state_of(world, parent)) == ("unknown", "waiting")
    world.close()


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_failed_parent_that_is_retried_runs_also_after_a_restart(
    tmp_path: Path, shards: int, pulled: bool
) -> None:
    world = World(tmp_path, shards, 1, crash_rate=0.0)
    parent, child = make(world, "failParentOnFailure")
    fail(world, child, 0)
    world.settle()
    assert ask(world, cmd="RetryDlq", queue=QUEUES[3])["count"] == 1
    assert state_of(world, parent) == "waiting"
    if pulled:
        assert ask(world, cmd="PULL", queue=QUEUES[3])["job"]["id"] == parent
    for number in range(shards):
        world.crash(number)
        world.settle()
    assert state_of(world, parent) == ("active" if pulled else "waiting")
    if not pulled:
        assert ask(world, cmd="PULL", queue=QUEUES[3])["job"]["id"] == parent
    assert ask(world, cmd="ACK", id=parent) == {"ok": True}
    assert state_of(world, parent) == "completed"
    world.close()


def test_a_parent_that_failed_by_its_child_is_not_retried_by_itself(tmp_path: Path) -> None:
    """It would run without its children."""
    world = World(tmp_path, 1, 1, crash_rate=0.0)
    config = {"autoRetry": True, "autoRetryInterval": 1000}
    for queue in (QUEUES[0], QUEUES[3]):
        assert ask(world, cmd="SetDlqConfig", queue=queue, config=config) == {"ok": True}
    parent, child = make(world, "failParentOnFailure")
    fail(world, child, 0)
    planned = []
    for queue in (QUEUES[0], QUEUES[3]):
        entries = ask(world, cmd="Dlq", queue=queue)["entries"]
        planned += [(entry["job"]["id"], entry["nextRetryAt"]) for entry in entries]
    assert planned == [(child, world.now + 1000), (parent, None)]
    world.close()


@pytest.mark.parametrize("seed", range(budget(1, 100)))
def test_no_parent_waits_for_nobody_whoever_dies(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, 4, seed, crash_rate=0.15)
    families = []
    for number in range(8):
        policy = world.rng.choice(list(POLICIES))
        parent, child = make(world, policy, number, ttl=30_000, removeOnFail=True)
        families.append((parent, child, policy))
        if world.rng.random() < 0.5:
            world.settle()
        world.rng.choice(ENDS)(world, child, number)
    world.calm()
    for number in range(8):  # what a crash kept from happening
        drain(world, "", number)
    work_off(world)
    for parent, child, policy in families:
        if state_of(world, child) == "unknown" and state_of(world, parent) != "unknown":
            assert state_of(world, parent) == POLICIES[policy], (parent, policy)
    assert world.crashes
    world.close()
