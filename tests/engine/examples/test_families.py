"""Children of jobs that are there already: pushed as such, or named later, whatever has run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.properties.test_shards_together import QUEUES, Life, World, state_of

from shardproc.engine.peers import families

POLICIES = {
    None: "waiting-children",
    "failParentOnFailure": "failed",
    "removeDependencyOnFailure": "waiting",
    "ignoreDependencyOnFailure": "waiting",
    "continueParentOnFailure": "waiting",
}


@pytest.fixture(params=[1, 2, 4])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param, 11, crash_rate=0.0)
    yield world
    world.close()


def push(world: World, queue: str, own: str, **fields: Any) -> None:
    reply = world.ask(**{"cmd": "PUSH", "queue": queue, "data": {"own": own}, "jobId": own, **fields})
    assert reply == {"ok": True, "id": own}


def push_child(world: World, queue: str, own: str | None, parent: str, **fields: Any) -> dict[str, Any]:
    """As clients push the child of a job that is there: the data says so, too."""
    data = {"a": 1, "__parentId": parent, "__parentQueue": "alpha"}
    more = fields if own is None else {"jobId": own, **fields}
    return world.ask(cmd="PUSH", queue=queue, data=data, parentId=parent, **more) or {}


def finish(world: World, queue: str, **how: Any) -> dict[str, Any]:
    pulled = world.ask(cmd="PULL", queue=queue)
    assert pulled is not None
    assert pulled["job"] is not None
    assert world.ask(**{"cmd": "ACK", "id": pulled["job"]["id"], **how}) == {"ok": True}
    world.settle()
    return dict(pulled["job"])


def job(world: World, job_id: str) -> dict[str, Any]:
    found = world.ask(cmd="GetJob", id=job_id)
    assert found is not None
    return dict(found["job"])


# -- pushed as a child


@pytest.mark.parametrize("delay", [0, 1000])
def test_a_job_waits_for_a_child_that_is_pushed_for_it(world: World, delay: int) -> None:
    push(world, "alpha", "parent", delay=delay)
    child = push_child(world, "beta", None, "parent")["id"]
    assert state_of(world, "parent") == "waiting-children"
    assert (job(world, "parent")["childrenIds"], job(world, child)["parentId"]) == ([child], "parent")
    finish(world, "beta", result=7)
    assert state_of(world, "parent") == ("delayed" if delay else "waiting")
    values = world.ask(cmd="GetChildrenValues", id="parent")
    assert values == {"ok": True, "data": {"values": {f"beta:{child}": 7}}}


def test_a_batch_of_children(world: World) -> None:
    push(world, "alpha", "parent")
    marked = {"parentId": "parent", "data": {"__parentId": "parent"}}
    reply = world.ask(cmd="PUSHB", queue="beta", jobs=[marked, {"data": 1}, {**marked, "customId": "own"}])
    assert reply is not None
    first, _, own = reply["ids"]
    assert own == "own"
    assert job(world, "parent")["childrenIds"] == [first, own]
    for _ in range(2):
        finish(world, "beta")
        assert state_of(world, "parent") == "waiting-children"
    finish(world, "beta")
    assert state_of(world, "parent") == "waiting"


def test_a_parent_at_work_gets_its_child_without_being_stopped(world: World) -> None:
    push(world, "alpha", "parent")
    world.ask(cmd="PULL", queue="alpha")
    child = push_child(world, "beta", None, "parent")["id"]
    assert state_of(world, "parent") == "active"
    assert world.ask(cmd="MoveToWaitingChildren", id="parent") == {"ok": True, "data": {"moved": True}}
    assert state_of(world, "parent") == "waiting-children"
    assert finish(world, "beta")["id"] == child
    assert state_of(world, "parent") == "waiting"


def test_a_child_of_nobody_is_refused_and_leaves_nothing(world: World) -> None:
    assert push_child(world, "beta", "c", "none") == {"ok": False, "error": "Parent job not found: none"}
    push(world, "alpha", "parent")
    finish(world, "alpha")
    error = "Parent job parent is completed: it cannot wait for a child"
    assert push_child(world, "beta", "c", "parent") == {"ok": False, "error": error}
    assert state_of(world, "c") == "unknown"


def test_nobody_waits_for_himself(world: World) -> None:
    push(world, "alpha", "own")
    refused = {"ok": False, "error": "Job own cannot be its own parent"}
    assert push_child(world, "alpha", "own", "own") == refused
    assert world.ask(cmd="UpdateParent", childId="own", parentId="own") == refused
    assert state_of(world, "own") == "waiting"


@pytest.mark.parametrize(
    "data", [{}, {"__parentId": "other"}, {"__parentId": 5}, {"in": {"__parentId": "p"}}, 1]
)
def test_a_parent_that_the_data_does_not_name_is_a_note(world: World, data: Any) -> None:
    push(world, "alpha", "p")
    reply = world.ask(cmd="PUSH", queue="beta", data=data, parentId="p")
    assert reply is not None
    assert job(world, reply["id"])["parentId"] == "p"
    assert state_of(world, "p") == "waiting"


@pytest.mark.parametrize("seed", range(12))
def test_an_acknowledged_child_is_waited_for_whatever_dies(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, 4, seed, crash_rate=0.05)
    life = Life(world)
    for number in range(12):
        parent, child = f"parent-{number}", f"child-{number}"
        kept = world.ask(cmd="PUSH", queue=QUEUES[number % 6], data={}, jobId=parent, delay=1)
        if kept is None:
            continue
        if push_child(world, QUEUES[(number * 5 + 1) % 6], child, parent).get("ok"):
            life.needs[parent] = [child]
    world.calm()
    world.now += 10
    for shard in world.shards:
        shard.engine.tick(world.now)
    world.settle()
    life.lost_pulls_return()
    while life.work():
        world.settle()
    assert life.needs
    assert set(life.needs) <= set(life.done)
    world.close()


# -- named later, as clients do that push children first


def later(world: World, **options: Any) -> None:
    """A child, and a parent that waits for it, which do not know that they belong together."""
    data = {"__parentId": "pending", "__parentQueue": "alpha"}
    push(world, "beta", "child", data=data, parentId="pending", maxAttempts=1, **options)


def parent(world: World) -> None:
    push(world, "alpha", "parent", dependsOn=["child"], childrenIds=["child"])


def name_it(world: World) -> Any:
    reply = world.ask(cmd="UpdateParent", childId="child", parentId="parent")
    world.settle()
    return reply


def test_a_parent_may_be_named_before_the_child_runs(world: World) -> None:
    later(world)
    parent(world)
    assert name_it(world) == {"ok": True}
    assert job(world, "child")["data"] == {"__parentId": "parent", "__parentQueue": "alpha"}
    assert (job(world, "child")["parentId"], state_of(world, "parent")) == ("parent", "waiting-children")


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("parent_too", [False, True])
def test_a_parent_may_be_named_when_the_child_has_completed(
    world: World, removed: bool, parent_too: bool
) -> None:
    later(world, removeOnComplete=removed)
    parent(world)
    finish(world, "beta", result="r")
    if parent_too:
        finish(world, "alpha")
    assert name_it(world) == {"ok": True}
    assert state_of(world, "parent") == ("completed" if parent_too else "waiting")
    values = world.ask(cmd="GetChildrenValues", id="parent")
    assert values == {"ok": True, "data": {"values": {"beta:child": "r"}}}
    if not removed:
        assert job(world, "child")["parentId"] == "parent"


def test_a_completed_job_becomes_a_child_without_stopping_its_parent(world: World) -> None:
    later(world)
    finish(world, "beta", result="r")
    push(world, "alpha", "parent")
    assert name_it(world) == {"ok": True}
    assert (state_of(world, "parent"), job(world, "parent")["childrenIds"]) == ("waiting", ["child"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("listed", [False, True])
def test_the_policy_of_a_child_that_died_before_its_parent_was_named(
    world: World, policy: str | None, listed: bool
) -> None:
    later(world, **({policy: True} if policy else {}))
    if listed:
        parent(world)
    finish(world, "beta", cmd="FAIL", error="E")
    if not listed:
        push(world, "alpha", "parent")
    assert name_it(world) == {"ok": True}
    assert state_of(world, "parent") == POLICIES[policy]
    failed = world.ask(cmd="GetFailedChildrenValues", id="parent")
    ignored = world.ask(cmd="GetIgnoredChildrenFailures", id="parent")
    assert failed == {
        "ok": True,
        "values": {"beta:child": "E"} if policy == "continueParentOnFailure" else {},
    }
    assert ignored == {
        "ok": True,
        "values": {"beta:child": "E"} if policy == "ignoreDependencyOnFailure" else {},
    }


def test_what_cannot_be_named(world: World) -> None:
    push(world, "alpha", "parent")
    assert name_it(world) == {"ok": False, "error": "Child job not found: child"}
    finish(world, "alpha")
    later(world)
    error = "Parent job parent is completed: it cannot wait for a child"
    assert name_it(world) == {"ok": False, "error": error}
    assert world.ask(cmd="UpdateParent", childId="child", parentId="none") == {
        "ok": False,
        "error": "Parent job not found: none",
    }
    assert job(world, "child")["parentId"] == "pending"


# -- flows


def test_results_come_in_the_order_of_the_children(world: World) -> None:
    children = [f"child-{n}" for n in range(6)]
    for child, queue in zip(children, QUEUES, strict=True):
        push(world, queue, child)
        finish(world, queue, result=child)
    push(world, "alpha", "parent", childrenIds=children[::-1])
    reply = world.ask(cmd="GetChildrenValues", id="parent")
    assert reply is not None
    assert list(reply["data"]["values"].values()) == children[::-1]


def test_a_child_has_one_policy(world: World) -> None:
    policies = {"failParentOnFailure": True, "ignoreDependencyOnFailure": True}
    reply = world.ask(cmd="PUSHF", jobs=[{"id": "a", "queue": "alpha", "input": {"data": {}, **policies}}])
    assert reply == {
        "ok": False,
        "error": "flow job a has more than one policy for its failure, choose one",
    }


def test_a_job_has_so_many_children(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MAX_CHILDREN", 2)
    push(world, "alpha", "parent", delay=3_600_000)
    assert push_child(world, "beta", "one", "parent")["ok"]
    push(world, "gamma", "two")
    assert world.ask(cmd="UpdateParent", childId="two", parentId="parent") == {"ok": True}
    refused = push_child(world, "beta", "three", "parent")
    assert (refused["ok"], "as many children as a job can" in refused["error"]) == (False, True)
    assert world.ask(cmd="GetState", id="three") == {"ok": True, "id": "three", "state": "unknown"}
    push(world, "gamma", "four")
    refused = world.ask(cmd="UpdateParent", childId="four", parentId="parent") or {}
    assert "as many children as a job can" in refused["error"]
    assert world.ask(cmd="UpdateParent", childId="two", parentId="parent") == {"ok": True}, "it is there"
    removed = world.ask(cmd="RemoveChildDependency", id="two") or {}
    assert removed["ok"], removed
    assert world.ask(cmd="UpdateParent", childId="four", parentId="parent") == {"ok": True}
