"""FAILB: many failed attempts in one command; runs that workers give back, or end when their time is over."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import START, Driver

from shardproc.engine.lifecycle.transitions import FREE_INTERRUPTIONS

APPLIED = {"applied": False, "reason": "cancelled"}


def pulled(driver: Driver, count: int, **fields: Any) -> tuple[list[str], list[str]]:
    """Ids and tokens of active jobs."""
    for _ in range(count):
        driver.push(**fields)
    answer = driver.ask(cmd="PULLB", queue="q", count=count, owner="w")
    return [job["id"] for job in answer["jobs"]], answer["tokens"]


def attempts(driver: Driver, job_id: str) -> list[dict[str, Any]]:
    return driver.ask(cmd="GetAttempts", id=job_id)["data"]["attempts"]  # type: ignore[no-any-return]


def test_each_report_is_carried_out_as_fail_does(driver: Driver) -> None:
    ids, tokens = pulled(driver, 4, maxAttempts=2, backoff=1000)
    failures = [
        {"error": "A: 1", "errorTypes": ["A"], "stack": ["one", "two"], "wantsDelay": True, "delay": 70},
        {"error": "B: 2", "unrecoverable": True, "wantsDelay": True},
        {"error": "it stops", "interrupted": True},
        {"error": "D: 4", "removeOnFail": True, "unrecoverable": True},
    ]
    answer = driver.ask(cmd="FAILB", ids=ids, tokens=tokens, failures=failures)
    assert answer == {"ok": True, "results": [{"delay": 70.0}, {}, {}, {}]}
    states = [driver.ask(cmd="GetState", id=job_id)["state"] for job_id in ids]
    assert states == ["delayed", "failed", "waiting", "unknown"]
    (first,) = attempts(driver, ids[0])
    assert (first["error"], first["errorType"], first["stack"]) == ("A: 1", "A", "one\ntwo")
    assert driver.job(ids[2])["attempts"] == 0


def test_one_that_is_refused_changes_nothing_for_the_others(driver: Driver) -> None:
    ids, tokens = pulled(driver, 4, maxAttempts=1)
    driver.ask(2, cmd="Cancel", id=ids[2], running=True)
    answer = driver.ask(
        cmd="FAILB",
        ids=[*ids, "nobody", ids[0]],
        tokens=[tokens[0], "wrong", tokens[2], tokens[3], None, tokens[0]],
        failures=[{"error": f"x{number}"} for number in range(6)],
    )
    kinds = [result.get("refused", {}).get("code") or result.get("data") for result in answer["results"]]
    assert kinds == [None, "LOCK_LOST", APPLIED, None, "LOCK_LOST", "LOCK_LOST"]
    states = [driver.ask(cmd="GetState", id=job_id)["state"] for job_id in ids]
    assert states == ["failed", "active", "cancelled", "failed"]


def test_lists_of_other_lengths_are_refused_as_a_whole(driver: Driver) -> None:
    ids, tokens = pulled(driver, 2)
    for fields in ({"failures": [{}]}, {"failures": [{}, {}], "tokens": tokens[:1]}):
        answer = driver.ask(cmd="FAILB", ids=ids, **{"tokens": tokens, **fields})
        assert answer["ok"] is False
        assert "length must match ids length" in answer["error"]
    assert [driver.job(job_id)["state"] for job_id in ids] == ["active", "active"]


def test_a_job_that_is_given_back_again_and_again_comes_to_an_end(driver: Driver) -> None:
    (job_id,), (token,) = pulled(driver, 1, maxAttempts=2)
    runs = 1
    while driver.job(job_id)["state"] != "failed":
        driver.ask(cmd="FAIL", id=job_id, token=token, error="its worker stopped", interrupted=True)
        answer = driver.ask(cmd="PULL", queue="q", owner="w")
        if answer["job"] is not None:
            token, runs = answer["token"], runs + 1
    assert runs == FREE_INTERRUPTIONS + 2
    assert driver.job(job_id)["attempts"] == 2
    counted = [each["outcome"] for each in attempts(driver, job_id) if each["outcome"] != "interrupted"]
    assert counted == ["stalled"] * 2
    assert "Given back 11 times" in attempts(driver, job_id)[-2]["error"]
    driver.ask(cmd="RetryDlq", queue="q", jobId=job_id)
    answer = driver.ask(cmd="PULL", queue="q", owner="w")
    driver.ask(cmd="FAIL", id=job_id, token=answer["token"], error="stops", interrupted=True)
    assert driver.job(job_id)["attempts"] == 0  # it begins anew


@pytest.mark.parametrize("restart", [False, True])
def test_a_worker_that_ends_its_runs_itself_decides_when_one_is_over(driver: Driver, restart: bool) -> None:
    driver.push(timeout=500, maxAttempts=2, backoff=0)
    answer = driver.ask(cmd="PULLB", queue="q", count=1, owner="w", ownTimeouts=True)
    job_id, token = answer["jobs"][0]["id"], answer["tokens"][0]
    if restart:
        driver.restart()
    driver.ask(cmd="JobHeartbeatB", ids=[job_id], tokens=[token], ownTimeouts=True)
    driver.tick(START + 5_000)
    assert driver.job(job_id)["state"] == "active"
    reply = driver.ask(cmd="FAIL", id=job_id, token=token, timedOut=True, wantsDelay=True)
    assert reply == {"ok": True, "delay": 0.0}
    (attempt,) = attempts(driver, job_id)
    assert (attempt["outcome"], attempt["error"]) == ("timeout", "Job timeout exceeded")


def test_for_all_others_the_server_ends_it(driver: Driver) -> None:
    driver.push(timeout=500, maxAttempts=1)
    answer = driver.ask(cmd="PULLB", queue="q", count=1, owner="w")
    driver.tick(START + 500)
    assert driver.job(answer["jobs"][0]["id"])["state"] == "failed"


def test_a_worker_that_falls_silent_loses_its_jobs_all_the_same(driver: Driver) -> None:
    driver.push(timeout=500, maxAttempts=2)
    answer = driver.ask(cmd="PULLB", queue="q", count=1, owner="w", lockTtl=1000, ownTimeouts=True)
    driver.tick(START + 60_000)
    job = driver.job(answer["jobs"][0]["id"])
    assert (job["state"], job["attempts"]) == ("waiting", 1)
