"""WaitJobs, one parked command for the ends of many jobs, and RemoveJob, which is such an end."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from shardproc.engine.lifecycle import job_waiters

Ended = dict[str, Any]


def wait(driver: Driver, *ids: str, conn: int = 5, **fields: Any) -> None:
    """Park a WaitJobs; it must not be answered yet."""
    request = {"cmd": "WaitJobs", "queue": "q", "ids": ids, "reqId": "w", **fields}
    assert driver.execute(conn, msgpack.packb(request)) == []


def told(driver: Driver, conn: int = 5) -> list[list[Ended]]:
    """What was answered to waits, each time."""
    replies = [reply for to, reply in driver.commit() if to == conn and reply.get("reqId") == "w"]
    assert all(reply["ok"] for reply in replies)
    return [reply["ended"] for reply in replies]


def act(driver: Driver, **request: Any) -> None:
    driver.execute(1, msgpack.packb({**request, "reqId": "x"}))


def finish(driver: Driver, job_id: str, **fields: Any) -> None:
    act(driver, cmd="PULL", queue="q")
    act(driver, **{"cmd": "ACK", "id": job_id, **fields})


def test_the_first_that_ends_answers_and_the_others_are_forgotten(driver: Driver) -> None:
    first, second = driver.push(), driver.push()
    wait(driver, second, first, second)
    finish(driver, first, result=[1])
    finish(driver, second, result=2)
    assert told(driver) == [[{"id": first, "state": "completed", "result": [1]}]]
    state, client = driver.shard.engine.state, driver.shard.engine.state.clients[5]
    assert (state.waits, client.waiters, client.slow, client.waits) == ({}, 0, 1, set())
    driver.tick(driver.now + 100_000)
    assert told(driver) == []


def test_what_has_ended_is_told_at_once(driver: Driver) -> None:
    done, dead, alive = driver.push(), driver.push(maxAttempts=1), driver.push()
    finish(driver, done, result={"r": 1})
    finish(driver, dead, cmd="FAIL", error="broken")
    answer = driver.ask(cmd="WaitJobs", queue="q", ids=[alive, done, "nothing", dead])
    assert answer["ended"] == [
        {"id": done, "state": "completed", "result": {"r": 1}},
        {"id": "nothing", "state": "unknown"},
        {
            "id": dead,
            "state": "failed",
            "error": "broken",
            "reason": "max_attempts_exceeded",
            "attempts": 1,
            "cause": "max_attempts",
        },
    ]


def test_none_when_the_time_is_over(driver: Driver) -> None:
    job_id = driver.push()
    wait(driver, job_id, timeout=70)
    assert driver.shard.engine.next_deadline() == driver.now + 70
    driver.tick(driver.now + 70)
    assert told(driver) == [[]]
    assert driver.ask(cmd="WaitJobs", queue="q", ids=[job_id], timeout=0)["ended"] == []
    assert driver.ask(cmd="WaitJobs", queue="q", ids=[])["ended"] == []


@pytest.mark.parametrize(
    ("options", "end", "state", "reason"),
    [
        ({"maxAttempts": 1}, {"cmd": "FAIL", "error": "e"}, "failed", "max_attempts_exceeded"),
        (
            {"maxAttempts": 1, "removeOnFail": True},
            {"cmd": "FAIL", "error": "e"},
            "failed",
            "max_attempts_exceeded",
        ),
        ({}, {"cmd": "Discard"}, "failed", "unknown"),
        ({}, {"cmd": "Cancel", "running": True, "grace": 0}, "cancelled", "cancelled"),
        ({}, {"cmd": "FAIL", "unrecoverable": True}, "failed", "max_attempts_exceeded"),
    ],
)
def test_ends_of_active_jobs(
    driver: Driver, options: dict[str, Any], end: dict[str, Any], state: str, reason: str
) -> None:
    job_id = driver.push(**options)
    wait(driver, job_id)
    finish(driver, job_id, **end)
    (((ended,)),) = told(driver)
    assert (ended["state"], ended["reason"]) == (state, reason)
    assert ended.get("error") == ("Cancelled" if state == "cancelled" else end.get("error"))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"cmd": "Cancel"}, {"state": "cancelled", "error": "Cancelled", "reason": "cancelled"}),
        (
            {"cmd": "Cancel", "reason": "no need"},
            {"state": "cancelled", "error": "Cancelled: no need", "reason": "cancelled"},
        ),
        ({"cmd": "RemoveJob"}, {"state": "unknown"}),
        ({"cmd": "Drain", "queue": "q"}, {"state": "unknown"}),
        ({"cmd": "Obliterate", "queue": "q"}, {"state": "unknown"}),
    ],
)
def test_ends_of_waiting_jobs(driver: Driver, end: dict[str, Any], expected: Ended) -> None:
    job_id = driver.push()
    wait(driver, job_id)
    driver.execute(1, msgpack.packb({"id": job_id, **end, "reqId": "x"}))
    assert told(driver) == [[{"id": job_id, **expected}]]


def test_a_job_whose_ttl_is_over_has_expired(driver: Driver) -> None:
    job_id = driver.push(ttl=10)
    wait(driver, job_id)
    driver.tick(driver.now + 11)
    act(driver, cmd="PULL", queue="q")
    assert told(driver) == [[{"id": job_id, "state": "expired", "reason": "expired"}]]


def test_the_result_of_a_job_that_is_removed_is_told_to_who_waits(driver: Driver) -> None:
    job_id = driver.push(removeOnComplete=True)
    wait(driver, job_id)
    finish(driver, job_id, result=2)
    assert told(driver) == [[{"id": job_id, "state": "completed", "result": 2}]]
    assert driver.ask(cmd="WaitJobs", queue="q", ids=[job_id])["ended"][0]["state"] == "unknown"


def test_an_answer_is_not_too_large(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_waiters, "MAX_ENDED", 3)
    ids = [driver.push() for _ in range(5)]
    for job_id in ids:
        finish(driver, job_id, result="x" * 600)
    assert [each["id"] for each in driver.ask(cmd="WaitJobs", queue="q", ids=ids)["ended"]] == ids[:3]
    monkeypatch.setattr(job_waiters, "MAX_RESULTS", 1000)
    assert [each["id"] for each in driver.ask(cmd="WaitJobs", queue="q", ids=ids)["ended"]] == ids[:2]
    answer = driver.ask(cmd="WaitJobs", queue="q", ids=["x"] * 1001)
    assert answer["error"] == "ids must have at most 1000 entries"


def test_who_leaves_is_forgotten(driver: Driver) -> None:
    first, second = driver.push(), driver.push()
    wait(driver, first, second)
    wait(driver, second, conn=6)
    driver.disconnect(5)
    finish(driver, first)
    finish(driver, second)
    assert told(driver, 6) == [[{"id": second, "state": "completed"}]]


def test_removing(driver: Driver) -> None:
    def remove(job_id: str) -> Any:
        answer = driver.ask(cmd="RemoveJob", id=job_id)
        return answer.get("error") or answer["data"]["removed"]

    done, dead, late, active = (
        driver.push(),
        driver.push(maxAttempts=1),
        driver.push(delay=1000),
        driver.push(),
    )
    own = driver.push(jobId="own")
    finish(driver, done)
    finish(driver, dead, cmd="FAIL")
    act(driver, cmd="PULL", queue="q")
    for job_id in (done, dead, late, own):
        assert remove(job_id) is True
        assert remove(job_id) is False
        assert driver.ask(cmd="GetState", id=job_id)["state"] == "unknown"
    assert remove(active).startswith("Job is active and cannot be removed: cancel it")
    driver.restart()
    assert driver.ask(cmd="Count", queue="q")["count"] == 1
    assert driver.push(jobId="own") == "own"
