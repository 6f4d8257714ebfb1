"""Which errors a job is retried after, how long it waits, and what is kept of each attempt."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import Driver


def push(driver: Driver, **fields: Any) -> str:
    return str(driver.ask(cmd="PUSH", queue="q", data=1, **fields)["id"])


def run(driver: Driver, job: str, error: str = "boom", *types: str, **fields: Any) -> dict[str, Any]:
    """Take the job when it is due, and fail it 7 ms later."""
    while driver.ask(cmd="GetState", id=job)["state"] == "delayed":
        driver.tick(int(driver.ask(cmd="GetJob", id=job)["job"]["runAt"]))
    driver.ask(cmd="PULL", queue="q")
    driver.tick(driver.now + 7)
    fields |= {"errorTypes": list(types)} if types else {}
    return driver.ask(cmd="FAIL", id=job, error=error, wantsDelay=True, **fields)


def attempts(driver: Driver, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="GetAttempts", id=job)["data"]["attempts"]
    return found


def state(driver: Driver, job: str) -> str:
    return str(driver.ask(cmd="GetState", id=job)["state"])


def test_waits_that_are_listed(driver: Driver) -> None:
    backoff = {"type": "fixed", "delay": 60_000, "delays": [1000, 5000], "jitter": 0, "maxDelay": 30_000}
    job = push(driver, maxAttempts=9, backoff=backoff)
    assert [run(driver, job)["delay"] for _ in range(4)] == [1000, 5000, 30_000, 30_000]
    driver.restart()
    assert run(driver, job)["delay"] == 30_000
    assert driver.ask(cmd="GetJob", id=job)["job"]["backoffConfig"] == backoff


def test_a_linear_wait(driver: Driver) -> None:
    job = push(driver, maxAttempts=9, backoff={"type": "linear", "delay": 100, "jitter": 0})
    assert [run(driver, job)["delay"] for _ in range(3)] == [100, 200, 300]


@pytest.mark.parametrize(
    ("backoff", "error"),
    [
        (
            {"delay": 1, "maxdelay": 5},
            "backoff.maxdelay is unknown; there are type, delay, jitter, maxDelay,",
        ),
        ({"delay": 1, "delays": []}, "backoff.delays must have at least 1 entry"),
        ({"delay": 1, "maxDelay": -1}, "backoff.maxDelay must be at least 0"),
        ({"delay": 1, "type": "list"}, "backoff.type must be 'fixed' or 'exponential'"),
    ],
)
def test_a_setting_that_is_not_known_is_refused(driver: Driver, backoff: Any, error: str) -> None:
    answer = driver.ask(cmd="PUSH", queue="q", data=1, backoff=backoff)
    assert not answer["ok"]
    assert answer["error"].startswith(error)
    assert driver.rows("select count(*) from jobs") == [(0,)]


def test_only_after_the_errors_that_are_named(driver: Driver) -> None:
    job = push(driver, maxAttempts=9, backoff=0, retryOn=["ConnectionError"])
    assert "delay" in run(driver, job, "away", "ConnectionResetError", "ConnectionError", "OSError")
    driver.restart()
    assert "delay" not in run(driver, job, "wrong", "ValueError")
    assert state(driver, job) == "failed"
    assert driver.ask(cmd="GetJob", id=job)["job"]["retryOn"] == ["ConnectionError"]


def test_never_after_those(driver: Driver) -> None:
    job = push(driver, maxAttempts=9, backoff=0, neverOn=["app.CardDeclined"])
    assert "delay" in run(driver, job)
    assert "delay" in run(driver, job, "away", "ConnectionError")
    assert "delay" not in run(driver, job, "no", "app.Stolen", "app.CardDeclined")
    assert driver.ask(cmd="GetJob", id=job)["job"]["attempts"] == 3


@pytest.mark.parametrize(
    ("rule", "again"), [({"retryOn": ["ValueError"]}, True), ({"neverOn": ["TimeoutError"]}, False)]
)
def test_a_run_that_takes_too_long(driver: Driver, rule: Any, again: bool) -> None:
    job = push(driver, timeout=100, backoff=0, **rule)
    driver.ask(cmd="PULL", queue="q")
    driver.tick(driver.now + 200)
    assert state(driver, job) == ("waiting" if again else "failed")
    assert attempts(driver, job)[0]["errorType"] == "bunqueue.errors.JobTimeout"


def test_what_is_kept_of_each_attempt(driver: Driver) -> None:
    job = push(driver, maxAttempts=3, backoff={"type": "fixed", "delay": 500, "jitter": 0})
    run(driver, job, "one", "httpx.ConnectTimeout", "Exception")
    run(driver, job, "two", delay=40)
    driver.restart()
    run(driver, job, "three", "ValueError")
    kept = [(each["number"], each["errorType"], each["delay"]) for each in attempts(driver, job)]
    assert kept == [(1, "httpx.ConnectTimeout", 500.0), (2, None, 40.0), (3, "ValueError", None)]
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert [(each["errorType"], each["delay"]) for each in entry["attempts"]] == [each[1:] for each in kept]
    assert driver.rows("select error_type from job_history") == [("ValueError",)]
    driver.ask(cmd="PurgeDlq", queue="q")
    assert driver.rows("select count(*) from attempt_notes") == [(0,)]


def test_successes_are_listed_also_after_another_run(driver: Driver) -> None:
    job = push(driver, backoff=0)
    run(driver, job, "one", "ValueError")
    driver.ask(cmd="PULL", queue="q")
    driver.tick(driver.now + 5)
    driver.ask(cmd="ACK", id=job, result=1)
    assert [(each["number"], each["outcome"]) for each in attempts(driver, job)] == [
        (1, "explicit_fail"),
        (2, "completed"),
    ]
    driver.restart()
    driver.ask(cmd="RetryCompleted", queue="q", id=job)
    driver.restart()
    run(driver, job, "late", "OSError", unrecoverable=True)
    listed = attempts(driver, job)
    assert [(each["number"], each["outcome"]) for each in listed] == [
        (1, "explicit_fail"),
        (2, "completed"),
        (3, "explicit_fail"),
    ]
    assert listed[1]["endedAt"] - listed[1]["startedAt"] == 5
    (entry,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert [each["error"] for each in entry["attempts"]] == ["one", "late"]  # failures alone


def test_lines_of_the_log_say_in_which_attempt_they_were_added(driver: Driver) -> None:
    job = push(driver, backoff=100)
    log = lambda text: driver.ask(cmd="AddLog", id=job, message=text)  # noqa: E731
    log("before")
    driver.tick(driver.now + 5)
    for attempt in ("first", "second"):
        driver.ask(cmd="PULL", queue="q")
        driver.tick(driver.now + 5)
        log(attempt)
        driver.tick(driver.now + 5)
        if attempt == "first":
            driver.ask(cmd="FAIL", id=job, error="boom")
            driver.tick(driver.now + 1)
            log("between")
            driver.tick(driver.now + 1000)
    lines = driver.ask(cmd="GetLogs", id=job)["data"]["logs"]
    assert [(line["message"], line.get("attempt")) for line in lines] == [
        ("before", None),
        ("first", 1),
        ("between", None),
        ("second", 2),
    ]
    driver.ask(cmd="ACK", id=job)
    assert driver.ask(cmd="GetLogs", id=job, start=3)["data"]["logs"][0]["attempt"] == 2


def test_jobs_of_a_schedule_have_rules_too(driver: Driver) -> None:
    options = {"neverOn": ["ValueError"], "backoff": {"delay": 5, "delays": [1]}, "maxAttempts": 5}
    driver.ask(cmd="Cron", name="c", queue="q", repeatEvery=1000, data=1, jobOptions=options)
    driver.tick(driver.now + 1000)
    (job,) = driver.ask(cmd="GetJobs", queue="q")["jobs"]
    run(driver, job["id"], "no", "ValueError")
    assert state(driver, job["id"]) == "failed"
