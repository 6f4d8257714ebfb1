"""Single jobs: who may take them out of their course, what it leaves behind, their locks and logs."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import START, Driver

MOVES = ("Discard", "MoveToDelayed", "MoveToWait", "ChangeDelay")


def locked(driver: Driver, **fields: Any) -> tuple[str, str]:
    """An active job with a lock of a second: its id and token."""
    job_id = driver.push(**fields)
    answer = driver.ask(cmd="PULL", queue="q", owner="w", lockTtl=1000)
    assert answer["job"]["id"] == job_id
    return job_id, answer["token"]


def delay_of(command: str) -> int | None:
    return None if command in ("Discard", "MoveToWait") else 500


# -- tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", MOVES)
def test_a_locked_job_is_its_holders(driver: Driver, command: str) -> None:
    job_id, token = locked(driver)
    move = {"cmd": command, "id": job_id, "delay": delay_of(command)}
    wrong = {"ok": False, "error": f"Invalid or expired lock token for job {job_id}"}
    assert driver.ask(1, **move, token="bad") == driver.ask(3, **move, token="bad") == wrong
    assert driver.ask(3, **move) == {"ok": False, "error": f"Lock token required for job {job_id}"}
    assert driver.job(job_id)["state"] == "active"
    assert driver.ask(3, **move, token=token)["ok"]
    assert driver.job(job_id)["state"] != "active"
    assert "Job not found" in driver.ask(cmd="ACK", id=job_id, token=token)["error"]


@pytest.mark.parametrize("command", MOVES)
def test_version_2_has_no_token_to_give(driver: Driver, command: str) -> None:
    job_id, _ = locked(driver)
    assert driver.ask(cmd=command, id=job_id, delay=delay_of(command))["ok"]


# -- what moves leave behind -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["MoveToDelayed", "MoveToWait", "ChangeDelay"])
def test_a_moved_job_has_lost_no_attempt(driver: Driver, command: str) -> None:
    job_id, token = locked(driver, maxAttempts=1)
    driver.ask(cmd="Progress", id=job_id, progress=50, message="half")
    driver.ask(cmd=command, id=job_id, delay=delay_of(command), token=token)
    again = driver.restarted(live=(1,))
    shown = again.job(job_id)
    assert (shown["attempts"], shown["stallCount"], shown["startedAt"], shown["progress"]) == (0, 0, None, 0)
    assert shown["progressMessage"] is None
    assert shown["runAt"] == START + (delay_of(command) or 0)
    assert [moment["state"] for moment in shown["timeline"]] == [
        "waiting",
        "active",
        "waiting" if command == "MoveToWait" else "delayed",
    ]
    assert again.rows("select count(*) from locks") == [(0,)]
    again.tick(START + 500)
    assert again.ask(cmd="PULL", queue="q")["job"]["id"] == job_id
    again.close()


def test_how_often_a_job_was_put_back_is_told(driver: Driver) -> None:
    job_id = driver.push(maxAttempts=1)
    for count in range(3):
        pulled = driver.ask(cmd="PULL", queue="q", owner="w")["job"]
        assert pulled.get("postponed", 0) == count
        token = driver.shard.engine.state.jobs[job_id].lock.token
        driver.ask(cmd="MoveToDelayed", id=job_id, delay=0, token=token, postponed=True)
    driver.ask(cmd="MoveToDelayed", id=job_id, delay=50, postponed=True)  # it runs not: nothing is put back
    again = driver.restarted(live=(1,))
    assert again.job(job_id)["postponed"] == 3
    again.tick(START + 50)
    token = again.ask(cmd="PULL", queue="q", owner="w")["token"]
    again.ask(cmd="FAIL", id=job_id, token=token)
    again.ask(cmd="RetryDlq", queue="q", jobId=job_id)
    assert "postponed" not in again.job(job_id)
    again.close()


def test_a_failure_may_say_when_the_next_attempt_begins(driver: Driver) -> None:
    job_id, token = locked(driver, maxAttempts=2, backoff=5)
    assert driver.ask(cmd="FAIL", id=job_id, token=token, error="later", delay=7_200_000)["ok"]
    shown = driver.job(job_id)
    assert (shown["state"], shown["attempts"], shown["runAt"]) == ("delayed", 1, START + 7_200_000)
    driver.tick(START + 7_200_000)
    token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
    driver.ask(cmd="FAIL", id=job_id, token=token, error="later", delay=1)
    assert driver.job(job_id)["state"] == "failed"


def test_a_moved_job_wakes_those_who_wait(driver: Driver) -> None:
    driver.ask(cmd="Pause", queue="q")
    job_id = driver.push(delay=5000)
    driver.ask(cmd="Resume", queue="q")
    for command in ("Promote", "MoveToWait", "ChangeDelay"):
        driver.execute(2, packed(cmd="PULL", queue="q", timeout=9000))
        delay = 0 if command == "ChangeDelay" else None
        answers = driver.execute(1, packed(cmd=command, id=job_id, delay=delay))
        assert [conn for conn, _ in answers] == [1, 2]
        driver.commit()
        driver.ask(cmd="MoveToDelayed", id=job_id, delay=5000)


def packed(**request: Any) -> bytes:
    data: bytes = msgpack.packb({name: value for name, value in request.items() if value is not None})
    return data


def test_a_timeout_of_a_moved_job_does_not_come(driver: Driver) -> None:
    job_id = driver.push(timeout=100, maxAttempts=1)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="MoveToDelayed", id=job_id, delay=50)
    driver.tick(START + 200)
    assert driver.job(job_id)["state"] == "waiting"


def test_a_discarded_job_is_a_dead_letter_with_its_attempts(driver: Driver) -> None:
    job_id = driver.push(maxAttempts=5, backoff=0)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="FAIL", id=job_id, error="first")
    driver.tick(START)
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="Discard", id=job_id)
    again = driver.restarted(live=(1,))
    shown = again.job(job_id)
    assert (shown["state"], shown["attempts"], shown["failedReason"]) == ("failed", 1, "first")
    assert again.rows("select reason from dead_letters") == [("unknown",)]
    assert again.ask(cmd="RetryDlq", queue="q", jobId=job_id)["count"] == 1
    assert again.job(job_id)["attempts"] == 0
    again.close()


def test_discarding_a_job_that_asked_to_be_removed_on_failure_keeps_it(driver: Driver) -> None:
    job_id = driver.push(removeOnFail=True)
    driver.ask(cmd="Discard", id=job_id)
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "failed"
    assert driver.rows("select count(*) from dead_letters") == [(1,)]


@pytest.mark.parametrize("command", ["Cancel", "Discard"])
def test_the_key_of_a_job_that_left_is_free(driver: Driver, command: str) -> None:
    first = driver.push(uniqueKey="k")
    driver.ask(cmd=command, id=first)
    assert driver.push(uniqueKey="k") != first


def test_a_cancelled_job_leaves_no_row(driver: Driver) -> None:
    job_id = driver.push()
    driver.ask(cmd="AddLog", id=job_id, message="x")
    driver.ask(cmd="Cancel", id=job_id)
    counted = "select (select count(*) from jobs), (select count(*) from job_logs)"
    assert driver.rows(counted) == [(0, 0)]
    assert not driver.shard.engine.state.jobs


def test_pushed_moved_and_cancelled_in_one_batch(driver: Driver) -> None:
    """The rows are those of the object that stands for the job in the end."""
    moved, gone, reordered = (driver.push() for _ in range(3))
    fresh = f"{moved[:24]}{4:012x}"
    driver.batch(
        [
            {"cmd": "PUSH", "queue": "q", "data": "fresh"},
            {"cmd": "ChangePriority", "id": fresh, "priority": 3},
            {"cmd": "ChangePriority", "id": fresh, "priority": 9},
            {"cmd": "MoveToDelayed", "id": moved, "delay": 10},
            {"cmd": "MoveToWait", "id": moved},
            {"cmd": "MoveToDelayed", "id": gone, "delay": 10},
            {"cmd": "Cancel", "id": gone},
            {"cmd": "ChangePriority", "id": reordered, "priority": 1, "lifo": True},
        ]
    )
    again = driver.restarted(live=(1,))
    pulled = again.ask(cmd="PULLB", queue="q", count=9)["jobs"]
    assert [(job["id"], job["priority"]) for job in pulled] == [(fresh, 9), (reordered, 1), (moved, 0)]
    assert pulled[1]["lifo"] is True
    again.close()


def test_updated_data_is_stored_and_bounded(driver: Driver) -> None:
    job_id = driver.push(data="old")
    driver.ask(cmd="PULL", queue="q")
    assert driver.ask(cmd="Update", id=job_id, data={"new": 1})["ok"]
    assert "too large" in driver.ask(cmd="Update", id=job_id, data="x" * 10_485_760)["error"]
    again = driver.restarted(live=(1,))
    assert (again.job(job_id)["data"], again.job(job_id)["state"]) == ({"new": 1}, "active")
    assert again.ask(cmd="Update", id=job_id) == {"ok": True}
    assert again.job(job_id)["data"] is None
    again.close()


# -- locks -------------------------------------------------------------------------------------------------


def test_an_extended_lock_lasts_as_long_as_was_asked(driver: Driver) -> None:
    job_id, token = locked(driver)
    assert driver.ask(cmd="ExtendLock", id=job_id, token=token, duration=60_000) == {"ok": True}
    again = driver.restarted(live=(1,))
    again.tick(START + 30_000)
    assert again.job(job_id)["state"] == "active"
    again.tick(START + 66_000)
    assert again.job(job_id)["state"] == "waiting"
    again.close()


def test_what_is_not_locked_cannot_be_extended(driver: Driver) -> None:
    job_id = driver.push()
    refused = {"ok": False, "error": "Lock not found or invalid token"}
    assert driver.ask(cmd="ExtendLock", id=job_id, token="t", duration=5000) == refused
    driver.ask(cmd="PULL", queue="q")
    for token in ("t", ""):
        assert driver.ask(cmd="ExtendLock", id=job_id, token=token, duration=5000) == refused
    assert "at least 1" in driver.ask(cmd="ExtendLock", id=job_id, token="t", duration=0)["error"]


def test_of_many_locks_those_with_a_wrong_token_are_not_extended(driver: Driver) -> None:
    one, two, three = (locked(driver) for _ in range(3))
    ids = [one[0], two[0], three[0], "unknown"]
    request = {"cmd": "ExtendLocks", "ids": ids, "tokens": [one[1], "bad", three[1], None]}
    assert driver.ask(**request, durations=[90_000] * 4) == {"ok": True, "count": 2}
    assert driver.ask(**request, durations=[1]) == {
        "ok": False,
        "error": "ExtendLocks durations length must match ids length",
    }
    driver.tick(START + 6000)
    assert [driver.job(job_id)["state"] for job_id in ids[:3]] == ["active", "waiting", "active"]


# -- logs --------------------------------------------------------------------------------------------------


def log(driver: Driver, job_id: str, **bounds: int) -> list[str]:
    return [line["message"] for line in driver.ask(cmd="GetLogs", id=job_id, **bounds)["data"]["logs"]]


def test_the_last_hundred_lines_outlive_a_restart(driver: Driver) -> None:
    job_id, other = driver.push(), driver.push()
    driver.batch({"cmd": "AddLog", "id": job_id, "message": f"m{n}"} for n in range(60))
    driver.ask(cmd="AddLog", id=other, message="mine", level="warn")
    driver.batch({"cmd": "AddLog", "id": job_id, "message": f"m{n}"} for n in range(60, 130))
    again = driver.restarted(live=(1,))
    assert log(again, job_id) == [f"m{n}" for n in range(30, 130)]
    assert again.rows("select count(*) from job_logs") == [(101,)]
    (line,) = again.ask(cmd="GetLogs", id=other)["data"]["logs"]
    assert line == {"message": "mine", "level": "warn", "timestamp": float(START)}
    again.close()


def test_part_of_a_log(driver: Driver) -> None:
    job_id = driver.push()
    for message in "abcde":
        driver.ask(cmd="AddLog", id=job_id, message=message)
    assert log(driver, job_id, start=1, end=2) == ["b", "c"]
    assert log(driver, job_id, start=3) == log(driver, job_id, start=3, end=-1) == ["d", "e"]
    assert log(driver, job_id, start=0, end=0) == ["a"]
    assert log(driver, job_id, start=9) == log(driver, job_id, start=3, end=1) == []
    assert driver.ask(cmd="GetLogs", id=job_id, start=4)["data"]["count"] == 5


def test_clearing_a_log(driver: Driver) -> None:
    job_id = driver.push()
    add = [{"cmd": "AddLog", "id": job_id, "message": message} for message in "abcd"]
    clear = {"cmd": "ClearLogs", "id": job_id}
    driver.batch([*add, {**clear, "keepLogs": 1}, add[0]])
    assert log(driver, job_id) == ["d", "a"]
    driver.batch([clear, add[1]])
    assert log(driver, job_id) == ["b"]
    driver.batch([*add, clear])
    again = driver.restarted(live=(1,))
    assert log(again, job_id) == []
    assert again.ask(**{**clear, "id": "unknown"}) == {"ok": True}
    again.close()


def test_logs_of_all_states(driver: Driver) -> None:
    done = driver.push(maxAttempts=1)
    driver.ask(cmd="AddLog", id=done, message="waiting")
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="AddLog", id=done, message="active")
    driver.ask(cmd="FAIL", id=done)
    driver.ask(cmd="AddLog", id=done, message="failed")
    driver.ask(cmd="RetryDlq", queue="q")
    assert log(driver, done) == ["waiting", "active", "failed"]


def test_a_log_goes_with_its_job(driver: Driver) -> None:
    job_id = driver.push(removeOnComplete=True)
    driver.ask(cmd="PULL", queue="q")
    driver.batch([{"cmd": "AddLog", "id": job_id, "message": "x"}, {"cmd": "ACK", "id": job_id}])
    assert driver.rows("select count(*) from job_logs") == [(0,)]
    assert driver.ask(cmd="AddLog", id=job_id, message="x") == {"ok": False, "error": "Job not found"}


def test_a_line_that_is_too_long_is_cut(driver: Driver) -> None:
    job_id = driver.push()
    driver.ask(cmd="AddLog", id=job_id, message="x" * 70_000)
    assert [len(line) for line in log(driver, job_id)] == [65_536]


# -- jobs that end their workers ---------------------------------------------------------------------------


def test_a_job_whose_worker_says_that_it_goes_on_has_not_ended_it(driver: Driver) -> None:
    """Connections are closed in order, as by a load balancer, until the worker gets a word in between."""
    job_id = driver.push(maxAttempts=3)
    for conn in range(100, 200, 10):
        for lost in (conn, conn + 1):
            assert driver.ask(lost, cmd="PULL", queue="q", owner="w")["job"]["id"] == job_id
            driver.disconnect(lost)
        token = driver.ask(conn + 2, cmd="PULL", queue="q", owner="w")["token"]
        assert driver.ask(conn + 3, cmd="JobHeartbeat", id=job_id, token=token)["ok"]
        assert driver.ask(conn + 2, cmd="FAIL", id=job_id, token=token, interrupted=True)["ok"]
    assert (driver.job(job_id)["attempts"], driver.job(job_id)["stallCount"]) == (0, 0)


def test_a_job_that_ends_its_workers_at_once_ends_as_a_dead_letter(driver: Driver) -> None:
    """Again and again a worker is gone before it has given a sign of life; neighbours are not punished."""
    job_id, other = driver.push(maxAttempts=3), driver.push()
    seen = []
    for conn in range(10, 20):
        answer = driver.ask(conn, cmd="PULL", queue="q", owner=f"w{conn}")
        if answer["job"]["id"] == other:
            break
        found = driver.job(job_id)
        seen.append((found["attempts"], found["stallCount"]))
        driver.disconnect(conn)
        driver.commit()
        driver.tick(driver.now)
        if conn == 12:
            driver = driver.restarted(live=(1,))
    assert seen == [(0, 0)] * 3 + [(1, 1), (2, 2)]
    (message,) = driver.ask(cmd="Dlq", queue="q")["entries"]
    assert (message["job"]["id"], message["reason"], message["job"]["attempts"]) == (job_id, "stalled", 3)
    assert message["error"] == "Whoever held the job has gone at once, 5 times by now"
    assert message["attempts"][0]["error"].endswith("3 times by now")
    assert driver.job(other)["attempts"] == 0
    driver.ask(cmd="RetryDlq", queue="q")
    for conn in range(20, 22):
        driver.ask(conn, cmd="PULL", queue="q", owner="w")
        driver.disconnect(conn)
        driver.tick(driver.now)
    assert driver.job(job_id)["attempts"] == 0
    driver.close()


def test_a_worker_that_stops_in_order_is_not_held_against_its_jobs(driver: Driver) -> None:
    job_id = driver.push(maxAttempts=1)
    for conn in range(10, 20):
        token = driver.ask(conn, cmd="PULL", queue="q", owner="w")["token"]
        driver.ask(conn, cmd="FAIL", id=job_id, token=token, interrupted=True)
        driver.disconnect(conn)
    assert driver.job(job_id)["attempts"] == 0
