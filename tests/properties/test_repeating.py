"""PUSH with ``repeat``: a job that comes back after each completion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from properties.shard_driver import START, Driver

Job = dict[str, Any]


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(str(tmp_path_factory.mktemp("shard") / "shard.db"))
    yield driver
    driver.close()


def take(driver: Driver) -> Job | None:
    job: Job | None = driver.ask(cmd="PULL", queue="q")["job"]
    return job


def complete(driver: Driver) -> Job:
    job = take(driver)
    assert job is not None
    assert driver.ask(cmd="ACK", id=job["id"], result=1)["ok"]
    return job


def waiting(driver: Driver) -> list[Job]:
    return list(driver.ask(cmd="GetJobs", queue="q", state=["waiting", "delayed"])["jobs"])


def wait(driver: Driver, ms: int) -> None:
    driver.tick(driver.now + ms)
    driver.commit()


def test_it_comes_back_after_its_completion(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", data="d", name="n", priority=3, tags=["t"], repeat={"every": 200})
    first = complete(driver)
    assert first["repeat"] == {"every": 200, "limit": None, "count": 0}
    (second,) = waiting(driver)
    assert second["id"] != first["id"]
    assert second["repeat"] == {"every": 200, "limit": None, "count": 1}
    assert (second["createdAt"], second["runAt"]) == (START, START + 200)
    for field in ("data", "name", "priority", "tags", "queue", "maxAttempts"):
        assert second[field] == first[field], field
    wait(driver, 199)
    assert take(driver) is None
    wait(driver, 1)
    assert complete(driver)["id"] == second["id"]
    assert driver.ask(cmd="GetState", id=first["id"])["state"] == "completed"


@pytest.mark.parametrize("limit", [0, 1, 2])
@pytest.mark.parametrize("removed", [True, False])
def test_the_limit_counts_repetitions(driver: Driver, limit: int, removed: bool) -> None:
    repeat = {"every": 100, "limit": limit}
    driver.ask(cmd="PUSH", queue="q", repeat=repeat, removeOnComplete=removed)
    runs = 0
    while waiting(driver):
        complete(driver)
        runs += 1
        wait(driver, 100)
    assert runs == limit + 1


def test_a_job_that_fails_for_good_does_not_come_back(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", repeat={"every": 100}, maxAttempts=1)
    job = take(driver)
    assert job is not None
    driver.ask(cmd="FAIL", id=job["id"])
    assert not waiting(driver)
    driver.ask(cmd="RetryDlq", queue="q")
    complete(driver)
    assert len(waiting(driver)) == 1


def test_a_completed_job_that_is_done_again_is_not_followed_twice(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", repeat={"every": 100})
    first = complete(driver)
    assert driver.ask(cmd="RetryCompleted", queue="q", id=first["id"])["count"] == 1
    driver.restart()
    assert complete(driver)["id"] == first["id"]
    assert len(waiting(driver)) == 1


def test_the_next_one_holds_the_unique_key(driver: Driver) -> None:
    push = {"cmd": "PUSH", "queue": "q", "uniqueKey": "k", "repeat": {"every": 100}}
    driver.ask(**push)
    complete(driver)
    (second,) = waiting(driver)
    assert second["uniqueKey"] == "k"
    assert driver.ask(**push)["id"] == second["id"]
    driver.restart()
    assert driver.ask(**push)["id"] == second["id"]


def test_repetitions_survive_a_restart(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", data=[1], repeat={"every": 100, "limit": 2}, durable=True)
    for count in range(3):
        driver.restart()
        wait(driver, 100)
        job = complete(driver)
        assert (job["data"], job["repeat"]["count"], job["durable"]) == ([1], count, True)
    wait(driver, 100)
    assert not waiting(driver)


def test_a_completion_that_was_not_committed_leaves_one_job(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", repeat={"every": 100})
    job = take(driver)
    assert job is not None
    client = driver.shard.client(1, 2)
    driver.shard.execute(client, b"\x82\xa3cmd\xa3ACK\xa2id\xd9\x24" + job["id"].encode(), START)
    driver.restart()
    assert driver.ask(cmd="Count", queue="q")["count"] == 1
    complete(driver)
    assert len(waiting(driver)) == 1


@pytest.mark.parametrize("every", [0, -5, "x", None])
def test_a_repetition_needs_an_interval(driver: Driver, every: object) -> None:
    reply = driver.execute(1, msgpack.packb({"cmd": "PUSH", "queue": "q", "repeat": {"every": every}}))
    assert reply[0][1]["error"] == "repeat.every must be a positive number of milliseconds, at most a year"
    assert not waiting(driver)
