"""Cancelling a job that runs: its one end, who is told, and what holds after a restart."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import START, Driver

GRACE = 10_000  # the default
REFUSED = {"ok": True, "data": {"applied": False, "reason": "cancelled"}}


def running(driver: Driver, conn: int = 1, *, signals: bool = True, **fields: Any) -> tuple[str, str]:
    """An active job of a connection: its id and token."""
    job_id = driver.push(**fields)
    answer = driver.ask(conn, cmd="PULL", queue="q", owner="w", signals=signals)
    assert answer["job"]["id"] == job_id
    return job_id, answer["token"]


def cancel(driver: Driver, job_id: str, conn: int = 2, **fields: Any) -> dict[str, Any]:
    return driver.ask(conn, cmd="Cancel", id=job_id, running=True, **fields)


def notices(driver: Driver) -> list[tuple[int, dict[str, Any]]]:
    """What connections were told by the last commit without having asked."""
    told = [(conn, msgpack.unpackb(frame[4:])) for conn, frame in driver.shard.notices]
    assert all(frame["type"] == "cancel" for _, frame in told)
    return [(conn, frame["cancel"]) for conn, frame in told]


def attempts(driver: Driver) -> list[tuple[Any, ...]]:
    return driver.rows("select number, worker, outcome, error from attempts")


# -- asking ------------------------------------------------------------------------------------------------


def test_without_the_word_an_active_job_is_left_alone(driver: Driver) -> None:
    job_id, token = running(driver)
    error = {"ok": False, "error": "Job not found or cannot be cancelled"}
    assert driver.ask(2, cmd="Cancel", id=job_id) == error
    assert notices(driver) == []
    assert "cancelling" not in driver.job(job_id)
    assert driver.ask(cmd="ACK", id=job_id, token=token) == {"ok": True}


def test_who_holds_the_job_is_told_and_the_job_runs_on(driver: Driver) -> None:
    job_id, token = running(driver)
    assert cancel(driver, job_id, reason="too slow", grace=2000) == {"ok": True, "running": True}
    notice = {"id": job_id, "token": token, "reason": "too slow", "grace": 2000}
    assert notices(driver) == [(1, notice)]
    shown = driver.job(job_id)
    assert (shown["state"], shown["cancelling"]) == ("active", True)
    driver.ask(cmd="Ping")
    assert notices(driver) == []


def test_who_does_not_listen_is_told_by_its_heartbeats(driver: Driver) -> None:
    first, token = running(driver, signals=False)
    other, other_token = running(driver, signals=False)
    cancel(driver, first)
    assert notices(driver) == []
    driver.now += 1000
    notice = {"id": first, "token": token, "reason": None, "grace": GRACE - 1000}
    beat = driver.ask(cmd="JobHeartbeat", id=first, token=token)
    assert beat == {"ok": True, "data": {"ok": True, "cancelled": [notice]}}
    both = driver.ask(cmd="JobHeartbeatB", ids=[other, first], tokens=[other_token, token])
    assert both == {"ok": True, "data": {"ok": True, "count": 2, "cancelled": [notice]}}
    assert driver.ask(cmd="JobHeartbeatB", ids=[other, first], tokens=[other_token, "bad"])["data"] == {
        "ok": True,
        "count": 1,
    }


def test_a_job_that_has_not_begun_goes_at_once(driver: Driver) -> None:
    job_id = driver.push()
    assert cancel(driver, job_id) == {"ok": True}
    assert driver.state(job_id) == "unknown"
    assert cancel(driver, job_id) == {"ok": False, "error": "Job not found or cannot be cancelled"}


def test_no_time_at_all_ends_it_at_once(driver: Driver) -> None:
    job_id, token = running(driver)
    assert cancel(driver, job_id, grace=0) == {"ok": True}
    assert notices(driver) == [(1, {"id": job_id, "token": token, "reason": None, "grace": 0})]
    assert driver.state(job_id) == "cancelled"


def test_asking_again_shortens_the_time_and_tells_again(driver: Driver) -> None:
    job_id, _ = running(driver)
    cancel(driver, job_id, reason="first")
    cancel(driver, job_id, grace=500)
    assert [(notice["reason"], notice["grace"]) for _, notice in notices(driver)] == [("first", 500)]
    cancel(driver, job_id, reason="third", grace=60_000)
    assert [(notice["reason"], notice["grace"]) for _, notice in notices(driver)] == [("third", 500)]
    driver.tick(START + 500)
    assert driver.job(job_id)["failedReason"] == "Cancelled: third"


# -- the end -----------------------------------------------------------------------------------------------


def test_a_result_that_comes_after_the_request_is_refused(driver: Driver) -> None:
    job_id, token = running(driver)
    cancel(driver, job_id)
    assert driver.ask(cmd="ACK", id=job_id, token=token, result=1) == REFUSED
    shown = driver.job(job_id)
    assert (shown["state"], shown["failedReason"], shown["attempts"]) == ("cancelled", "Cancelled", 0)
    assert "returnvalue" not in shown
    assert "cancelling" not in shown
    assert shown["timeline"][-1] == {
        "state": "cancelled",
        "timestamp": float(START),
        "error": "Cancelled",
        "attempt": 1,
    }
    assert driver.ask(cmd="ACK", id=job_id, token=token, result=1) == REFUSED


@pytest.mark.parametrize("fields", [{"error": "x"}, {"interrupted": True}, {"unrecoverable": True}])
def test_whatever_its_worker_says_it_is_not_tried_again(driver: Driver, fields: dict[str, Any]) -> None:
    job_id, token = running(driver, maxAttempts=5)
    cancel(driver, job_id, reason="enough")
    assert driver.ask(cmd="FAIL", id=job_id, token=token, **fields) == REFUSED
    assert driver.state(job_id) == "cancelled"
    assert attempts(driver) == [(1, "w", "cancelled", "Cancelled: enough")]
    assert driver.rows("select state, failure_reason from job_history") == [("cancelled", "cancelled")]


def test_in_a_batch_only_what_was_cancelled_is_refused(driver: Driver) -> None:
    jobs = [running(driver) for _ in range(3)]
    ids, tokens = [job_id for job_id, _ in jobs], [token for _, token in jobs]
    cancel(driver, ids[1])
    wrong = driver.ask(cmd="ACKB", ids=ids, tokens=[tokens[0], tokens[1], "bad"])
    assert "Invalid or expired lock token" in wrong["error"]
    assert driver.job(ids[1])["state"] == "active"
    answer = driver.ask(cmd="ACKB", ids=[*ids, ids[1]], tokens=[*tokens, tokens[1]], results=[1, 2, 3, 4])
    assert answer == {"ok": True, "data": {"ignoredIds": [ids[1]] * 2, "ignoredIndices": [1, 3]}}
    assert [driver.state(job_id) for job_id in ids] == ["completed", "cancelled", "completed"]
    assert len(attempts(driver)) == 1


def test_a_worker_that_says_nothing_is_not_waited_for(driver: Driver) -> None:
    job_id, token = running(driver)
    cancel(driver, job_id)
    driver.tick(START + GRACE - 1)
    assert driver.state(job_id) == "active"
    driver.tick(START + GRACE)
    assert driver.state(job_id) == "cancelled"
    assert driver.ask(cmd="ACK", id=job_id, token=token, result=1) == REFUSED
    assert driver.ask(cmd="JobHeartbeatB", ids=[job_id], tokens=[token])["data"]["count"] == 0


def test_its_processing_timeout_may_come_first(driver: Driver) -> None:
    job_id, _ = running(driver, timeout=3000)
    cancel(driver, job_id)
    driver.tick(START + 3000)
    assert driver.state(job_id) == "cancelled"


@pytest.mark.parametrize("severed", [False, True])
def test_the_end_of_its_connection(driver: Driver, severed: bool) -> None:
    job_id, _ = running(driver)
    cancel(driver, job_id)
    driver.disconnect(1, severed=severed)
    driver.commit()
    driver.tick(START)
    assert driver.state(job_id) == ("active" if severed else "cancelled")  # severed: its worker comes back
    driver.tick(START + GRACE)
    assert driver.state(job_id) == "cancelled"


@pytest.mark.parametrize("renewed", [False, True])
def test_the_end_of_its_lock(driver: Driver, renewed: bool) -> None:
    job_id = driver.push()
    token = driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=6000)["token"]
    if renewed:
        driver.ask(cmd="JobHeartbeat", id=job_id, token=token)
    driver.disconnect(1, severed=True)
    cancel(driver, job_id, grace=60_000)
    driver.tick(START + 11_000)
    assert driver.state(job_id) == "cancelled"


@pytest.mark.parametrize("command", ["MoveToDelayed", "MoveToWait", "ChangeDelay", "MoveToWaitingChildren"])
def test_it_cannot_be_put_elsewhere(driver: Driver, command: str) -> None:
    job_id, token = running(driver)
    cancel(driver, job_id)
    answer = driver.ask(cmd=command, id=job_id, token=token, delay=10 if "elay" in command else None)
    assert answer["error"] == f"Job {job_id} is being cancelled: only its end can be reported"
    assert driver.state(job_id) == "active"


def test_to_discard_it_is_its_end(driver: Driver) -> None:
    job_id, _ = running(driver)
    cancel(driver, job_id)
    assert driver.ask(cmd="Discard", id=job_id)["ok"]
    assert driver.state(job_id) == "cancelled"


def test_a_job_without_owner(driver: Driver) -> None:
    job_id = driver.push()
    driver.ask(cmd="PULL", queue="q", signals=True)
    cancel(driver, job_id)
    assert notices(driver) == [(1, {"id": job_id, "token": "", "reason": None, "grace": GRACE})]
    assert driver.ask(cmd="ACK", id=job_id) == REFUSED


def test_a_job_that_leaves_nothing_when_it_fails(driver: Driver) -> None:
    job_id, token = running(driver, removeOnFail=True)
    cancel(driver, job_id)
    assert driver.ask(cmd="FAIL", id=job_id, token=token) == REFUSED
    assert driver.state(job_id) == "unknown"
    (ended,) = driver.ask(cmd="WaitJobs", queue="q", ids=[job_id])["ended"]
    assert (ended["state"], ended["reason"]) == ("cancelled", "cancelled")


# -- who else is told --------------------------------------------------------------------------------------


def test_those_who_wait_and_those_who_listen(driver: Driver) -> None:
    job_id, token = running(driver)
    driver.ask(4, cmd="SubscribeEvents", queue="q")
    driver.execute(5, msgpack.packb({"cmd": "WaitJob", "id": job_id, "timeout": 60_000}))
    cancel(driver, job_id, reason="enough")
    answers = driver.execute(1, msgpack.packb({"cmd": "FAIL", "id": job_id, "token": token}))
    waited = next(reply for conn, reply in answers if conn == 5)
    assert waited == {"ok": True, "completed": False, "state": "cancelled"}
    driver.commit()
    told = [msgpack.unpackb(frame[4:])["event"] for frame in driver.shard.published["q"].frames]
    assert [(event["eventType"], event["terminal"], event["reason"], event["error"]) for event in told] == [
        ("failed", True, "cancelled", "Cancelled: enough")
    ]


def test_it_is_among_the_dead_letters_and_runs_again_only_when_asked(driver: Driver) -> None:
    driver.ask(cmd="SetDlqConfig", queue="q", config={"autoRetry": True, "autoRetryInterval": 1000})
    job_id, token = running(driver)
    cancel(driver, job_id)
    driver.ask(cmd="ACK", id=job_id, token=token)
    (entry,) = driver.ask(cmd="Dlq", queue="q", filter={"reason": "cancelled"})["entries"]
    assert (entry["reason"], entry["nextRetryAt"]) == ("cancelled", None)
    assert [past["reason"] for past in entry["attempts"]] == ["cancelled"]
    assert driver.ask(cmd="GetDlqStats", queue="q")["data"]["stats"]["byReason"]["cancelled"] == 1
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["failed"] == 1
    assert driver.ask(cmd="RetryDlq", queue="q") == {"ok": True, "count": 0, "cancelled": 1}
    assert driver.ask(cmd="RetryDlq", queue="q", filter={"reason": "cancelled"}) == {"ok": True, "count": 1}
    answer = driver.ask(cmd="PULL", queue="q", owner="w")
    assert driver.ask(cmd="ACK", id=job_id, token=answer["token"]) == {"ok": True}
    assert driver.state(job_id) == "completed"


def test_dead_letters_run_again_without_those_that_were_cancelled(driver: Driver) -> None:
    stopped, token = running(driver)
    cancel(driver, stopped)
    driver.ask(cmd="FAIL", id=stopped, token=token)
    failed, token = running(driver)
    driver.ask(cmd="FAIL", id=failed, token=token, unrecoverable=True)
    again = driver.ask(cmd="RetryDlq", queue="q", filter={"newerThan": 0}, count=1)
    assert again == {"ok": True, "count": 1, "cancelled": 1}
    assert (driver.state(stopped), driver.state(failed)) == ("cancelled", "waiting")
    assert driver.ask(cmd="RetryDlq", queue="q", jobId=stopped) == {"ok": True, "count": 1}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("failParentOnFailure", "failed"), ("ignoreDependencyOnFailure", "waiting"), (None, "waiting-children")],
)
def test_the_parent_of_a_cancelled_child(driver: Driver, policy: str | None, expected: str) -> None:
    child, token = running(driver, jobId="child", parentId="parent", **({policy: True} if policy else {}))
    parent = driver.push(jobId="parent", dependsOn=[child], childrenIds=[child])
    cancel(driver, child)
    driver.ask(cmd="FAIL", id=child, token=token)
    assert driver.ask(3, cmd="GetState", id=parent)["state"] == expected


def test_the_key_is_free_and_nothing_is_repeated(driver: Driver) -> None:
    job_id, token = running(driver, uniqueKey="k", repeat={"every": 10})
    cancel(driver, job_id)
    assert driver.push(uniqueKey="k") == job_id
    driver.ask(cmd="FAIL", id=job_id, token=token)
    assert driver.ask(cmd="Count", queue="q")["count"] == 1
    assert driver.push(uniqueKey="k") != job_id


# -- restarts ----------------------------------------------------------------------------------------------


def test_what_was_asked_for_holds_after_a_restart(driver: Driver) -> None:
    job_id, token = running(driver)
    driver.ask(cmd="JobHeartbeat", id=job_id, token=token)
    cancel(driver, job_id, reason="enough")
    again = driver.restarted()
    beat = again.ask(cmd="JobHeartbeatB", ids=[job_id], tokens=[token])["data"]
    assert [notice["reason"] for notice in beat["cancelled"]] == ["enough"]
    assert again.ask(cmd="ACK", id=job_id, token=token) == REFUSED
    after = again.restarted()
    assert after.state(job_id) == "cancelled"
    after.close()


def test_time_that_ran_out_during_a_restart(driver: Driver) -> None:
    job_id, token = running(driver)
    cancel(driver, job_id)
    driver.now += 2 * GRACE
    again = driver.restarted()
    again.tick(again.now)
    assert again.state(job_id) == "cancelled"
    assert again.ask(cmd="ACK", id=job_id, token=token) == REFUSED
    again.close()


def test_a_cancellation_that_was_not_committed_was_not_told(driver: Driver) -> None:
    job_id, token = running(driver)
    driver.execute(2, msgpack.packb({"cmd": "Cancel", "id": job_id, "running": True}))
    again = driver.restarted()
    assert again.ask(cmd="ACK", id=job_id, token=token) == {"ok": True}
    assert again.state(job_id) == "completed"
    again.close()
