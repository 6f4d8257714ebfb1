"""What jobs have done, by queue and name: counts, and times that include what failed."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import Driver

from shardproc.engine.memory import job_figures


def of_queue(driver: Driver, queue: str = "q") -> dict[str, Any]:
    queues = driver.ask(cmd="Prometheus")["data"]["queues"]
    found: dict[str, Any] = next(each for each in queues if each["name"] == queue)
    return found


def test_a_bad_day_has_times_too(driver: Driver) -> None:
    driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": n, "name": "a", "maxAttempts": 2} for n in range(3)])
    driver.push(name="b", maxAttempts=1)
    driver.tick(driver.now + 100)
    for job in driver.ask(cmd="PULLB", queue="q", count=4)["jobs"]:
        driver.tick(driver.now + 10)
        driver.ask(cmd="FAIL", id=job["id"], error="e", errorTypes=["KeyError"])
    found = of_queue(driver)
    names = {each["name"]: each for each in found["names"]}
    assert names["a"] == {
        "name": "a",
        "pushed": 3,
        "started": 3,
        "completed": 0,
        "failed": 3,
        "retried": 3,
        "dead": 0,
    }
    assert (names["b"]["failed"], names["b"]["dead"], names["b"]["retried"]) == (1, 1, 0)
    assert found["classes"] == [{"outcome": "explicit_fail", "error": "KeyError", "muted": False, "count": 4}]
    assert sum(found["waits"]["counts"]) == sum(found["runs"]["counts"]) == 4
    assert (found["waits"]["sum_ms"], found["runs"]["sum_ms"]) == (400, 10 + 20 + 30 + 40)
    assert (sum(found["totals"]["counts"]), found["totals"]["sum_ms"]) == (1, 140)
    metrics = driver.ask(cmd="Metrics")["metrics"]
    assert (metrics["totalAttempts"], metrics["avgLatencyMs"], metrics["avgProcessingMs"]) == (4, 100, 25)
    latency = driver.ask(cmd="DashboardOverview")["data"]["latency"]
    assert (sum(latency["waits"].values()), sum(latency["totals"].values())) == (4, 1)


def test_every_job_is_counted_once(driver: Driver) -> None:
    done, cut, gone = (driver.push(maxAttempts=1, timeout=timeout) for timeout in (None, 5, None))
    driver.ask(cmd="PULLB", queue="q", count=3)
    driver.ask(cmd="ACK", id=done)
    driver.tick(driver.now + 6)
    driver.ask(cmd="Discard", id=gone)
    (each,) = of_queue(driver)["names"]
    assert [each[name] for name in ("pushed", "started", "completed", "failed", "dead")] == [3, 3, 1, 1, 2]
    driver.ask(cmd="RetryDlq", queue="q", jobId=cut)
    (each,) = of_queue(driver)["names"]
    assert each["pushed"] == 3


def test_names_are_bounded_and_sums_stay(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_figures, "MAX_NAMES", 2)
    monkeypatch.setattr(job_figures, "MAX_OF_SHARD", 4)
    for name in "abcd":
        driver.push(name=name)
    assert {each["name"]: each["pushed"] for each in of_queue(driver)["names"]} == {
        "a": 1,
        "b": 1,
        "other": 2,
    }
    for queue in ("r", "s"):
        driver.push(queue=queue)
    assert of_queue(driver, "s")["names"] == []  # beyond the bound of the shard
    state = driver.shard.engine.state
    assert (state.figures.count, state.figures.gone.pushed) == (4, 1)
    driver.ask(cmd="Obliterate", queue="q")
    assert (state.figures.count, state.figures.gone.pushed) == (1, 5)


def test_whether_somebody_works(driver: Driver) -> None:
    driver.push()
    assert not of_queue(driver)["has_workers"]
    driver.ask(cmd="PULL", queue="q")
    assert of_queue(driver)["has_workers"]
    driver.ask(cmd="Pause", queue="q")
    assert of_queue(driver)["paused"]
