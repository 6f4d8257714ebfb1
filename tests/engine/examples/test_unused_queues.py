"""Queues that nobody uses any more disappear from lists; those that somebody needs stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver

HOUR_MS = 3_600_000


def use(driver: Driver, queue: str = "q", *, keep: bool = False) -> None:
    """A job runs and is gone."""
    job_id = driver.push(queue=queue, removeOnComplete=not keep)
    driver.ask(cmd="PULL", queue=queue)
    driver.ask(cmd="ACK", id=job_id)


def listed(driver: Driver) -> list[str]:
    return [queue["name"] for queue in driver.ask(cmd="ListQueues")["queues"]]


def pass_time(driver: Driver, ms: int = 100_000) -> None:
    for _ in range(20):
        driver.tick(driver.now + ms // 20)
        driver.commit()


def test_a_queue_that_was_emptied_goes_after_a_minute_and_comes_back(driver: Driver) -> None:
    use(driver)
    pass_time(driver, 50_000)
    assert listed(driver) == ["q"]
    pass_time(driver, 50_000)
    assert listed(driver) == []
    assert driver.rows("select * from queues") == []
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["waiting"] == 0
    use(driver, keep=True)
    assert listed(driver) == ["q"]
    pass_time(driver)
    assert listed(driver) == ["q"]


def test_one_that_is_used_now_and_then_stays(driver: Driver) -> None:
    for _ in range(5):
        use(driver)
        pass_time(driver, 40_000)
        assert listed(driver) == ["q"]


@pytest.mark.parametrize(
    "command",
    [
        {"cmd": "Pause"},
        {"cmd": "RateLimit", "limit": 5},
        {"cmd": "SetConcurrency", "limit": 5},
        {"cmd": "SetGroupDefaults", "config": {"concurrency": 5}},
        {"cmd": "SetGroupWeight", "groupId": "a", "weight": 5},
        {"cmd": "SetDlqConfig", "config": {"maxEntries": 5}},
        {"cmd": "SetBounds", "config": {"maxWaiting": 5}},
        {"cmd": "SetBreaker", "config": {}},
        {"cmd": "Cron", "name": "c", "data": 1, "repeatEvery": HOUR_MS},
        {"cmd": "PUSH", "delay": HOUR_MS},
        {
            "cmd": "PUSH",
            "uniqueKey": "k",
            "removeOnComplete": True,
            "dedup": {"ttl": HOUR_MS, "onConflict": "keep"},
        },
    ],
    ids=lambda command: command["cmd"],
)
def test_one_that_somebody_needs_stays(driver: Driver, command: dict[str, Any]) -> None:
    driver.ask(**command, queue="q")
    use(driver)
    pass_time(driver)
    assert listed(driver) == ["q"]


def test_one_that_workers_wait_at_stays(driver: Driver) -> None:
    use(driver)
    driver.shard.engine.worker_presence(["q"], present=True)
    pass_time(driver)
    assert listed(driver) == ["q"]
    driver.shard.engine.worker_presence(["q"], present=False)
    pass_time(driver)
    assert listed(driver) == []


def test_jobs_of_groups_leave_nothing_behind(driver: Driver) -> None:
    driver.push(groupId="a", removeOnComplete=True)
    driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    pass_time(driver)
    assert listed(driver) == []


def test_it_stays_gone_after_a_crash_and_its_number_confuses_nobody(tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "jobs.db"))
    use(driver)
    pass_time(driver)
    driver.restart()
    assert listed(driver) == []
    use(driver, "other", keep=True)
    driver.restart()
    assert listed(driver) == ["other"]
    events = driver.ask(cmd="GetEvents")["events"]
    assert {event["queue"] for event in events if "queue" in event} >= {"q", "other"}
    driver.close()
