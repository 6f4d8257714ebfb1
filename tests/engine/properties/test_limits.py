"""Rate and concurrency limits: against the clock, over restarts, and for parked pulls."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import budget

PATIENT = 60_000


def push(driver: Driver, count: int) -> list[str]:
    ids: list[str] = driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": n} for n in range(count)])["ids"]
    return ids


def taken(driver: Driver, count: int = 1000) -> int:
    return len(driver.ask(cmd="PULLB", queue="q", count=count, owner="w", lockTtl=86_400_000)["jobs"])


def limits(driver: Driver) -> dict[str, Any]:
    found: dict[str, Any] = driver.ask(cmd="GetQueueLimits", queue="q")["data"]["limits"]
    return found


def park(driver: Driver, name: str, conn: int = 2) -> None:
    pull = {"cmd": "PULL", "queue": "q", "timeout": PATIENT, "owner": "w", "reqId": name}
    assert driver.execute(conn, msgpack.packb(pull)) == []


def until_next(driver: Driver) -> int:
    """How long the shard would sleep, ms."""
    return driver.shard.engine.next_deadline() - driver.now


def served(driver: Driver, to: int) -> list[str]:
    return [reply["reqId"] for _, reply in driver.tick(to) if reply["job"] is not None]


def test_a_burst_and_then_one_at_a_time(driver: Driver) -> None:
    push(driver, 20)
    driver.ask(cmd="RateLimit", queue="q", limit=4, duration=1000)
    assert taken(driver) == 4
    driver.tick(driver.now + 249)
    assert taken(driver) == 0
    driver.tick(driver.now + 1)
    assert taken(driver) == 1
    driver.tick(driver.now + 60_000)
    assert taken(driver) == 4  # never more than that at once


def test_what_is_used_of_a_rate_stays_used_over_a_restart(driver: Driver) -> None:
    push(driver, 5)
    driver.ask(cmd="RateLimit", queue="q", limit=2, duration=86_400_000)
    assert taken(driver, 1) == 1
    driver.restart()
    assert taken(driver) == 1
    driver.now += 1000
    driver.restart()
    assert taken(driver) == 0
    assert limits(driver)["rateLimit"] == {"max": 2, "duration": 86_400_000}


def test_a_rate_with_an_end(driver: Driver) -> None:
    push(driver, 5)
    driver.ask(cmd="RateLimit", queue="q", limit=1, duration=86_400_000, ttl=500)
    assert limits(driver)["rateLimitTtl"] == 500
    assert taken(driver) == 1
    driver.restart()
    driver.tick(driver.now + 499)
    assert (taken(driver), limits(driver)["rateLimitTtl"]) == (0, 1)
    driver.restart()
    driver.tick(driver.now + 1)
    assert limits(driver)["rateLimit"] is None
    assert taken(driver) == 4
    driver.restart()
    assert driver.rows("select * from records") == []


def test_a_pull_finds_that_the_rate_has_ended(driver: Driver) -> None:
    push(driver, 5)
    driver.ask(cmd="RateLimit", queue="q", limit=1, ttl=500)
    assert taken(driver) == 1
    driver.tick(driver.now + 500)
    assert taken(driver) == 4


@pytest.mark.parametrize("limit", [0, 0.0])
def test_a_limit_of_nothing(driver: Driver, limit: float) -> None:
    push(driver, 1)
    driver.ask(cmd="RateLimit", queue="q", limit=limit)
    driver.tick(driver.now + 86_400_000)
    assert taken(driver) == 0
    park(driver, "p")
    assert driver.shard.engine.state.alarms.entries == []  # no time would help


@pytest.mark.parametrize("command", ["RateLimit", "SetConcurrency"])
def test_wrong_limits(driver: Driver, command: str) -> None:
    for wrong in (None, "x", float("nan"), float("inf"), [], True):
        answer = driver.ask(cmd=command, queue="q", limit=wrong)
        assert answer == {"ok": False, "error": "limit must be a finite number"}
    answer = driver.ask(cmd=command, queue="q", limit=-1)
    assert answer == {"ok": False, "error": "limit must be at least 0"}
    assert "invalid characters" in driver.ask(cmd=command, queue="a b", limit=1)["error"]
    assert limits(driver) == {
        "rateLimit": None,
        "rateLimitTtl": -2,
        "concurrencyLimit": None,
        "maxed": False,
    }


def test_a_parked_pull_gets_its_job_when_a_token_comes(driver: Driver) -> None:
    push(driver, 10)
    driver.ask(cmd="RateLimit", queue="q", limit=2, duration=3000)
    assert taken(driver) == 2
    for name in "abc":
        park(driver, name)
    for name in "abc":
        assert until_next(driver) == 1500
        assert served(driver, driver.now + 1499) == []
        assert served(driver, driver.now + 1) == [name]


def test_a_parked_pull_gets_its_job_when_the_rate_ends(driver: Driver) -> None:
    push(driver, 10)
    driver.ask(cmd="RateLimit", queue="q", limit=0, ttl=700)
    park(driver, "a")
    assert until_next(driver) == 700
    assert served(driver, driver.now + 700) == ["a"]


def test_a_parked_pull_gets_its_job_when_a_slot_frees(driver: Driver) -> None:
    push(driver, 10)
    driver.ask(cmd="SetConcurrency", queue="q", limit=1)
    held = driver.ask(cmd="PULL", queue="q", owner="w")
    park(driver, "a")
    park(driver, "b")
    replies = driver.execute(
        1, msgpack.packb({"cmd": "ACK", "id": held["job"]["id"], "token": held["token"]})
    )
    assert [reply.get("reqId") for _, reply in replies] == [None, "a"]


@pytest.mark.parametrize("relief", ["RateLimitClear", "ClearConcurrency", "SetConcurrency", "RateLimit"])
def test_a_parked_pull_gets_its_job_when_the_limit_changes(driver: Driver, relief: str) -> None:
    push(driver, 10)
    driver.ask(cmd="RateLimit" if relief.startswith("Rate") else "SetConcurrency", queue="q", limit=0)
    park(driver, "a")
    change = {"cmd": relief, "queue": "q"} | ({} if "Clear" in relief else {"limit": 1})
    replies = driver.execute(1, msgpack.packb(change))
    assert [reply.get("reqId") for _, reply in replies] == [None, "a"]


def test_active_jobs_count_also_over_a_restart(driver: Driver) -> None:
    push(driver, 10)
    assert taken(driver, 2) == 2
    driver.ask(cmd="SetConcurrency", queue="q", limit=3)
    driver.restart()
    assert limits(driver)["concurrencyLimit"] == 3
    assert limits(driver)["maxed"] is False
    assert taken(driver) == 1
    assert limits(driver)["maxed"] is True


def test_an_expired_job_costs_no_token(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", data="old", ttl=10)
    push(driver, 5)
    driver.ask(cmd="RateLimit", queue="q", limit=1)
    driver.tick(driver.now + 10)
    assert taken(driver) == 1


def test_a_queue_without_limits_has_no_gate(driver: Driver) -> None:
    push(driver, 1)
    queue = driver.shard.engine.state.queues["q"]
    for command in ("RateLimit", "SetConcurrency"):
        driver.ask(cmd=command, queue="q", limit=1)
        assert queue.limits is not None
    driver.ask(cmd="RateLimitClear", queue="q")
    driver.ask(cmd="ClearConcurrency", queue="q")
    assert queue.limits is None
    driver.ask(cmd="ClearConcurrency", queue="q")
    assert queue.limits is None
    driver.restart()
    assert driver.shard.engine.state.queues["q"].limits is None


steps = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 9)), max_size=30)


@given(most=st.integers(1, 7), duration=st.integers(1, 1500), steps=steps)
@settings(max_examples=budget(20, 500))
def test_never_more_than_the_rate_allows(most: int, duration: int, steps: list[tuple[int, int]]) -> None:
    """After every step: the jobs taken are min over all starts of (burst + what was earned since)."""
    driver = Driver()
    push(driver, 300)
    driver.ask(cmd="RateLimit", queue="q", limit=most, duration=duration)
    credits = most * duration  # a ms earns `most`, a job costs `duration`
    for wait, count in steps:
        driver.tick(driver.now + wait)
        credits = min(most * duration, credits + wait * most)
        expected = min(count, credits // duration)
        assert taken(driver, count) == expected
        credits -= expected * duration
    driver.close()
