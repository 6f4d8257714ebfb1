"""PUSH with ``repeat``: a job that comes back after each completion."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import START, Driver

Job = dict[str, Any]


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


@pytest.mark.parametrize("every", [0, -5, "x"])
def test_a_repetition_needs_an_interval(driver: Driver, every: object) -> None:
    reply = driver.execute(1, msgpack.packb({"cmd": "PUSH", "queue": "q", "repeat": {"every": every}}))
    assert reply[0][1]["error"] == "repeat.every must be a positive number of milliseconds, at most a year"
    assert not waiting(driver)


@pytest.mark.parametrize("field", ["count", "limit"])
@pytest.mark.parametrize("number", [2**53, 2**62])
def test_repetitions_can_be_counted(driver: Driver, field: str, number: int) -> None:
    """Also those that are still to come."""
    push = {"cmd": "PUSH", "queue": "q"}
    refused = driver.ask(**push, repeat={"every": 100, field: number})
    assert refused["error"] == f"repeat.{field} must be at most {2**53 - 1}"
    assert driver.ask(**push, repeat={"every": 100, field: 2**53 - 1})["ok"]
    for _ in range(3):
        complete(driver)
        driver.restart()
        wait(driver, 100)
    assert len(waiting(driver)) == 1


def test_what_has_happened_to_a_job_is_not_repeated(driver: Driver) -> None:
    config = {"autoRetry": True, "autoRetryInterval": 1000, "maxAutoRetries": 1}
    driver.ask(cmd="SetDlqConfig", queue="q", config=config)
    driver.ask(cmd="PUSH", queue="child", jobId="c", parentId="first", continueParentOnFailure=True)
    family = {"dependsOn": ["c"], "childrenIds": ["c"], "jobId": "first"}
    driver.ask(cmd="PUSH", queue="q", maxAttempts=1, repeat={"every": 100}, **family)
    driver.ask(cmd="PULL", queue="child")
    driver.ask(cmd="FAIL", id="c", error="no", unrecoverable=True)
    for _ in range(2):  # each of them fails once, and is retried by itself once
        first = take(driver)
        assert first is not None
        driver.ask(cmd="FAIL", id=first["id"])
        wait(driver, 120_000)
        assert complete(driver)["id"] == first["id"]
        wait(driver, 100)
    (second,) = waiting(driver)
    assert driver.ask(cmd="GetFailedChildrenValues", id="first")["values"] == {"child:c": "no"}
    assert driver.ask(cmd="GetFailedChildrenValues", id=second["id"])["values"] == {}
    assert driver.rows("select own_id from jobs where id = ?", second["id"]) == [(0,)]


@pytest.mark.parametrize(
    ("repeat", "error"),
    [
        ({}, "repeat needs either every or pattern"),
        ({"every": 5, "pattern": "* * * * *"}, "repeat needs either every or pattern"),
        ({"pattern": "x"}, "Invalid repeat pattern: an expression has 5 fields, or 6 with leading seconds"),
        ({"pattern": "* * * * *", "tz": "Nowhere"}, "Invalid repeat pattern: unknown time zone 'Nowhere'"),
        ({"pattern": "* * * * *", "startDate": 1e15}, "Invalid repeat pattern: the time is out of range"),
    ],
)
def test_a_repetition_has_one_rhythm(driver: Driver, repeat: object, error: str) -> None:
    assert driver.ask(cmd="PUSH", queue="q", repeat=repeat)["error"].startswith(error)
    assert driver.ask(cmd="PUSHB", queue="q", jobs=[{"repeat": repeat}])["error"].startswith(
        f"jobs[0]: {error}"
    )
    assert not waiting(driver)


def test_a_pattern_says_when_the_next_one_runs(driver: Driver) -> None:
    noon = {"pattern": "0 12 * * *", "tz": "Europe/Rome", "limit": 2}
    driver.ask(cmd="PUSH", queue="q", repeat=noon)
    assert complete(driver)["repeat"] == {**noon, "count": 0}
    day = 86_400_000
    for count in (1, 2):
        (job,) = waiting(driver)
        local = (job["runAt"] / 3_600_000 + 1) % 24  # in November
        assert (local, job["repeat"]["count"]) == (12, count)
        assert driver.now < job["runAt"] <= driver.now + day
        driver.restart()
        wait(driver, int(job["runAt"]) - driver.now)
        complete(driver)
    assert not waiting(driver)


def test_the_next_one_runs_between_two_dates(driver: Driver) -> None:
    start, end = START + 5000, START + 5150
    driver.ask(cmd="PUSH", queue="q", repeat={"every": 100, "startDate": start, "endDate": end})
    complete(driver)
    (job,) = waiting(driver)
    assert (job["runAt"], job["repeat"]["startDate"], job["repeat"]["endDate"]) == (start, start, end)
    wait(driver, 5000)
    complete(driver)
    wait(driver, 100)
    complete(driver)
    assert not waiting(driver), "the next time is beyond the end"


def test_an_update_of_a_completed_job_is_for_the_one_that_follows(driver: Driver) -> None:
    first = driver.ask(cmd="PUSH", queue="q", data="old", repeat={"every": 100})["id"]
    for _ in range(3):
        complete(driver)
        wait(driver, 100)
    driver.restart()
    assert driver.ask(cmd="Update", id=first, data="new") == {"ok": True}
    assert complete(driver)["data"] == "new"
    assert [job["data"] for job in waiting(driver)] == ["new"]
    assert driver.ask(cmd="GetJob", id=first)["job"]["data"] == "old"


def test_a_change_right_before_the_completion_is_kept(driver: Driver) -> None:
    """Both in one transaction."""
    job_id = driver.ask(cmd="PUSH", queue="q", data="old")["id"]
    take(driver)
    driver.batch([{"cmd": "Update", "id": job_id, "data": "new"}, {"cmd": "ACK", "id": job_id}])
    assert driver.ask(cmd="GetJob", id=job_id)["job"]["data"] == "new"
