"""A dead letter says why it is one: `cause` tells apart what `reason` does not."""

from __future__ import annotations

from typing import Any

from engine.shard_driver import Driver
from support.table import table

ROWS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"maxAttempts": 1}, {"error": "e"}, "max_attempts", "max_attempts_exceeded"),
    ({}, {"error": "e", "unrecoverable": True}, "unrecoverable", "max_attempts_exceeded"),
    ({"maxAttempts": 1}, {"error": "e", "unrecoverable": True}, "unrecoverable", "max_attempts_exceeded"),
    (
        {"neverOn": ["KeyError"]},
        {"error": "e", "errorTypes": ["KeyError"]},
        "never_on",
        "max_attempts_exceeded",
    ),
    (
        {"retryOn": ["OSError"]},
        {"error": "e", "errorTypes": ["KeyError"]},
        "retry_on",
        "max_attempts_exceeded",
    ),
    ({"maxAttempts": 1, "timeout": 5}, {"timedOut": True}, "timeout", "timeout"),
    ({"neverOn": ["TimeoutError"], "timeout": 5}, {"timedOut": True}, "timeout", "timeout"),
]


@table("options, failure, cause, reason", ROWS)
def test_each_cause(
    driver: Driver, options: dict[str, Any], failure: dict[str, Any], cause: str, reason: str
) -> None:
    queue = f"q-{cause}-{len(failure)}-{'-'.join(options)}"
    job_id = driver.push(queue=queue, **options)
    driver.ask(cmd="PULL", queue=queue)
    driver.ask(cmd="FAIL", id=job_id, **failure)
    (entry,) = driver.ask(cmd="Dlq", queue=queue, filter={})["entries"]
    assert (entry["cause"], entry["reason"], entry["attempts"][-1]["reason"]) == (cause, reason, reason)
    (ended,) = driver.ask(cmd="WaitJobs", queue=queue, ids=[job_id])["ended"]
    assert (ended["cause"], ended["reason"]) == (cause, reason)
    stats = driver.ask(cmd="GetDlqStats", queue=queue)["data"]["stats"]
    assert (stats["byCause"], stats["byReason"][reason]) == ({cause: 1}, 1)
    for asked in (cause, reason):
        assert driver.ask(cmd="CountDlq", queue=queue, filter={"reason": asked})["count"] == 1
    other = "stalled" if cause != "stalled" else "timeout"
    assert driver.ask(cmd="CountDlq", queue=queue, filter={"reason": other})["count"] == 0


def test_discarded_and_cancelled(driver: Driver) -> None:
    ids = [driver.push(), driver.push()]
    driver.ask(cmd="Discard", id=ids[0])
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="Cancel", id=ids[1], running=True, grace=0)
    entries = driver.ask(cmd="Dlq", queue="q", filter={})["entries"]
    assert [(entry["cause"], entry["reason"]) for entry in entries] == [
        ("discarded", "unknown"),
        ("cancelled", "cancelled"),
    ]
