"""A start looks at the live jobs and few others, finds them all, and knows the counts without counting."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import Driver

from bunqueue.model.retention import Retention
from shardproc.storage import store


def live(driver: Driver) -> dict[str, int]:
    return {job_id: job.seq for job_id, job in driver.shard.engine.state.jobs.items()}


def counts(driver: Driver) -> dict[str, tuple[int, int]]:
    return {name: (q.completed, q.failed) for name, q in driver.shard.engine.state.queues.items()}


def counted(driver: Driver) -> dict[str, tuple[int, int]]:
    """The counts by the rows themselves."""
    number = "select count(*) from {} where queue_id = queues.id"
    query = f"select name, ({number.format('completed')}), ({number.format('dead_letters')}) from queues"
    return {name: (done, dead) for name, done, dead in driver.rows(query)}


@pytest.mark.parametrize("seed", range(6))
def test_any_life_and_many_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(store, "LIVE_STEP", 7)
    monkeypatch.setattr(store, "MANY", 20)
    chance = random.Random(seed)
    driver = Driver(str(tmp_path / "shard.db"))
    for _ in range(250):
        driver.shard.engine.state.maintenance.retention = Retention(
            max_age_s=0, max_count=chance.choice([5, 40])
        )
        queue = chance.choice("ab")
        job: dict[str, Any] = chance.choice(
            [{}, {"delay": 50_000}, {"maxAttempts": 1}, {"removeOnFail": True}]
        )
        steps = ["PUSHB", "finish", "finish", "RetryDlq", "RetryCompleted", "PurgeDlq", "wait"]
        match chance.choice(steps):
            case "PUSHB":
                driver.ask(cmd="PUSHB", queue=queue, jobs=[job] * chance.randint(1, 20))
            case "finish":
                finish(driver, queue, chance)
            case "wait":
                driver.tick(driver.now + chance.choice([10, 20_000]))
                driver.commit()
            case command:
                driver.ask(cmd=command, queue=queue, count=None if command == "PurgeDlq" else 2)
        if chance.random() < 0.1:
            before, numbers = live(driver), counts(driver)
            driver.close()
            driver = Driver(driver.path, now=driver.now)
            assert live(driver) == before
            assert counts(driver) == numbers == counted(driver)
    assert driver.rows("select value from meta where key = 'live_from'") != []
    stale = "select count(*) from stragglers where seq not in (select seq from jobs)"
    assert driver.rows(stale)[0][0] < 400
    driver.close()


def finish(driver: Driver, queue: str, chance: random.Random) -> None:
    jobs = driver.ask(cmd="PULLB", queue=queue, count=chance.randint(1, 30))["jobs"]
    for job in jobs:
        how = chance.random()
        if how < 0.8:
            driver.ask(cmd="ACK", id=job["id"], result=1)
        else:
            driver.ask(cmd="FAIL", id=job["id"], unrecoverable=how > 0.9)


def test_a_start_looks_at_few_finished_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MANY", 100)
    driver = Driver(str(tmp_path / "shard.db"))
    (late,) = driver.ask(cmd="PUSHB", queue="q", jobs=[{"delay": 1e9}])["ids"]
    for _ in range(50):
        driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 100)
        ids = [job["id"] for job in driver.ask(cmd="PULLB", queue="q", count=100)["jobs"]]
        driver.ask(cmd="ACKB", ids=ids)
    for _ in range(50):
        driver.commit()
    ((start,),) = driver.rows("select value from meta where key = 'live_from'")
    assert int(start) > 5001 - 100 - store.LIVE_STEP
    assert driver.rows("select seq from stragglers") == [(1,)]
    driver.close()
    driver = Driver(driver.path, now=driver.now)
    assert list(live(driver)) == [late]
    driver.close()


def test_numbers_go_on_where_everything_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MANY", 0)
    monkeypatch.setattr(store, "LIVE_STEP", 1)
    driver = Driver(str(tmp_path / "shard.db"))
    for _ in range(10):
        driver.ask(cmd="PUSH", queue="q", removeOnComplete=True)
        driver.ask(cmd="ACK", id=driver.ask(cmd="PULL", queue="q")["job"]["id"])
    driver.close()
    for _ in range(2):
        driver = Driver(driver.path, now=driver.now)
        driver.ask(cmd="PUSH", queue="q")
        before = live(driver)
        driver.close()
        driver = Driver(driver.path, now=driver.now)
        assert live(driver) == before
        driver.close()
