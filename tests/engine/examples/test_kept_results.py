"""Children that were removed before their parent has asked for their results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver
from engine.shard_world import World

from shardproc.engine.lifecycle import child_results

QUEUES = ("alpha", "beta")
MANY = 12


@pytest.fixture(params=[1, 2, 4])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param, 7, crash_rate=0.0)
    yield world
    world.close()


def ask(world: World, **request: Any) -> dict[str, Any]:
    reply = world.ask(**request)
    world.settle()
    assert reply is not None
    assert reply["ok"], reply
    return dict(reply)


def family(children: int = MANY, **fields: Any) -> list[dict[str, Any]]:
    """A parent in one queue, and its children in two."""
    ids = [f"c{number}" for number in range(children)]
    jobs = [
        {"id": each, "queue": QUEUES[number % 2], "input": {"data": {}, "parentId": "p", **fields}}
        for number, each in enumerate(ids)
    ]
    return [
        *jobs,
        {"id": "p", "queue": QUEUES[0], "input": {"data": {}, "childrenIds": ids, "dependsOn": ids}},
    ]


def complete_all(world: World) -> dict[str, int]:
    """Every child; one of them gives nothing. What is to be read of them."""
    results: dict[str, int] = {}
    for number in range(MANY):
        queue = QUEUES[number % 2]
        job = ask(world, cmd="PULL", queue=queue)["job"]
        assert job["id"] == f"c{number}"
        result = {} if number == 3 else {"result": number}
        ask(world, cmd="ACK", id=job["id"], **result)
        if result:
            results[f"{queue}:c{number}"] = number
    return results


def by_hand(world: World) -> None:
    for number in range(MANY):
        ask(world, cmd="RemoveJob", id=f"c{number}")


def by_cleaning(world: World) -> None:
    for queue in QUEUES:
        ask(world, cmd="Clean", queue=queue, grace=0, limit=100, state="completed")


@pytest.mark.parametrize("remove", [by_hand, by_cleaning])
def test_results_that_a_parent_waits_for_outlive_their_jobs(world: World, remove: Any) -> None:
    ask(world, cmd="PUSHF", jobs=family())
    results = complete_all(world)
    remove(world)
    assert not sum(ask(world, cmd="GetJobCounts", queue=each)["counts"]["completed"] for each in QUEUES)
    for number in range(len(world.shards)):
        world.crash(number)
    world.calm()
    assert ask(world, cmd="GetState", id="c0")["state"] == "unknown"
    assert ask(world, cmd="GetChildrenValues", id="p")["data"] == {"values": results}


def test_what_is_lost_all_the_same_is_named(world: World) -> None:
    ask(world, cmd="PUSHF", jobs=family())
    results = complete_all(world)
    for shard in world.shards:
        for job_id in list(shard.engine.state.child_results):
            child_results.forget(shard.engine.state, job_id)
    assert ask(world, cmd="GetChildrenValues", id="p")["data"] == {"values": results}
    ask(world, cmd="Obliterate", queue=QUEUES[1])
    left = {key: value for key, value in results.items() if key.startswith(QUEUES[0])}
    found = ask(world, cmd="GetChildrenValues", id="p")["data"]
    assert found["values"] == left
    assert found["lost"] == [f"c{number}" for number in range(1, MANY, 2)]


def test_children_that_had_nothing_to_give_are_not_lost(world: World) -> None:
    ask(world, cmd="PUSHF", jobs=family(removeOnComplete=True))
    results = complete_all(world)
    assert ask(world, cmd="GetChildrenValues", id="p")["data"] == {"values": results}


def maintenance(driver: Driver) -> None:
    for _ in range(30):
        driver.tick(driver.now + 1_000)


def test_retention_keeps_results_while_the_parent_has_not_completed(driver: Driver) -> None:
    driver.ask(cmd="SetBounds", queue="alpha", config={"keepCount": 2})
    jobs = [{**job, "queue": "alpha"} for job in family(8)]
    assert driver.ask(cmd="PUSHF", jobs=jobs)["ok"]
    for number in range(8):
        assert driver.ask(cmd="PULL", queue="alpha")["job"]["id"] == f"c{number}"
        driver.ask(cmd="ACK", id=f"c{number}", result=number)
    maintenance(driver)
    assert driver.ask(cmd="GetJobCounts", queue="alpha")["counts"]["completed"] == 2
    values = {f"alpha:c{number}": number for number in range(8)}
    assert driver.ask(cmd="GetChildrenValues", id="p")["data"] == {"values": values}
    driver.restart()
    assert driver.ask(cmd="GetChildrenValues", id="p")["data"] == {"values": values}
    assert driver.ask(cmd="PULL", queue="alpha")["job"]["id"] == "p"
    kept = len(driver.shard.engine.state.child_results)
    driver.ask(cmd="ACK", id="p")
    driver.push(queue="alpha")
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="alpha")["job"]["id"])
    maintenance(driver)
    assert driver.ask(cmd="GetJobCounts", queue="alpha")["counts"]["completed"] == 2
    assert len(driver.shard.engine.state.child_results) == kept, "nobody waits for what is removed now"
