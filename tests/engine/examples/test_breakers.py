"""Circuit breakers: when they open, what they hold back, how they try again, and what survives a restart."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import START, Driver

PAUSE = 30_000


def push(driver: Driver, name: str = "call", count: int = 1, **fields: Any) -> list[str]:
    jobs = [{"data": n, "name": name, "maxAttempts": 1, **fields} for n in range(count)]
    return list(driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"])


def pull(driver: Driver, count: int = 1) -> list[str]:
    return [job["id"] for job in driver.ask(cmd="PULLB", queue="q", count=count)["jobs"]]


def fail(driver: Driver, count: int = 1, name: str = "call", *types: str) -> None:
    """Push that many jobs, take them, and have them fail."""
    push(driver, name, count)
    for job in pull(driver, count):
        assert driver.ask(cmd="FAIL", id=job, error="503", errorTypes=list(types))["ok"]


def breakers(driver: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="ListBreakers", queue="q")["breakers"]
    return found


def state(driver: Driver) -> str:
    (breaker,) = breakers(driver)
    return str(breaker["state"])


def protect(driver: Driver, name: str | None = None, **config: Any) -> None:
    config = {"failures": 3, "pause": PAUSE, **config}
    assert driver.ask(cmd="SetBreaker", queue="q", config=config, **({"name": name} if name else {}))["ok"]


@pytest.mark.parametrize("name", [None, "call"])
def test_it_opens_rests_tries_and_closes(driver: Driver, name: str | None) -> None:
    protect(driver, name)
    fail(driver, 2)
    assert state(driver) == "closed"
    fail(driver)
    (shown,) = breakers(driver)
    assert (shown["state"], shown["name"], shown["error"], shown["opened"]) == ("open", name, "503", 1)
    assert shown["until"] == START + PAUSE
    jobs = push(driver, count=3)
    assert pull(driver, 10) == []
    why = driver.ask(cmd="WhyWaiting", id=jobs[0])["data"]["reasons"]
    reason = next(each for each in why if each["kind"] == "breaker")
    assert reason["until"] == START + PAUSE
    assert reason["text"].endswith("is open: 503")
    driver.restart()  # what is open stays open
    assert (state(driver), pull(driver, 10)) == ("open", [])
    driver.tick(START + PAUSE)
    assert state(driver) == "half-open"
    assert pull(driver, 10) == jobs[:1]  # one to try
    assert pull(driver, 10) == []
    assert "breaker" in [each["kind"] for each in driver.ask(cmd="WhyWaiting", id=jobs[1])["data"]["reasons"]]
    driver.ask(cmd="ACK", id=jobs[0])
    assert state(driver) == "closed"
    driver.tick(driver.now + 1)
    assert pull(driver, 10) == jobs[1:]


@pytest.mark.parametrize("name", [None, "call"])
def test_a_trial_that_fails_doubles_the_pause(driver: Driver, name: str | None) -> None:
    protect(driver, name, maxPause=3 * PAUSE, trials=2)
    fail(driver, 3)
    jobs = push(driver, count=20)
    pauses = []
    for _ in range(4):
        until = int(breakers(driver)[0]["until"])
        pauses.append(until - driver.now)
        driver.tick(until)
        tried = pull(driver, 10)
        assert len(tried) == 2
        driver.ask(cmd="ACK", id=tried[0])
        driver.ask(cmd="FAIL", id=tried[1], error="still 503")
        assert pull(driver, 10) == []
    assert pauses == [PAUSE, 2 * PAUSE, 3 * PAUSE, 3 * PAUSE]
    driver.tick(int(breakers(driver)[0]["until"]))
    for job in pull(driver, 10):
        driver.ask(cmd="ACK", id=job)
    assert state(driver) == "closed"
    driver.tick(driver.now + 1)
    left = pull(driver, 20)
    assert left == jobs[-len(left) :]  # in their order
    fail(driver, 3)
    assert breakers(driver)[0]["until"] == driver.now + PAUSE  # and the pause begins anew


def test_a_success_in_between_counts(driver: Driver) -> None:
    protect(driver)
    for _ in range(5):
        fail(driver, 2)
        push(driver)
        driver.ask(cmd="ACKB", ids=pull(driver))
    assert state(driver) == "closed"


def test_other_names_go_on(driver: Driver) -> None:
    protect(driver, "call")
    fail(driver, 3)
    held, free = push(driver, "call", 4), push(driver, "mail", 2)
    assert pull(driver, 10) == free
    assert breakers(driver)[0]["held"] == 4
    counts = driver.ask(cmd="GetJobCounts", queue="q")["counts"]
    assert counts["waiting"] == 4
    assert driver.ask(cmd="GetCountsPerPriority", queue="q")["counts"] == {"0": 4}
    listed = driver.ask(cmd="GetJobs", queue="q", state="waiting")["jobs"]
    assert [job["id"] for job in listed] == held
    # what is held can be removed, moved and reordered like any other job
    driver.ask(cmd="Cancel", id=held[0])
    driver.ask(cmd="ChangePriority", id=held[3], priority=5)
    driver.ask(cmd="MoveToDelayed", id=held[1], delay=5)
    driver.ask(cmd="ResetBreaker", queue="q", name="call")
    driver.tick(driver.now + 10)
    assert pull(driver, 10) == [held[3], held[2], held[1]]


def test_jobs_with_groups_are_held_too(driver: Driver) -> None:
    protect(driver, "call")
    fail(driver, 3)
    held = push(driver, "call", 2, groupId="acme") + push(driver, "call", 1, groupId="beta")
    free = push(driver, "mail", 1, groupId="acme")
    rule = {"concurrency": 10}
    pulled = driver.ask(cmd="PULLB", queue="q", count=10, group=rule)["jobs"]
    assert [job["id"] for job in pulled] == free
    driver.ask(cmd="ResetBreaker", queue="q", name="call")
    driver.tick(driver.now + 1)
    pulled = driver.ask(cmd="PULLB", queue="q", count=10, group=rule)["jobs"]
    assert {job["id"] for job in pulled} == set(held)


@pytest.mark.parametrize("name", [None, "call"])
def test_a_parked_pull_gets_the_trial(driver: Driver, name: str | None) -> None:
    protect(driver, name)
    fail(driver, 3)
    (job,) = push(driver)
    assert driver.execute(9, msgpack.packb({"cmd": "PULL", "queue": "q", "timeout": 60_000})) == []
    assert driver.tick(START + PAUSE - 1) == []
    assert driver.shard.engine.next_deadline() <= START + PAUSE
    ((conn, reply),) = driver.tick(START + PAUSE)
    assert (conn, reply["job"]["id"]) == (9, job)


def test_a_trial_that_comes_to_nothing_is_no_trial(driver: Driver) -> None:
    protect(driver)
    fail(driver, 3)
    jobs = push(driver, count=2)
    driver.tick(START + PAUSE)
    assert pull(driver) == jobs[:1]
    driver.ask(cmd="FAIL", id=jobs[0], interrupted=True)
    assert state(driver) == "half-open"
    assert pull(driver) == jobs[:1]
    driver.ask(cmd="FAIL", id=jobs[0], error="no")
    assert state(driver) == "open"


def test_only_the_errors_that_count(driver: Driver) -> None:
    protect(driver, errors=["ConnectionError"])
    fail(driver, 5, "call", "ValueError")
    assert state(driver) == "closed"
    fail(driver, 3, "call", "ConnectionResetError", "ConnectionError")
    assert state(driver) == "open"
    push(driver)
    driver.tick(START + PAUSE)
    (job,) = pull(driver)
    driver.ask(cmd="FAIL", id=job, error="mine", errorTypes=["ValueError"])  # what it guards has answered
    assert state(driver) == "closed"


def test_a_part_of_the_attempts(driver: Driver) -> None:
    protect(driver, rate=0.5, window=10_000, failures=4)

    def attempts(good: int, bad: int) -> None:
        push(driver, count=good)
        driver.ask(cmd="ACKB", ids=pull(driver, good) if good else [])
        fail(driver, bad)

    attempts(10, 4)
    assert (state(driver), breakers(driver)[0]["failures"]) == ("closed", 4)
    driver.tick(driver.now + 20_000)  # the window has passed
    attempts(3, 3)
    assert state(driver) == "closed"  # too few
    attempts(0, 1)
    assert state(driver) == "open"


def test_by_hand(driver: Driver) -> None:
    assert driver.ask(cmd="TripBreaker", queue="q")["error"] == "There is no circuit breaker of the queue q"
    protect(driver)
    jobs = push(driver, count=2)
    tripped = driver.ask(cmd="TripBreaker", queue="q", pause=5000, reason="the bank is away")["breaker"]
    assert (tripped["state"], tripped["until"], tripped["error"]) == (
        "open",
        START + 5000,
        "the bank is away",
    )
    assert pull(driver) == []
    assert driver.ask(cmd="ResetBreaker", queue="q")["breaker"]["state"] == "closed"
    assert pull(driver) == jobs[:1]
    driver.ask(cmd="TripBreaker", queue="q")
    driver.ask(cmd="ClearBreaker", queue="q")
    assert breakers(driver) == []
    assert pull(driver) == jobs[1:]
    assert driver.rows("select count(*) from records where kind = 'breaker'") == [(0,)]
    assert driver.shard.engine.state.queues["q"].limits is None


def test_changes_keep_the_state(driver: Driver) -> None:
    protect(driver)
    fail(driver, 3)
    protect(driver, failures=7)
    (shown,) = breakers(driver)
    assert (shown["state"], shown["config"]["failures"], shown["config"]["pause"]) == ("open", 7, PAUSE)
    answer = driver.ask(cmd="SetBreaker", queue="q", config={"failures": 0})
    assert answer["error"] == "failures must be at least 1"
    answer = driver.ask(cmd="SetBreaker", queue="q", config={"threshold": 1})
    assert answer["error"].startswith("config.threshold is unknown")
    assert driver.ask(cmd="Obliterate", queue="q")["ok"]
    driver.restart()
    assert driver.ask(cmd="ListBreakers")["breakers"] == []


def test_many_held_jobs_are_moved_in_pieces(driver: Driver) -> None:
    protect(driver, "call")
    fail(driver, 3)
    held = push(driver, "call", 7_000)
    (free,) = push(driver, "mail")
    for _ in range(5):
        if found := pull(driver):
            break
        driver.tick(driver.now + 1)
    assert found == [free]
    driver.ask(cmd="ResetBreaker", queue="q", name="call")
    for _ in range(5):
        driver.tick(driver.now + 1)
    assert pull(driver, 1000) == held[:1000]
