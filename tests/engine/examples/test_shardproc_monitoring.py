"""Numbers about a shard: they are those of the jobs it has had."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import START, Driver

from bunqueue.protocol.codes import Code
from shardproc.engine.handlers.views.stats import MAX_QUEUES
from shardproc.engine.memory.history import MINUTE_MS, MINUTES
from shardproc.engine.memory.job_figures import STEPS
from shardproc.engine.memory.vitals import StorageFault, Vitals


def push(driver: Driver, queue: str = "q", **fields: Any) -> str:
    return str(driver.ask(cmd="PUSH", queue=queue, data=1, **fields)["id"])


def work(driver: Driver, wait_ms: int = 0, work_ms: int = 0, queue: str = "q") -> None:
    """Push, wait, pull, work, ack."""
    push(driver, queue)
    driver.tick(driver.now + wait_ms)
    job = driver.ask(cmd="PULL", queue=queue)["job"]
    driver.tick(driver.now + work_ms)
    assert driver.ask(cmd="ACK", id=job["id"])["ok"]


def metrics(driver: Driver) -> dict[str, Any]:
    found: dict[str, Any] = driver.ask(cmd="Metrics")["metrics"]
    return found


def test_totals_and_averages() -> None:
    driver = Driver()
    assert metrics(driver)["avgLatencyMs"] == metrics(driver)["avgProcessingMs"] == 0
    work(driver, wait_ms=10, work_ms=300)
    work(driver, wait_ms=20, work_ms=100, queue="other")
    dead = push(driver, maxAttempts=1)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=dead)
    found = metrics(driver)
    assert {key: found[key] for key in ("totalPushed", "totalPulled", "totalCompleted", "totalFailed")} == {
        "totalPushed": 3,
        "totalPulled": 3,
        "totalCompleted": 2,
        "totalFailed": 1,
    }
    assert (found["totalAttempts"], found["avgLatencyMs"]) == (3, 10)  # also of the one that failed
    assert found["avgProcessingMs"] == pytest.approx(400 / 3)
    assert found["memoryUsageMb"] > 1
    assert found["sqliteSizeMb"] > 0
    assert found["activeConnections"] == 1


def test_a_delay_is_no_latency() -> None:
    driver = Driver()
    push(driver, delay=60_000)
    driver.tick(START + 60_007)
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    assert metrics(driver)["avgLatencyMs"] == 7


def history(driver: Driver, kind: str = "completed", queue: str = "q") -> tuple[int, list[int]]:
    found = driver.ask(cmd="Metrics", queue=queue, type=kind)["data"]
    assert found["count"] == len(found["data"])
    assert found["meta"]["prevCount"] == (found["data"] or [0])[0]
    return found["meta"]["count"], found["data"]


def minute_passes(driver: Driver, minutes: int = 1) -> None:
    driver.tick(driver.now + minutes * MINUTE_MS)


def test_jobs_a_minute() -> None:
    driver = Driver()
    assert history(driver) == (0, [])
    work(driver)
    work(driver)
    assert history(driver) == (2, [2])
    minute_passes(driver)
    assert history(driver) == (2, [0, 2])
    work(driver)
    minute_passes(driver, 3)
    assert history(driver) == (3, [0, 0, 0, 1, 2])
    assert history(driver, "failed") == (0, [0, 0, 0, 0, 0])
    assert history(driver, queue="unknown") == (0, [])
    minute_passes(driver, 10 * MINUTES)
    total, minutes = history(driver)
    assert (total, sum(minutes), len(minutes)) == (3, 0, MINUTES + 1)


def test_idle_minutes_of_a_queue_cost_nothing() -> None:
    driver = Driver()
    for _ in range(3):
        work(driver)
        minute_passes(driver, 100)
    kept = driver.shard.engine.state.queues["q"].history
    assert kept is not None
    assert len(kept.minutes) == 3
    _, minutes = history(driver)
    assert [place for place, count in enumerate(minutes) if count] == [100, 200, 300]
    for _ in range(MINUTES):
        minute_passes(driver)
    assert not kept.minutes
    assert sum(history(driver)[1]) == 0


def test_what_metrics_refuses() -> None:
    driver = Driver()
    kind = {"ok": False, "error": "Metrics type must be 'completed' or 'failed'"}
    assert driver.ask(cmd="Metrics", queue="q") == driver.ask(cmd="Metrics", queue="q", type="x") == kind
    assert driver.ask(cmd="Metrics", type="failed")["error"] == "Metrics queue is required"


def test_prometheus_takes_the_largest_queues() -> None:
    driver = Driver()
    for number in range(MAX_QUEUES + 5):
        push(driver, f"q{number}")
    for _ in range(3):
        push(driver, f"q{MAX_QUEUES + 4}")
    figures = driver.ask(cmd="Prometheus")["data"]
    assert len(figures["queues"]) == MAX_QUEUES
    first = figures["queues"][0]
    assert first["names"][0]["pushed"] == 4
    assert {key: first[key] for key in ("name", "waiting", "delayed", "active", "dlq", "oldest_ms")} == {
        "name": f"q{MAX_QUEUES + 4}",
        "waiting": 4,
        "delayed": 0,
        "active": 0,
        "dlq": 0,
        "oldest_ms": 0.0,
    }
    (shard,) = figures["shards"]
    assert (shard["queues"], shard["waiting"], shard["pushed_total"]) == (
        MAX_QUEUES + 5,
        MAX_QUEUES + 8,
        MAX_QUEUES + 8,
    )


def test_times_of_completed_jobs_by_size() -> None:
    driver = Driver()
    for wait_ms, work_ms in ((0, 1), (1, 2), (3, 4), (4, 5), (10**9, 0)):
        work(driver, wait_ms, work_ms)
    (shard,) = driver.ask(cmd="Prometheus")["data"]["shards"]
    assert shard["waits"]["counts"] == [2, 0, 2, *[0] * (STEPS - 3), 1]
    assert shard["runs"]["counts"] == [2, 1, 1, 1, *[0] * (STEPS - 3)]


def oldest(driver: Driver) -> float:
    (queue,) = driver.ask(cmd="Prometheus")["data"]["queues"]
    return float(queue["oldest_ms"])


def test_how_long_the_oldest_job_is_ready() -> None:
    driver = Driver()
    first = push(driver, delay=1000)
    assert oldest(driver) == 0
    driver.tick(driver.now + 1500)
    push(driver, priority=5)
    push(driver, groupId="g")
    assert oldest(driver) == 500
    driver.ask(cmd="Cancel", id=first)
    assert oldest(driver) == 0
    driver.tick(driver.now + 70)
    assert driver.ask(cmd="PULL", queue="q")["job"]["priority"] == 5
    assert oldest(driver) == 70
    assert driver.ask(cmd="PULL", queue="q")["job"]["groupId"] == "g"
    assert oldest(driver) == 0


def test_a_job_that_is_tried_again_is_ready_since_then() -> None:
    driver = Driver()
    push(driver, backoff=100)
    job = driver.ask(cmd="PULL", queue="q")["job"]
    driver.tick(driver.now + 5000)
    driver.ask(cmd="FAIL", id=job["id"])
    driver.tick(driver.now + 1000)
    assert 0 <= oldest(driver) < 1000


def test_storage_status_tells_of_trouble() -> None:
    driver = Driver()
    fine = {"diskFull": False, "error": None, "since": None, "code": None, "warnings": [], "rooms": []}
    assert driver.ask(cmd="StorageStatus")["data"] == fine
    driver.shard.engine.state.vitals = lambda: Vitals(
        fault=StorageFault("Storage is full", 5, True, Code.STORAGE_FULL)
    )
    fault = fine | {"diskFull": True, "error": "Storage is full", "since": 5.0, "code": "STORAGE_FULL"}
    assert driver.ask(cmd="StorageStatus")["data"] == fault
    assert driver.ask(cmd="DashboardOverview")["data"]["storage"] == fault


def test_the_age_of_the_oldest_waiting_job() -> None:
    driver = Driver()
    push(driver)
    driver.tick(driver.now + 700)
    push(driver)
    assert driver.ask(cmd="DashboardQueues")["data"]["queues"][0]["oldestMs"] == 700


def test_rates_of_queues_are_those_of_the_last_minutes() -> None:
    driver = Driver()
    driver.tick(START - START % MINUTE_MS + MINUTE_MS)

    def rate() -> float:
        return float(driver.ask(cmd="DashboardQueues")["data"]["queues"][0]["completedPerMin"])

    for _ in range(30):
        work(driver)
    driver.tick(driver.now + MINUTE_MS // 2)
    assert rate() == 60
    driver.tick(driver.now + MINUTE_MS)
    assert rate() == 20  # 30 in one and a half minutes
    driver.tick(driver.now + 3 * MINUTE_MS)
    assert rate() == 30 / 4.5
    driver.tick(driver.now + MINUTE_MS)
    assert rate() == 0


def test_dashboards() -> None:
    driver = Driver()
    push(driver)
    push(driver, priority=5)
    push(driver, priority=5, delay=1000)
    dead = push(driver, "dead", maxAttempts=1)
    driver.ask(cmd="PULL", queue="dead")
    driver.ask(cmd="FAIL", id=dead, error="broken")
    queue, other = driver.ask(cmd="DashboardQueues")["data"]["queues"]
    assert queue == {
        "name": "q",
        "waiting": 1,
        "prioritized": 1,
        "delayed": 1,
        "active": 0,
        "dlq": 0,
        "paused": False,
        "completed": 0,
        "totalCompleted": 0,
        "totalFailed": 0,
        "completedPerMin": 0,
        "failedPerMin": 0,
        "oldestMs": 0,
        "blocked": 0,
    }
    assert (other["totalFailed"], other["failedPerMin"] > 0) == (1, True)
    assert (other["name"], other["dlq"]) == ("dead", 1)

    details = driver.ask(cmd="DashboardQueue", queue="q")["data"]
    assert details["priorityCounts"] == {"0": 1, "5": 2}
    assert (details["counts"]["waiting"], details["counts"]["prioritized"]) == (1, 1)
    assert details["dlqPreview"] == []
    details = driver.ask(cmd="DashboardQueue", queue="dead")["data"]
    assert (details["counts"]["failed"], details["counts"]["totalFailed"]) == (1, 1)
    (shown,) = details["dlqPreview"]
    assert (shown["id"], shown["failedReason"], shown["state"]) == (dead, "broken", "failed")
    empty = driver.ask(cmd="DashboardQueue", queue="unknown")["data"]
    assert not any(empty["counts"].values())

    overview = driver.ask(cmd="DashboardOverview")["data"]
    assert overview["stats"] == {
        "waiting": 2,
        "active": 0,
        "delayed": 1,
        "completed": 0,
        "dlq": 1,
        "totalPushed": 4,
        "totalPulled": 1,
        "totalCompleted": 0,
        "totalFailed": 1,
        "uptime": 0.0,
    }


def test_compacting_keeps_every_job() -> None:
    driver = Driver()
    for _ in range(20):
        push(driver)
    assert driver.ask(cmd="CompactMemory") == {"ok": True}
    jobs = driver.ask(cmd="PULLB", queue="q", count=50)["jobs"]
    assert [job["id"] for job in jobs] == sorted(job["id"] for job in jobs)
    assert len(jobs) == 20
