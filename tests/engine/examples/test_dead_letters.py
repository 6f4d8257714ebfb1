"""Dead messages, completed jobs that are kept or not, stalls: with simulated time, and over restarts."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import Driver

from bunqueue.model.retention import Retention
from shardproc.engine.background import retention

DAY = 86_400_000
MINUTE = 60_000


def die(driver: Driver, count: int = 1, queue: str = "q", **options: Any) -> list[str]:
    ids = [driver.ask(cmd="PUSH", queue=queue, maxAttempts=1, **options)["id"] for _ in range(count)]
    driver.ask(cmd="PULLB", queue=queue, count=1000)
    for job_id in ids:
        driver.ask(cmd="FAIL", id=job_id, error="boom")
    return ids


def complete(driver: Driver, count: int = 1, queue: str = "q") -> list[str]:
    driver.ask(cmd="PUSHB", queue=queue, jobs=[{"data": n} for n in range(count)])
    ids = [job["id"] for job in driver.ask(cmd="PULLB", queue=queue, count=count)["jobs"]]
    driver.ask(cmd="ACKB", ids=ids, results=ids)
    return ids


def dead(driver: Driver, queue: str = "q", **chosen: Any) -> list[str]:
    answer = driver.ask(cmd="Dlq", queue=queue, **chosen)
    assert [entry["job"] for entry in answer["entries"]] == answer["jobs"]
    return [job["id"] for job in answer["jobs"]]


def rows(driver: Driver) -> dict[str, int]:
    tables = ("jobs", "completed", "dead_letters", "attempts", "large_outcomes", "locks")
    return {table: driver.rows(f"select count(*) from {table}")[0][0] for table in tables}


# -- listing ---------------------------------------------------------------------------------------


def test_an_entry_tells_the_whole_story(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=2, backoff=0)["id"]
    for error in ("one", "two"):
        driver.ask(cmd="PULL", queue="q")
        driver.tick(driver.now + 7)
        driver.ask(cmd="FAIL", id=job_id, error=error)
    driver = driver.restarted()
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert entry["reason"] == "max_attempts_exceeded"
    assert (entry["error"], entry["enteredAt"], entry["expiresAt"]) == (
        "two",
        driver.now,
        driver.now + 7 * DAY,
    )
    assert (entry["retryCount"], entry["lastRetryAt"], entry["nextRetryAt"]) == (0, None, None)
    told = [(past["attempt"], past["reason"], past["error"], past["duration"]) for past in entry["attempts"]]
    assert told == [(1, "explicit_fail", "one", 7), (2, "max_attempts_exceeded", "two", 7)]
    driver.close()


def test_filters(driver: Driver) -> None:
    (old,) = die(driver)
    driver.tick(driver.now + 1000)
    (young,) = die(driver)
    between = driver.now - 500
    assert dead(driver, filter={"olderThan": between}) == [old]
    assert dead(driver, filter={"newerThan": between}) == [young]
    assert dead(driver, filter={"offset": 1}) == [young]
    assert dead(driver, filter={"limit": 1}) == [old]
    assert dead(driver, filter={"reason": "stalled"}) == []
    assert dead(driver, filter={"expired": True}) == []
    driver.shard.engine.state.maintenance.dlq_at = driver.now + 8 * DAY
    driver.tick(driver.now + 7 * DAY - 1000)
    assert dead(driver, filter={"expired": True}) == [old]
    assert dead(driver, filter={"expired": False}) == [young]
    assert driver.ask(cmd="RetryDlq", queue="q", filter={"expired": False}) == {"ok": True, "count": 1}
    assert dead(driver) == [old]


def test_pages_of_many(driver: Driver) -> None:
    ids = die(driver, 450)
    assert dead(driver) == ids
    assert dead(driver, count=300, filter={"offset": 100}) == ids[100:400]
    assert driver.ask(cmd="GetDlqStats", queue="q")["data"]["stats"]["total"] == 450
    assert driver.ask(cmd="RetryDlq", queue="q", count=250)["count"] == 250
    assert dead(driver) == ids[250:]
    assert driver.ask(cmd="PurgeDlq", queue="q")["count"] == 200
    assert rows(driver)["jobs"] == 250


def test_an_attempt_that_was_interrupted_costs_nothing(driver: Driver) -> None:
    first = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]
    driver.ask(cmd="PUSH", queue="q")
    for _ in range(3):
        pulled = driver.ask(cmd="PULL", queue="q", owner="w")
        assert (pulled["job"]["id"], pulled["job"]["attempts"]) == (first, 0), "in its old place"
        assert driver.ask(cmd="FAIL", id=first, token=pulled["token"], interrupted=True)["ok"]
        driver = driver.restarted()
    assert driver.rows("select distinct outcome from attempts") == [("interrupted",)]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=first, error="now")
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert [past["error"] for past in entry["attempts"]] == ["now"]
    driver.close()


def test_a_completed_job_that_runs_again_keeps_its_story(driver: Driver) -> None:
    (job_id,) = complete(driver)
    assert driver.ask(cmd="RetryCompleted", queue="q", id=job_id)["count"] == 1
    driver = driver.restarted()
    job = driver.ask(cmd="GetJob", id=job_id)["job"]
    assert job["state"] == "waiting"
    assert "returnvalue" not in job
    assert [moment["state"] for moment in job["timeline"]] == ["waiting", "active", "completed", "waiting"]
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 0
    driver.close()


# -- maintenance -------------------------------------------------------------------------------------


def test_old_dead_letters_go(driver: Driver) -> None:
    (old,) = die(driver)
    driver.keep_up(DAY // 4)
    (young,) = die(driver)
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxAge": DAY // 2})
    driver = driver.restarted()
    assert dead(driver) == [old, young]
    driver.keep_up(DAY // 4 + MINUTE + retention.ROUND_MS)
    assert dead(driver) == [young]
    assert rows(driver) == {**rows(driver), "jobs": 1, "attempts": 1, "dead_letters": 1}
    driver.close()


def test_the_oldest_dead_letters_go_when_there_are_too_many(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"maxEntries": 5})
    ids = die(driver, 12)
    other = die(driver, 8, queue="other")
    driver.keep_up(MINUTE + retention.ROUND_MS)
    assert dead(driver) == ids[7:]
    assert dead(driver, queue="other") == other
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["failed"] == 5


def test_dead_letters_are_tried_again_by_themselves(driver: Driver) -> None:
    config = {"autoRetry": True, "autoRetryInterval": 5 * MINUTE, "maxAutoRetries": 2}
    driver.ask(cmd="SetDlqConfig", queue="q", config=config)
    (job_id,) = die(driver)
    for count in range(2):
        (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
        assert (entry["retryCount"], entry["nextRetryAt"]) == (count, driver.now + 5 * MINUTE)
        assert dead(driver, filter={"retriable": True}) == []
        driver = driver.restarted()
        driver.keep_up(5 * MINUTE - 1)
        assert driver.ask(cmd="PULL", queue="q")["job"] is None
        driver.keep_up(MINUTE + retention.ROUND_MS)
        driver = driver.restarted()
        pulled = driver.ask(cmd="PULL", queue="q")["job"]
        assert (pulled["id"], pulled["attempts"]) == (job_id, 0)
        driver.ask(cmd="FAIL", id=job_id, error="again")
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert (entry["retryCount"], entry["nextRetryAt"]) == (2, None)
    assert entry["lastRetryAt"] is not None
    driver.keep_up(10 * MINUTE)
    assert dead(driver) == [job_id]
    driver.ask(cmd="RetryDlq", queue="q")
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id)
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert entry["retryCount"] == 0, "a person began anew"
    driver.close()


def test_completed_jobs_beyond_the_count_go_oldest_first(driver: Driver) -> None:
    driver.shard.engine.state.maintenance.retention = Retention(max_age_s=0, max_count=10)
    ids, other = complete(driver, 600), complete(driver, 10, queue="other")
    die(driver)
    waiting = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.keep_up(2 * retention.ROUND_MS)
    kept = driver.ask(cmd="GetJobs", queue="q", state="completed", limit=1000)["jobs"]
    assert [job["id"] for job in kept] == ids[-10:]
    assert driver.ask(cmd="GetJobCounts", queue="other")["counts"]["completed"] == len(other)
    assert driver.ask(cmd="GetState", id=waiting)["state"] == "waiting"
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"] == {
        **driver.ask(cmd="GetJobCounts", queue="q")["counts"],
        "completed": 10,
        "failed": 1,
    }
    driver = driver.restarted()
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 10
    assert rows(driver)["jobs"] == 10 + 10 + 1 + 1
    driver.close()


def test_no_piece_is_large(driver: Driver) -> None:
    driver.shard.engine.state.maintenance.retention = Retention(max_age_s=0, max_count=1)
    complete(driver, 900)
    before, most = rows(driver)["jobs"], 0
    for _ in range(100):
        driver.tick(max(driver.now + 1, driver.shard.engine.state.maintenance.next_at))
        driver.commit()
        now = rows(driver)["jobs"]
        before, most = now, max(most, before - now)
    assert before == 1
    assert most == retention.PIECE


def test_completed_jobs_go_when_they_are_old_also_behind_young_ones(driver: Driver) -> None:
    driver.shard.engine.state.maintenance.retention = Retention(max_age_s=3600, max_count=0)
    late = driver.ask(cmd="PUSHB", queue="q", jobs=[{"delay": 3_000_000}] * 300)["ids"]
    complete(driver, 600)
    driver.keep_up(3_000_000)
    for _ in range(1):
        taken = driver.ask(cmd="PULLB", queue="q", count=300)["jobs"]
        assert {job["id"] for job in taken} == set(late)
        driver.ask(cmd="ACKB", ids=late)
    driver.keep_up(700_000)
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["completed"] == 300
    driver.keep_up(3_000_000)
    assert rows(driver)["jobs"] == 0


# -- stalls --------------------------------------------------------------------------------------------


def sweeps(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.tick(driver.now + 5000)
    driver.commit()


def test_a_stalled_job_returns_after_two_passes_and_dies_with_the_last_stall(driver: Driver) -> None:
    driver.ask(
        cmd="SetStallConfig", queue="q", config={"stallInterval": 1000, "gracePeriod": 0, "maxStalls": "2"}
    )
    driver.ask(cmd="PUSH", queue="q", maxAttempts=9)
    driver = driver.restarted()
    job_id = driver.ask(cmd="PULL", queue="q")["job"]["id"]
    sweeps(driver, 1)
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "active"
    sweeps(driver, 1)
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "waiting"
    assert driver.ask(cmd="PULL", queue="q")["job"]["stallCount"] == 1
    sweeps(driver, 2)
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert entry["reason"] == "stalled"
    assert [past["reason"] for past in entry["attempts"]] == ["stalled", "stalled"]
    driver.close()


@pytest.mark.parametrize(
    ("config", "options", "owner", "state"),
    [
        ({}, {}, None, "active"),  # 30 s are not over
        ({}, {"stallTimeout": 1000}, None, "waiting"),
        ({}, {"stallTimeout": 1000}, "w", "waiting"),  # asked for: a lock does not protect
        ({"stallInterval": 1000}, {}, "w", "waiting"),
        ({"stallInterval": 1000}, {"stallTimeout": 25_000}, None, "active"),
        ({"stallInterval": 1000, "gracePeriod": 25_000}, {}, None, "active"),
        ({"stallInterval": 1000, "enabled": False}, {}, None, "active"),
    ],
)
def test_what_counts_as_stalled(
    driver: Driver, config: dict[str, Any], options: dict[str, Any], owner: str | None, state: str
) -> None:
    if config:
        driver.ask(cmd="SetStallConfig", queue="q", config=config)
    job_id = driver.ask(cmd="PUSH", queue="q", **options)["id"]
    driver.ask(cmd="PULL", queue="q", owner=owner, lockTtl=600_000 if owner else None)
    sweeps(driver, 4)
    assert driver.ask(cmd="GetState", id=job_id)["state"] == state


def test_a_heartbeat_keeps_a_job(driver: Driver) -> None:
    driver.ask(cmd="SetStallConfig", queue="q", config={"stallInterval": 4000, "gracePeriod": 0})
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.ask(cmd="PULL", queue="q")
    for _ in range(6):
        driver.ask(cmd="JobHeartbeat", id=job_id)
        driver.tick(driver.now + 3000)
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "active"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"cmd": "SetDlqConfig", "config": {"maxEntries": -1}}, "config.maxEntries must be at least 0"),
        ({"cmd": "SetDlqConfig", "config": {"maxEntries": 2e9}}, "maxEntries must be at most 1000000000"),
        (
            {"cmd": "SetDlqConfig", "config": {"maxAutoRetries": "1001"}},
            "maxAutoRetries must be at most 1000",
        ),
        ({"cmd": "SetDlqConfig", "config": {"maxAge": "soon"}}, "config.maxAge must be a number"),
        ({"cmd": "SetStallConfig", "config": {"enabled": "yes"}}, "config.enabled must be true or false"),
        ({"cmd": "SetStallConfig", "config": 5}, "config must be a map"),
        ({"cmd": "SetStallConfig"}, "config is required"),
    ],
)
def test_refused_configurations(driver: Driver, request_: dict[str, Any], error: str) -> None:
    assert driver.ask(queue="q", **request_) == {"ok": False, "error": error}
    assert driver.rows("select * from records") == []


def test_attempts_are_numbered_on_after_a_retry(driver: Driver) -> None:
    job_id = driver.push(maxAttempts=2, backoff=0)
    for life in range(2):
        for _ in range(2):
            token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
            driver.ask(cmd="FAIL", id=job_id, token=token, error="no")
        if life == 0:
            assert driver.ask(cmd="RetryDlq", queue="q")["count"] == 1
    moments = driver.job(job_id)["timeline"]
    assert [moment["attempt"] for moment in moments if moment["state"] == "failed"] == [1, 2, 3, 4]
    assert [moment.get("attempt") for moment in moments if moment["state"] == "waiting"] == [None, 2, None, 4]


def test_a_cancelled_attempt_keeps_its_number(driver: Driver) -> None:
    job_id = driver.push(maxAttempts=2, backoff=0)
    token = driver.ask(3, cmd="PULL", queue="q", owner="w", signals=True)["token"]
    assert driver.ask(cmd="Cancel", id=job_id, running=True)["ok"]
    driver.ask(3, cmd="FAIL", id=job_id, token=token, error="stopped")
    assert driver.ask(cmd="RetryDlq", queue="q", jobId=job_id)["count"] == 1
    token = driver.ask(3, cmd="PULL", queue="q", owner="w")["token"]
    driver.ask(3, cmd="FAIL", id=job_id, token=token, error="no")
    moments = driver.job(job_id)["timeline"]
    ended = [(each["state"], each["attempt"]) for each in moments if each["state"] in ("cancelled", "failed")]
    assert ended == [("cancelled", 1), ("failed", 2)]
