"""Work that no command asked for goes in pieces: no tick moves more jobs than BUDGET says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from shardproc.engine.state import BUDGET

MANY = 2 * BUDGET + 500


def fill(driver: Driver, **options: Any) -> None:
    for start in range(0, MANY, 1000):
        driver.ask(cmd="PUSHB", queue="q", jobs=[options] * min(1000, MANY - start))


def pull_all(driver: Driver, **options: Any) -> None:
    for _ in range(0, MANY, 1000):
        driver.ask(cmd="PULLB", queue="q", count=1000, **options)


def counts(driver: Driver) -> dict[str, int]:
    found = driver.ask(2, cmd="GetJobCounts", queue="q")["counts"]
    assert isinstance(found, dict)
    return found


def steps(driver: Driver, left: Callable[[], int], at: int) -> list[int]:
    """How many jobs each tick moved, all of them at ``at``."""
    engine, moved = driver.shard.engine, []
    driver.now = at
    before = left()
    while left():
        assert not moved or engine.next_deadline() <= at, "it would sleep with work left"
        engine.tick(at)
        driver.commit()
        moved.append(before - left())
        before = left()
        assert len(moved) < 100
    assert engine.next_deadline() > at
    return moved


def test_delays_that_end_together(driver: Driver) -> None:
    fill(driver, delay=100)
    moved = steps(driver, lambda: counts(driver)["delayed"], driver.now + 100)
    assert max(moved) <= BUDGET
    assert counts(driver)["waiting"] == MANY


def test_timeouts_that_end_together(driver: Driver) -> None:
    fill(driver, timeout=100, backoff=86_400_000)
    pull_all(driver)
    moved = steps(driver, lambda: counts(driver)["active"], driver.now + 100)
    assert max(moved) <= BUDGET
    assert counts(driver)["delayed"] == MANY


def test_locks_that_run_out_together(driver: Driver) -> None:
    fill(driver)
    pull_all(driver, owner="w", lockTtl=1000)
    moved = steps(driver, lambda: counts(driver)["active"], driver.now + 6000)
    assert max(moved) <= BUDGET
    assert counts(driver)["waiting"] == MANY


def test_who_is_heard_while_the_sweep_goes_on_keeps_his_job(driver: Driver) -> None:
    fill(driver)
    pull_all(driver, owner="w", lockTtl=1000)
    last = list(driver.shard.engine.state.jobs.values())[-1]
    assert last.lock is not None
    driver.now += 6000
    driver.shard.engine.tick(driver.now)
    driver.now += 1
    driver.execute(
        1, msgpack.packb({"cmd": "JobHeartbeat", "id": last.id, "token": last.lock.token, "duration": 60_000})
    )
    driver.tick(driver.now)
    assert counts(driver) | {"active": 1, "waiting": MANY - 1} == counts(driver)


@pytest.mark.parametrize("severed", [True, False])
def test_a_connection_that_held_many_jobs(driver: Driver, severed: bool) -> None:
    fill(driver)
    pull_all(driver, owner="w")
    driver.tick(driver.now)
    driver.shard.engine.disconnect(1, driver.now, severed=severed)
    state = driver.shard.engine.state
    done = counts(driver)["waiting"] + len(state.orphans)
    assert 0 < done <= BUDGET
    moved = steps(driver, lambda: MANY - counts(driver)["waiting"] - len(state.orphans), driver.now)
    assert max(moved) <= BUDGET
    assert len(state.orphans) == (MANY if severed else 0)


@pytest.mark.parametrize("command", ["PULL", "PULLB"])
def test_a_pull_that_meets_many_jobs_whose_ttl_is_over(driver: Driver, command: str) -> None:
    """It waits, as far as it may, until those are away."""
    fill(driver, ttl=100)
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.tick(driver.now + 200)
    count = 5 if command == "PULLB" else None
    empty = driver.ask(1, cmd=command, queue="q", count=count)
    assert not empty.get("job")
    assert not empty.get("jobs")
    assert counts(driver)["waiting"] == MANY + 1 - BUDGET
    request = {"cmd": command, "queue": "q", "timeout": 1000, "reqId": 1}
    driver.execute(1, msgpack.packb(request if count is None else {**request, "count": count}))
    driver.commit()
    assert counts(driver)["waiting"] == MANY + 1 - BUDGET
    ((_, reply),) = driver.tick(driver.now)
    assert (reply.get("job") or reply["jobs"][0])["id"] == job_id
    assert counts(driver)["waiting"] == 0


def test_a_paused_queue_keeps_no_tick_busy(driver: Driver) -> None:
    fill(driver, ttl=100)
    driver.tick(driver.now + 200)
    driver.ask(cmd="PULL", queue="q")
    driver.shard.engine.state.queues["q"].paused = True
    driver.tick(driver.now)
    assert driver.shard.engine.next_deadline() > driver.now
