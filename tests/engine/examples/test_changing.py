"""ChangeJobs, by example: what is changed, what is left alone and why, in which pieces."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import START, Driver

from bunqueue.protocol.search import cursor as cursors


def change(driver: Driver, action: str, **wanted: Any) -> dict[str, Any]:
    reply = driver.ask(cmd="ChangeJobs", action=action, **wanted)
    assert reply["ok"], reply
    return reply


def dead(driver: Driver, queue: str = "q", error: str = "no", **fields: Any) -> str:
    job_id = driver.push(queue=queue, priority=1000, maxAttempts=1, **fields)
    token = driver.ask(cmd="PULL", queue=queue, owner="w")["token"]
    driver.ask(cmd="FAIL", id=job_id, token=token, error=error)
    return job_id


def completed(driver: Driver, queue: str = "q") -> str:
    job_id = driver.push(queue=queue, priority=1000)
    token = driver.ask(cmd="PULL", queue=queue, owner="w")["token"]
    driver.ask(cmd="ACK", id=job_id, token=token)
    return job_id


def stopped(driver: Driver) -> str:
    job_id = driver.push(priority=1000)
    driver.ask(cmd="PULL", queue="q", owner="w")
    driver.ask(cmd="Cancel", id=job_id, running=True, grace=0)
    return job_id


def states(driver: Driver, *ids: str) -> list[str]:
    return [driver.state(job_id) for job_id in ids]


def test_dead_letters_run_again(driver: Driver) -> None:
    late, early = dead(driver, error="Timeout after 5 s"), dead(driver, error="no such mailbox")
    done, halted, live = completed(driver), stopped(driver), driver.push()
    reply = change(driver, "retry", error="timeout")
    assert reply["data"] == {"changed": 1, "skipped": {}, "examples": [late]}
    assert states(driver, late, early) == ["waiting", "failed"]
    reply = change(driver, "retry", queue="q")
    assert reply["data"] == {
        "changed": 1,
        "skipped": {"unfinished": 2, "completed": 1, "cancelled": 1},
        "examples": [early],
    }
    assert states(driver, done, halted, live) == ["completed", "cancelled", "waiting"]
    assert change(driver, "retry", state=["cancelled", "completed"])["data"]["changed"] == 2
    assert states(driver, done, halted) == ["waiting", "waiting"]


def test_a_unique_key_that_is_taken_keeps_a_dead_letter(driver: Driver) -> None:
    job_id = dead(driver, uniqueKey="k")
    driver.push(uniqueKey="k")
    assert change(driver, "retry", state="failed")["data"] == {
        "changed": 0,
        "skipped": {"unique-key": 1},
        "examples": [],
    }
    assert driver.state(job_id) == "failed"


def test_jobs_are_cancelled_with_a_reason(driver: Driver) -> None:
    active = driver.push(name="x", priority=9)
    token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
    waiting, delayed = driver.push(name="x"), driver.push(name="x", delay=1000)
    done = completed(driver)
    reply = change(driver, "cancel", queue="q", reason="the order was withdrawn", grace=500)
    assert reply["data"]["changed"] == 3
    assert reply["data"]["skipped"] == {"finished": 1}
    assert states(driver, waiting, delayed, done) == ["unknown", "unknown", "completed"]
    assert driver.job(active)["cancelling"] is True
    driver.tick(START + 501)
    driver.commit()
    job = driver.job(active)
    assert (job["state"], job["failedReason"]) == ("cancelled", "Cancelled: the order was withdrawn")
    assert driver.ask(cmd="ACK", id=active, token=token)["data"]["applied"] is False


def test_jobs_are_removed_with_all_they_have(driver: Driver) -> None:
    ids = [dead(driver), completed(driver), driver.push(), driver.push(delay=5), stopped(driver)]
    active = driver.push(priority=9)
    driver.ask(cmd="PULL", queue="q", owner="w")
    reply = change(driver, "remove", queue="q")
    assert reply["data"]["changed"] == 5
    assert reply["data"]["skipped"] == {"active": 1}
    assert states(driver, *ids) == ["unknown"] * 5
    assert driver.rows("select id from jobs") == [(active,)]
    assert driver.rows("select count(*) from attempts") == [(0,)]
    counts = driver.ask(cmd="GetJobCounts", queue="q")["counts"]
    assert {name: count for name, count in counts.items() if count} == {"active": 1}


def test_priorities_are_changed(driver: Driver) -> None:
    first, second, done = driver.push(name="a"), driver.push(name="b"), completed(driver)
    reply = change(driver, "priority", where="name = b", priority=5)
    assert reply["data"]["changed"] == 1
    assert change(driver, "priority", queue="q", state="completed", priority=5)["data"]["skipped"] == {
        "finished": 1
    }
    assert driver.ask(cmd="PULL", queue="q")["job"]["id"] == second
    assert states(driver, first, done) == ["waiting", "completed"]


def test_a_dry_run_counts_and_changes_nothing(driver: Driver) -> None:
    ids = [dead(driver) for _ in range(5)]
    done = completed(driver)
    for action, fields, count in (
        ("retry", {}, 5), ("remove", {}, 6), ("move", {"to": "other"}, 5), ("cancel", {}, 0),
    ):  # fmt: skip
        reply = change(driver, action, queue="q", dryRun=True, limit=1, **fields)
        assert (reply["data"]["changed"], reply["cursor"]) == (count, None), action
        assert reply["progress"]["found"] == 6
    assert states(driver, *ids, done) == ["failed"] * 5 + ["completed"]
    assert "other" not in driver.shard.engine.state.queues


def test_pieces_follow_each_other_and_new_jobs_are_left_alone(driver: Driver) -> None:
    ids = [driver.push() for _ in range(7)]
    first = change(driver, "cancel", queue="q", limit=3)
    assert first["data"]["examples"] == ids[:3]
    late = driver.push()
    second = change(driver, "cancel", queue="q", limit=3, cursor=first["cursor"])
    assert second["data"]["examples"] == ids[3:6]
    third = change(driver, "cancel", queue="q", limit=3, cursor=second["cursor"])
    assert third["data"]["examples"] == ids[6:]
    assert third["cursor"] is None
    assert driver.state(late) == "waiting"


def test_a_forged_cursor_does_not_send_the_shard_beyond_its_last_job(driver: Driver) -> None:
    for _ in range(2):
        driver.push()
    forged = cursors.read(change(driver, "cancel", name="default", limit=1)["cursor"])
    forged.until = 2**53 - 1
    reply = change(driver, "cancel", name="default", cursor=cursors.encoded(forged))
    assert reply["data"]["changed"] == 1
    assert reply["cursor"] is None


def test_what_is_moved_on_one_shard_waits_in_the_other_queue(driver: Driver) -> None:
    ids = [driver.push(data=n, priority=n) for n in range(3)]
    message = dead(driver)
    driver.ask(cmd="AddLog", id=message, message="seen")
    reply = change(driver, "move", queue="q", to="other")
    assert reply["data"] == {"changed": 4, "skipped": {}, "examples": [*ids, message]}
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["failed"] == 0
    assert [driver.job(job_id)["queue"] for job_id in (*ids, message)] == ["other"] * 4
    assert driver.job(message)["attempts"] == 0
    assert [line["message"] for line in driver.ask(cmd="GetLogs", id=message)["data"]["logs"]] == ["seen"]
    assert len(driver.ask(cmd="GetAttempts", id=message)["data"]["attempts"]) == 1
    again = driver.restarted()
    assert [again.ask(cmd="PULL", queue="other")["job"]["id"] for _ in range(4)] == [message, *ids[::-1]]
    assert change(again, "move", where="queue = other", to="other")["data"]["skipped"] == {"there-already": 4}
    again.close()


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"action": "retry"}, "say which jobs: give a queue, or at least one condition"),
        ({"action": "remove", "where": "  ", "data": {}}, "say which jobs"),
        ({"action": "priority", "queue": "q"}, "priority is required for the action priority"),
        ({"action": "move", "queue": "q"}, "to is required for the action move"),
        ({"action": "move", "queue": "q", "to": "no name"}, "Queue name"),
        ({"action": "retry", "queue": "q", "to": "x"}, "to is only for the action move, not for retry"),
        ({"action": "remove", "queue": "q", "reason": "x"}, "reason is only for the action cancel"),
        ({"action": "explode", "queue": "q"}, "action must be"),
        ({"queue": "q"}, "action"),
        ({"action": "retry", "queue": "q", "limit": 1001}, "limit must be at most 1000"),
        ({"action": "retry", "queue": "q", "colour": 1}, "colour is unknown"),
        ({"action": "retry", "queue": "q", "state": "odd"}, "state 'odd' is unknown"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    driver: Driver, wanted: dict[str, Any], error: str
) -> None:
    job_id = dead(driver)
    reply = driver.ask(cmd="ChangeJobs", **wanted)
    assert not reply["ok"]
    assert error in reply["error"]
    assert driver.state(job_id) == "failed"


def test_many_jobs_are_changed_in_slices(driver: Driver) -> None:
    """Others are answered in between."""
    driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": n} for n in range(450)])
    driver.shard.execute(
        driver.shard.client(2, 3), _packed(cmd="ChangeJobs", action="cancel", queue="q"), START
    )
    for _ in range(2):
        driver.shard.engine.work()
    between = driver.shard.engine.state.queues["q"].waiting
    assert 0 < between < 450
    while driver.shard.engine.work():
        pass
    driver.commit()
    assert driver.shard.engine.state.queues["q"].waiting == 0


def _packed(**request: Any) -> bytes:
    import msgpack

    packed: bytes = msgpack.packb({**request, "reqId": 1})
    return packed
