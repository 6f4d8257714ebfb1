"""A job that has failed for good has another one added: exactly one, whichever shards die meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver
from engine.shard_world import QUEUES, World
from support.budget import budget

SEEDS = budget(3, 100)


def call(queue: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "alarm", "data": {"who": "ops"}, **({"queue": queue} if queue else {}), **fields}


def die(driver: Driver, job: str, **fields: Any) -> None:
    driver.ask(cmd="PULL", queue="q")
    assert driver.ask(cmd="FAIL", id=job, error="boom", **fields)["ok"]


def waiting(driver: Driver, queue: str = "q") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="GetJobs", queue=queue, state="waiting")["jobs"]
    return found


def test_it_is_added_in_the_same_transaction(driver: Driver) -> None:
    on_dead = call(maxAttempts=7, backoff={"delay": 5}, tags=["t"], neverOn=["ValueError"])
    job = driver.ask(cmd="PUSH", queue="q", name="pay", data=1, maxAttempts=2, backoff=0, onDead=on_dead)[
        "id"
    ]
    assert driver.ask(cmd="GetJob", id=job)["job"]["onDead"] == {"queue": "q", "name": "alarm"}
    die(driver, job)
    assert [each["id"] for each in waiting(driver)] == [job]
    driver.restart()
    die(driver, job, errorTypes=["app.Broken"])
    rows = "select count(*) from jobs", "select count(*) from dead_letters"
    assert [driver.rows(sql) for sql in rows] == [[(2,)], [(1,)]]
    (added,) = waiting(driver)
    assert (added["name"], added["data"], added["maxAttempts"], added["tags"]) == (
        "alarm",
        {"who": "ops"},
        7,
        ["t"],
    )
    cause = added["cause"]
    assert (cause["id"], cause["queue"], cause["name"], cause["error"]) == (job, "q", "pay", "boom")
    assert (cause["reason"], cause["errorType"], cause["attempts"]) == (
        "max_attempts_exceeded",
        "app.Broken",
        2,
    )
    (line,) = driver.ask(cmd="GetLogs", id=job)["data"]["logs"]
    assert added["id"] in line["message"]
    driver.restart()
    assert driver.ask(cmd="PULL", queue="q")["job"]["cause"] == cause


@pytest.mark.parametrize("how", ["timeout", "stalled", "unrecoverable", "removed"])
def test_however_it_has_failed_for_good(driver: Driver, how: str) -> None:
    driver.ask(cmd="PUSH", queue="q", data=1)  # so that the queue is there
    driver.ask(cmd="PULL", queue="q")
    fields = {"timeout": 50} if how == "timeout" else {"removeOnFail": how == "removed"}
    job = driver.ask(cmd="PUSH", queue="q", data=1, maxAttempts=1, onDead=call(), **fields)["id"]
    if how in ("unrecoverable", "removed"):
        die(driver, job, unrecoverable=True)
    else:
        driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=100)
        for _ in range(3):
            driver.tick(driver.now + 10_000)
    assert [each["name"] for each in waiting(driver)] == ["alarm"]


@pytest.mark.parametrize("how", ["cancelled", "discarded", "expired", "retried by itself"])
def test_not_where_somebody_wanted_it_or_it_is_not_for_good(driver: Driver, how: str) -> None:
    if how == "retried by itself":
        config = {"autoRetry": True, "autoRetryInterval": 1000, "maxAutoRetries": 1}
        driver.ask(cmd="SetDlqConfig", queue="q", config=config)
    ttl = {"ttl": 100} if how == "expired" else {}
    job = driver.ask(cmd="PUSH", queue="q", data=1, maxAttempts=1, onDead=call(), **ttl)["id"]
    if how == "cancelled":
        driver.ask(cmd="PULL", queue="q")
        driver.ask(cmd="Cancel", id=job, running=True)
        driver.ask(cmd="FAIL", id=job, error="stopped")
    elif how == "discarded":
        driver.ask(cmd="Discard", id=job)
    elif how == "expired":
        driver.tick(driver.now + 1000)
        driver.ask(cmd="PULL", queue="q")
    else:
        die(driver, job)
    assert waiting(driver) == []
    if how == "retried by itself":
        for _ in range(20):
            driver.tick(driver.now + 10_000)
        die(driver, job)
        assert [each["name"] for each in waiting(driver)] == ["alarm"]


@pytest.mark.parametrize(
    ("on_dead", "error"),
    [
        ({"queue": "no such name"}, "onDead: "),
        ({"uniqueKey": "k"}, "onDead.uniqueKey is unknown; there are queue, name, data"),
        ({"onDead": {}}, "onDead.onDead is unknown"),
        ({"maxAttempts": 0}, "onDead.maxAttempts must be at least 1"),
        ({"data": b"\xc1"}, None),
        (5, "onDead must be a map"),
    ],
)
def test_what_cannot_be_added_later_is_refused_now(driver: Driver, on_dead: Any, error: str | None) -> None:
    answer = driver.ask(cmd="PUSH", queue="q", data=1, onDead=on_dead)
    assert answer["ok"] is (error is None)
    assert answer.get("error", "").startswith(error or "")


def count_by_cause(world: World) -> Counter[str]:
    found: Counter[str] = Counter()
    for queue in QUEUES:
        answer = world.ask(cmd="GetJobs", queue=queue, limit=1000)
        assert answer is not None
        found.update(job["cause"]["id"] for job in answer["jobs"] if "cause" in job)
    return found


@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_exactly_once_over_shards_that_die(tmp_path: Path, shards: int, seed: int) -> None:
    world = World(tmp_path, shards, seed, crash_rate=0.08, cut_rate=0.03)
    jobs: dict[str, str] = {}
    for number in range(15):
        queue, other = world.rng.choice(QUEUES), world.rng.choice(QUEUES)
        job = f"job-{number}"
        jobs[job] = queue
        while (
            world.ask(cmd="PUSH", queue=queue, data=number, jobId=job, maxAttempts=1, onDead=call(other))
            is None
        ):
            pass
    for job in jobs:
        while (found := world.ask(cmd="GetState", id=job)) is None or found["state"] != "failed":
            for queue in QUEUES:
                world.ask(cmd="PULLB", queue=queue, count=100)
            world.ask(cmd="FAIL", id=job, error="boom")
    assert world.crashes
    world.calm()
    assert count_by_cause(world) == Counter(list(jobs))
    for shard in world.shards:
        state = shard.engine.state
        assert not any((state.calls, state.died, state.asked))
        left = shard.store.database.connection.execute("select kind from records where kind = 'call'")
        assert left.fetchall() == []
    world.close()


def test_a_second_question_adds_nothing_even_if_the_job_is_gone(tmp_path: Path) -> None:
    """The sender dies before it has heard the answer; meanwhile what was added has run, and was removed."""
    world = World(tmp_path, 2, 1, crash_rate=0.0)
    here, there = (
        "alpha",
        next(
            each for each in QUEUES if world._shard_of({"queue": each}) != world._shard_of({"queue": "alpha"})
        ),
    )
    sender, other = world._shard_of({"queue": here}), world._shard_of({"queue": there})
    on_dead = call(there, removeOnComplete=True)
    world.ask(cmd="PUSH", queue=here, data=1, jobId="j", maxAttempts=1, onDead=on_dead)
    world.ask(cmd="PULL", queue=here)
    world.settle()
    world.send(at=sender, cmd="FAIL", id="j", error="boom")
    world.deliver(sender, other)  # the question
    pulled = world.send(cmd="PULL", queue=there)
    added = world.replies[pulled]["job"]
    world.send(at=other, cmd="ACK", id=added["id"])
    world.crash(sender)
    world.settle()
    assert count_by_cause(world) == Counter()
    answer = world.ask(cmd="PULL", queue=there)
    assert answer is not None
    assert answer["job"] is None
    assert not world.shards[other].engine.state.called
    world.close()
