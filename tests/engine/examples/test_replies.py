"""What clients in other languages read from replies: which numbers they can, and what it means that
something is not there."""

from __future__ import annotations

import msgpack
import pytest
from engine.shard_driver import Driver

YEAR = 365 * 86_400_000
UNDEFINED = msgpack.ExtType(0, b"\0")  # what JavaScript's encoder sends for a value that is undefined


def test_long_numbers_travel_as_floats(driver: Driver) -> None:
    """`Driver` refuses replies with integers beyond 32 bits."""
    job_id = driver.ask(cmd="PUSH", queue="q", groupId="g", keepLogs=2**40, sizeLimit=2**41)["id"]
    job = driver.ask(cmd="GetJob", id=job_id)["job"]
    assert (job["keepLogs"], job["sizeLimit"]) == (2.0**40, 2.0**41)
    driver.ask(cmd="RateLimit", queue="q", limit=2.0**40, duration=YEAR, ttl=YEAR)
    driver.ask(cmd="SetConcurrency", queue="q", limit=2.0**40)
    limits = driver.ask(cmd="GetQueueLimits", queue="q")["data"]["limits"]
    assert limits["rateLimit"] == {"max": 2.0**40, "duration": YEAR}
    assert (limits["rateLimitTtl"], limits["concurrencyLimit"]) == (YEAR, 2.0**40)
    driver.ask(cmd="SetGroupRateLimit", queue="q", groupId="g", max=2**50, duration=2**40)
    rate = driver.ask(cmd="GetGroupRateLimit", queue="q", groupId="g")["data"]["limit"]
    assert rate == {"max": 2.0**50, "duration": 2.0**40}
    driver.ask(cmd="SetGroupConcurrency", queue="q", groupId="g", concurrency=2**50)
    assert driver.ask(cmd="GetGroupConcurrency", queue="q", groupId="g")["data"] == {"concurrency": 2.0**50}
    driver.ask(cmd="RateLimitGroup", queue="q", groupId="g", duration=YEAR)
    assert driver.ask(cmd="GetGroupRateLimitTtl", queue="q", groupId="g")["data"] == {"ttl": YEAR}


def test_short_numbers_stay_whole(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q")
    driver.ask(cmd="RateLimit", queue="q", limit=5.0)
    rate = driver.ask(cmd="GetQueueLimits", queue="q")["data"]["limits"]["rateLimit"]
    assert [type(number) for number in rate.values()] == [int, int]


@pytest.mark.parametrize("results", [None, [UNDEFINED, UNDEFINED]])
def test_no_result_is_none(driver: Driver, results: list[object] | None) -> None:
    """An ACK without a result, or with one that is undefined, leaves the job without one; null is one."""
    parent = driver.ask(cmd="PUSH", queue="p", childrenIds=["one", "two"])["id"]
    driver.ask(cmd="PUSHB", queue="q", jobs=[{"customId": "one"}, {"customId": "two"}, {}])
    third = driver.ask(cmd="PULLB", queue="q", count=3)["jobs"][2]["id"]
    driver.ask(cmd="ACKB", ids=["one", "two"], results=results)
    driver.batch([{"cmd": "ACK", "id": third, "result": None}])
    for job_id, there in (("one", False), ("two", False), (third, True)):
        assert ("returnvalue" in driver.ask(cmd="GetJob", id=job_id)["job"]) == there
        assert ("result" in driver.ask(cmd="GetResult", id=job_id)) == there
        waited = driver.ask(cmd="WaitJob", id=job_id, timeout=0)
        assert waited == {"ok": True, "completed": True, **({"result": None} if there else {})}
    assert driver.ask(cmd="GetChildrenValues", id=parent)["data"] == {"values": {}}


def test_a_completed_job_is_at_a_hundred(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="Progress", id=job_id, progress=30, message="half")
    driver.ask(cmd="ACK", id=job_id)
    job = driver.ask(cmd="GetJob", id=job_id)["job"]
    assert (job["progress"], job["progressMessage"]) == (100, "half")


JAVASCRIPT = ["Error: no", "  at deep (a.js:3)", "", "  at main (a.js:9)"]
PYTHON = [
    "Traceback (most recent call last):",
    '  File "a.py", line 9, in main',
    "    deep()",
    "",
    '  File "a.py", line 3, in deep',
    '    raise LookupError("no")',
    "LookupError: no",
]


@pytest.mark.parametrize(
    ("stack", "kept"),
    [
        (JAVASCRIPT, ["Error: no", "at deep (a.js:3)"]),
        ("\n".join(JAVASCRIPT), ["Error: no", "at deep (a.js:3)"]),
        (PYTHON, ['    raise LookupError("no")', "LookupError: no"]),
        ("\n".join(PYTHON), ['    raise LookupError("no")', "LookupError: no"]),
    ],
)
@pytest.mark.parametrize("limit", [2, 0])
def test_of_a_stack_that_end_is_kept_where_the_error_is(
    driver: Driver, stack: object, kept: list[str], limit: int
) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", stackTraceLimit=limit)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id, error="no", stack=stack)
    assert driver.ask(cmd="GetJob", id=job_id)["job"]["stacktrace"] == kept[:limit]
