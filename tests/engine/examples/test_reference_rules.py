"""Rules that clients written for the reference server rely on; each was seen there first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import START, Driver
from engine.shard_world import World

V2, V3 = 2, 3  # connections, which speak these versions
CHILD, PARENT = "alpha", "beta"


@pytest.fixture(params=[1, 2, 4])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path, request.param, 5, crash_rate=0.0)
    yield world
    world.close()


def push(driver: Driver, data: Any = 1, **fields: Any) -> str:
    reply = driver.ask(V3, cmd="PUSH", queue="q", data=data, **fields)
    assert reply["ok"], reply
    return str(reply["id"])


def pull(driver: Driver, conn: int = V3, **fields: Any) -> tuple[str, str]:
    """The id and the lock token of the next job."""
    reply = driver.ask(conn, cmd="PULL", queue="q", owner="w", **fields)
    return reply["job"]["id"], reply["token"]


def fail(driver: Driver, **how: Any) -> str:
    job, token = pull(driver)
    assert driver.ask(V3, cmd="FAIL", id=job, token=token, error="no", **how)["ok"]
    return job


def later(driver: Driver, ms: int) -> None:
    driver.tick(driver.now + ms)
    driver.commit()


def dead(driver: Driver) -> list[str]:
    return [job["id"] for job in driver.ask(V3, cmd="Dlq", queue="q")["jobs"]]


# Dead messages


def test_a_discarded_job_is_a_dead_letter_even_if_it_is_removed_when_it_fails(driver: Driver) -> None:
    job = push(driver, removeOnFail=True)
    assert driver.ask(V3, cmd="Discard", id=job)["ok"]
    assert dead(driver) == [job]


def test_dead_letters_beyond_the_maximum_go_at_once_the_oldest_first(driver: Driver) -> None:
    assert driver.ask(V3, cmd="SetDlqConfig", queue="q", config={"maxEntries": 2})["ok"]
    jobs = [push(driver, maxAttempts=1) for _ in range(5)]
    for job in jobs:
        assert fail(driver) == job
    later(driver, 1)
    assert dead(driver) == jobs[3:]
    assert driver.ask(V3, cmd="GetJobCounts", queue="q")["counts"]["failed"] == 2


@pytest.mark.parametrize("one", [True, False])
def test_a_dead_letter_whose_unique_key_is_taken_stays_one(driver: Driver, one: bool) -> None:
    job = push(driver, uniqueKey="k", maxAttempts=1)
    assert fail(driver) == job
    holder = push(driver, uniqueKey="k")
    assert driver.ask(V3, cmd="RetryDlq", queue="q", **({"jobId": job} if one else {}))["count"] == 0
    refused = driver.ask(V3, cmd="MoveToWait", id=job)
    assert refused["error"] == f"Cannot move job {job} to waiting: job {holder} has its unique key"
    assert dead(driver) == [job]
    assert driver.ask(V3, cmd="Cancel", id=holder)["ok"]
    assert driver.ask(V3, cmd="RetryDlq", queue="q")["count"] == 1
    assert driver.state(job) == "waiting"


def test_of_two_dead_letters_with_one_key_one_returns(driver: Driver) -> None:
    jobs = []
    for _ in range(2):
        jobs.append(push(driver, uniqueKey="k", maxAttempts=1))
        fail(driver)
    assert driver.ask(V3, cmd="RetryDlq", queue="q")["count"] == 1
    assert [driver.state(job) for job in jobs] == ["waiting", "failed"]


def test_a_dead_letter_is_not_retried_by_itself_while_its_key_is_taken(driver: Driver) -> None:
    config = {"autoRetry": True, "autoRetryInterval": 1000}
    assert driver.ask(V3, cmd="SetDlqConfig", queue="q", config=config)["ok"]
    job = push(driver, uniqueKey="k", maxAttempts=1)
    fail(driver)
    holder = push(driver, uniqueKey="k")
    later(driver, 200_000)
    assert (driver.state(job), driver.state(holder)) == ("failed", "waiting")
    assert dead(driver) == [job]


# Moves


def test_a_move_to_waiting_children_needs_the_token(driver: Driver) -> None:
    job = push(driver)
    _, token = pull(driver)
    refused = driver.ask(V3, cmd="MoveToWaitingChildren", id=job)
    assert refused["error"] == f"Lock token required for job {job}"
    assert driver.ask(V3, cmd="MoveToWaitingChildren", id=job, token=token)["ok"]


def test_moving_a_waiting_job_to_waiting_changes_nothing(driver: Driver) -> None:
    job = push(driver)
    before = driver.ask(V3, cmd="GetJob", id=job)["job"]
    later(driver, 50)
    assert driver.ask(V3, cmd="MoveToWait", id=job) == {"ok": True}
    assert driver.ask(V3, cmd="GetJob", id=job)["job"] == before


def test_the_lock_of_a_job_without_one_cannot_be_extended(driver: Driver) -> None:
    job = push(driver)
    driver.ask(V3, cmd="PULL", queue="q")
    refused = driver.ask(V3, cmd="ExtendLock", id=job, duration=5000)
    assert refused["error"] == "Lock not found or invalid token"


def test_a_timeout_of_0_is_none_and_is_shown(driver: Driver) -> None:
    job = push(driver, timeout=0)
    pull(driver)
    later(driver, 3_600_000)
    assert driver.ask(V3, cmd="GetJob", id=job)["job"]["timeout"] == 0


# Unique keys, data of flows


def test_a_job_cannot_replace_its_own_dependency(driver: Driver) -> None:
    job = push(driver, uniqueKey="k")
    dedup = {"replace": True, "ttl": 60_000}
    refused = driver.ask(V3, cmd="PUSH", queue="q", data=2, uniqueKey="k", dedup=dedup, dependsOn=[job])
    assert refused["error"].startswith(f"Cannot replace deduplicated job {job}")
    assert driver.state(job) == "waiting"


def test_an_update_keeps_what_the_data_says_of_the_family(driver: Driver) -> None:
    family = {"__parentId": "p", "__parentQueue": "q"}
    job = push(driver, {"i": 0, **family})
    assert driver.ask(V3, cmd="Update", id=job, data={"n": 5})["ok"]
    assert driver.ask(V3, cmd="GetJob", id=job)["job"]["data"] == {"n": 5, **family}
    assert driver.ask(V3, cmd="Update", id=job, data={"n": 6, **family})["ok"]
    refused = driver.ask(V3, cmd="Update", id=job, data=5)
    assert refused["error"] == "flow job data must be an object"
    refused = driver.ask(V3, cmd="Update", id=job, data={"__parentId": "other"})
    assert refused["error"] == "flow job data key is reserved: __parentId"
    assert driver.ask(V3, cmd="GetJob", id=job)["job"]["data"] == {"n": 6, **family}


# Groups


def grouped(driver: Driver, conn: int, count: int = 9, **fields: Any) -> list[Any]:
    return [job["data"] for job in driver.ask(conn, cmd="PULLB", queue="q", count=count, **fields)["jobs"]]


def test_in_version_3_a_groups_own_limit_counts_for_pulls_that_name_a_default(driver: Driver) -> None:
    for name in "abc":
        push(driver, name, groupId="G")
    assert driver.ask(V3, cmd="SetGroupConcurrency", queue="q", groupId="G", concurrency=2)["ok"]
    assert grouped(driver, V3, group={"concurrency": 1}) == ["a", "b"]
    assert grouped(driver, V3) == ["c"]


def test_in_version_3_a_groups_own_rate_counts_for_pulls_that_name_a_default(driver: Driver) -> None:
    for name in "abcdef":
        push(driver, name, groupId="G")
    assert driver.ask(V3, cmd="SetGroupRateLimit", queue="q", groupId="G", max=1, duration=60_000)["ok"]
    limit = {"limit": {"max": 2, "duration": 60_000}}
    assert grouped(driver, V3, 1) == ["a"]
    assert grouped(driver, V3, group=limit) == ["b"]
    assert grouped(driver, V3, group=limit) == []
    assert grouped(driver, V3, 1, group={"concurrency": 9}) == ["c"]
    assert driver.ask(V3, cmd="PauseGroup", queue="q", groupId="G")["ok"]
    assert grouped(driver, V3) == []


def test_in_version_2_a_groups_own_rate_counts_for_every_pull(driver: Driver) -> None:
    for name in "ab":
        push(driver, name, groupId="G")
    assert driver.ask(V2, cmd="SetGroupRateLimit", queue="q", groupId="G", max=1, duration=60_000)["ok"]
    assert driver.ask(V2, cmd="SetGroupConcurrency", queue="q", groupId="G", concurrency=5)["ok"]
    assert grouped(driver, V2) == ["a"]
    assert grouped(driver, V2) == []


def test_in_version_3_a_group_keeps_the_order_of_its_pushes(driver: Driver) -> None:
    """Through a retry, a delay and a move."""
    one = {"group": {"concurrency": 1}}
    backoff = {"type": "fixed", "delay": 50}
    push(driver, "late", groupId="G", delay=100)
    for name in "abc":
        push(driver, name, groupId="G", backoff=backoff)
    job, token = pull(driver, **one)
    assert driver.ask(V3, cmd="FAIL", id=job, token=token, error="again")["ok"]
    later(driver, 80)
    assert grouped(driver, V3, 1) == ["a"], "it was retried before b, which was pushed after it"
    later(driver, 80)
    assert grouped(driver, V3) == ["late", "b", "c"]


def test_in_version_2_a_retried_job_of_a_group_stands_behind_what_was_due_before(driver: Driver) -> None:
    for name in "ab":
        push(driver, name, groupId="G", backoff={"type": "fixed", "delay": 50})
    job, token = pull(driver, V2)
    assert driver.ask(V2, cmd="FAIL", id=job, token=token, error="again")["ok"]
    later(driver, 80)
    assert grouped(driver, V2) == ["b"]


# Dashboard


def test_a_queue_in_detail_shows_its_jobs_when_asked(driver: Driver) -> None:
    ids = [push(driver), push(driver, delay=60_000, priority=3), push(driver)]
    pull(driver)
    plain = driver.ask(V3, cmd="DashboardQueue", queue="q")["data"]
    assert "jobs" not in plain
    assert plain["priorityCounts"] == {"0": 1, "3": 1}
    jobs = driver.ask(V3, cmd="DashboardQueue", queue="q", includeJobs=True)["data"]["jobs"]
    found = {name: [job["id"] for job in some] for name, some in jobs.items()}
    assert found == {"waiting": [ids[2]], "active": [ids[0]], "delayed": [ids[1]], "paused": []}
    assert jobs["delayed"][0] == {
        "id": ids[1], "priority": 3, "createdAt": float(START), "runAt": START + 60_000.0,
        "attempts": 0, "progress": 0,
    }  # fmt: skip
    assert driver.ask(V3, cmd="Pause", queue="q")["ok"]
    jobs = driver.ask(V3, cmd="DashboardQueue", queue="q", includeJobs=True)["data"]["jobs"]
    assert ([job["id"] for job in jobs["paused"]], jobs["waiting"]) == ([ids[2]], [])


# Over shards


def ask(world: World, **request: Any) -> dict[str, Any]:
    reply = world.ask(**request)
    assert reply is not None
    return dict(reply)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("removed", [True, False])
def test_an_obliterated_job_is_unknown_as_a_dependency(world: World, own: bool, removed: bool) -> None:
    fields = {"jobId": "own"} if own else {}
    job = ask(world, cmd="PUSH", queue=CHILD, data=1, removeOnComplete=removed, **fields)["id"]
    pulled = ask(world, cmd="PULL", queue=CHILD)["job"]
    assert ask(world, cmd="ACK", id=pulled["id"])["ok"]
    world.settle()
    assert ask(world, cmd="PUSH", queue=PARENT, data=1, dependsOn=[job])["ok"], "it has completed"
    assert ask(world, cmd="Obliterate", queue=CHILD)["ok"]
    world.settle()
    refused = ask(world, cmd="PUSH", queue=PARENT, data=1, dependsOn=[job])
    assert refused.get("error") == f"Dependency job not found: {job}"


@pytest.mark.parametrize("child_queue", [CHILD, PARENT])
def test_a_parent_has_the_results_of_children_that_were_removed(world: World, child_queue: str) -> None:
    child = {"id": "c", "queue": child_queue}
    parent = {"id": "p", "queue": PARENT}
    jobs = [
        {**child, "input": {"data": {}, "parentId": "p", "removeOnComplete": True}},
        {**parent, "input": {"data": {}, "childrenIds": ["c"], "dependsOn": ["c"]}},
    ]
    assert ask(world, cmd="PUSHF", jobs=jobs)["ok"]
    world.settle()
    assert ask(world, cmd="PULL", queue=child_queue)["job"]["id"] == "c"
    assert ask(world, cmd="ACK", id="c", result={"r": 1})["ok"]
    world.settle()
    assert ask(world, cmd="GetState", id="c")["state"] == "unknown"
    for number in range(len(world.shards)):
        world.crash(number)
    world.calm()
    assert ask(world, cmd="GetChildrenValues", id="p")["data"]["values"] == {f"{child_queue}:c": {"r": 1}}
    assert ask(world, cmd="PULL", queue=PARENT)["job"]["id"] == "p"
    # The id is free for another job, whose result is another one.
    assert ask(world, cmd="PUSH", queue=child_queue, data=2, jobId="c")["ok"]
    assert ask(world, cmd="GetChildrenValues", id="p")["data"]["values"] == {}


def test_results_of_removed_children_go_with_their_queue(world: World) -> None:
    child = {"data": {"__parentId": "p"}, "parentId": "p", "jobId": "c", "removeOnComplete": True}
    assert ask(world, cmd="PUSH", queue=PARENT, data=1, jobId="p")["ok"]
    assert ask(world, cmd="PUSH", queue=CHILD, **child)["ok"]
    assert ask(world, cmd="PULL", queue=CHILD)["job"]["id"] == "c"
    assert ask(world, cmd="ACK", id="c", result=1)["ok"]
    world.settle()
    assert ask(world, cmd="GetChildrenValues", id="p")["data"]["values"] == {f"{CHILD}:c": 1}
    assert ask(world, cmd="Obliterate", queue=CHILD)["ok"]
    world.settle()
    assert ask(world, cmd="GetChildrenValues", id="p")["data"]["values"] == {}
    assert not any(shard.engine.state.child_results for shard in world.shards)


@pytest.mark.parametrize("child_first", [True, False])
def test_a_child_and_its_parent_may_come_in_one_batch(world: World, child_first: bool) -> None:
    child = {"data": {"__parentId": "p", "__parentQueue": CHILD}, "parentId": "p", "jobId": "c"}
    parent = {"data": {}, "jobId": "p"}
    jobs = [child, parent] if child_first else [parent, child]
    assert ask(world, cmd="PUSHB", queue=CHILD, jobs=jobs)["ok"]
    world.settle()
    assert ask(world, cmd="PULL", queue=CHILD)["job"]["id"] == "c", "the parent waits for it"
    assert ask(world, cmd="ACK", id="c", result=7)["ok"]
    world.settle()
    assert ask(world, cmd="PULL", queue=CHILD)["job"]["id"] == "p"
    assert ask(world, cmd="GetChildrenValues", id="p")["data"]["values"] == {f"{CHILD}:c": 7}


def test_the_name_of_the_queue_is_checked_first(driver: Driver) -> None:
    for bad in (
        {"cmd": "PUSH", "data": 1, "priority": 2_000_000},
        {"cmd": "PUSHB", "jobs": [{"data": 1, "priority": 2_000_000}]},
    ):
        refused = driver.ask(V3, queue="a b", **bad)
        assert refused["error"] == "Queue name contains invalid characters"
