"""What shards say to each other, step by step: nothing is done twice, promised too early, or forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from properties.shard_world import Reply, World, state_of
from support.naming import queue_on

SHARDS = 4
TRY_AGAIN = "belongs to a flow that is being pushed, try again"


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(seed: int, crash_rate: float = 0.0) -> World:
        made.append(World(tmp_path, SHARDS, seed, crash_rate))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(seed=1)


def on(shard: int, name: str) -> str:
    """A queue on that shard, or an id that points to it."""
    return queue_on(shard, name, SHARDS)


def push(world: World, shard: int, own: str, **options: Any) -> Reply:
    reply = world.ask(cmd="PUSH", queue=on(shard, "q"), data={}, jobId=own, **options)
    assert reply is not None
    return reply


def pull(world: World, queue: str) -> tuple[str, str]:
    reply = world.ask(cmd="PULL", queue=queue, owner="w", lockTtl=60_000)
    assert reply is not None
    assert reply["job"] is not None
    return reply["job"]["id"], reply["token"]


def jobs_of(world: World, queues: tuple[str, ...] | list[str]) -> list[dict[str, Any]]:
    found = []
    for queue in queues:
        reply = world.ask(cmd="GetJobs", queue=queue, limit=1000)
        assert reply is not None
        found += reply["jobs"]
    return found


# Commands for jobs whose ids point elsewhere


@pytest.mark.parametrize("after_commit", [True, False])
def test_a_relayed_command_is_not_repeated(world: World, after_commit: bool) -> None:
    own = on(3, "own")
    push(world, 1, own, backoff=60_000)
    _, token = pull(world, on(1, "q"))
    world.settle()
    for command in ({"cmd": "AddLog", "message": "once"}, {"cmd": "FAIL", "token": token}):
        world.cut, world.doomed[1] = 0, after_commit
        key = world.send(id=own, **command)
        world.settle()
        assert key not in world.replies
        assert world.cut == 1, "its client is told that nobody knows"
    assert len(jobs_of(world, [on(1, "q")])) == 1
    logs = world.ask(cmd="GetLogs", id=own)
    assert logs is not None
    assert logs["data"]["count"] == after_commit
    assert jobs_of(world, [on(1, "q")])[0]["attempts"] == after_commit


def test_a_relayed_question_is_repeated(world: World) -> None:
    own = on(3, "own")
    push(world, 1, own)
    world.settle()
    world.doomed[1] = True
    assert state_of(world, own) == "waiting"
    assert world.crashes == 1
