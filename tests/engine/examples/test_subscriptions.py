"""What subscribers are told, and WaitJob: both without asking again and again."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.server.links import shard_protocol as link
from shardproc.engine.lifecycle.events import MAX_DATA
from shardproc.engine.outbox import Outbox


def heard(driver: Driver, queue: str = "q") -> list[dict[str, Any]]:
    """What the listeners of a queue are told with the last commit."""
    told = driver.shard.published.get(queue)
    frames = link.split_frames(b"".join(told.frames)) if told is not None else []
    events = [msgpack.unpackb(frame) for frame in frames]
    assert all(event.keys() == {"type", "event"} and event["type"] == "event" for event in events)
    return [event["event"] for event in events]


def subscribe(driver: Driver, queue: str = "q", conn: int = 9) -> None:
    assert driver.ask(conn, cmd="SubscribeEvents", queue=queue) == {"ok": True}


def test_a_queue_need_not_exist_and_every_field_is_there(driver: Driver) -> None:
    subscribe(driver)
    job_id = driver.ask(cmd="PUSH", queue="q", data={"z": 1}, maxAttempts=2)["id"]
    basic = {"queue": "q", "jobId": job_id, "timestamp": float(driver.now)}
    assert heard(driver) == [{"eventType": "pushed", **basic}]
    driver.ask(cmd="PULL", queue="q")
    assert heard(driver) == [{"eventType": "pulled", **basic}]
    driver.ask(cmd="Progress", id=job_id, progress=5, message="m")
    said = {"progress": 5, "data": {"progress": 5, "message": "m"}}
    assert heard(driver) == [{"eventType": "progress", **basic, **said}]
    driver.ask(cmd="FAIL", id=job_id, error="E")
    failed = {"eventType": "failed", **basic, "error": "E", "data": {"z": 1}, "terminal": False}
    assert heard(driver) == [failed, {"eventType": "retried", **basic, "prev": "failed"}]
    driver.tick(driver.now + 10_000)
    driver.commit()
    assert heard(driver) == [], "no word about a delay that is over"
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id, result=[7])
    basic["timestamp"] = float(driver.now)
    assert heard(driver) == [{"eventType": "completed", **basic, "data": [7]}]


def test_the_result_of_a_job_that_is_removed_is_told(driver: Driver) -> None:
    subscribe(driver)
    job_id = driver.ask(cmd="PUSH", queue="q", removeOnComplete=True)["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id, result=1)
    assert [(event["eventType"], event["data"]) for event in heard(driver)] == [("completed", 1)]


def test_a_job_without_result_completes_without_one(driver: Driver) -> None:
    subscribe(driver)
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    driver.ask(cmd="PULL", queue="q")
    driver.ask(cmd="ACK", id=job_id)
    (event,) = heard(driver)
    assert event == {
        "eventType": "completed",
        "queue": "q",
        "jobId": job_id,
        "timestamp": float(driver.now),
    }


def test_nobody_hears_other_queues_and_nothing_is_kept_for_nobody(driver: Driver) -> None:
    subscribe(driver)
    driver.ask(cmd="PUSH", queue="other")
    assert driver.shard.published == {}
    driver.ask(cmd="PUSH", queue="q")
    assert len(heard(driver)) == 1
    driver.ask(cmd="GetJobCounts", queue="q")
    assert driver.shard.published == {}


def test_a_connection_listens_to_one_queue(driver: Driver) -> None:
    subscribe(driver, "q")
    subscribe(driver, "other")
    driver.ask(cmd="PUSH", queue="q")
    assert driver.shard.published == {}
    driver.ask(cmd="PUSH", queue="other")
    assert len(heard(driver, "other")) == 1


def test_it_ends_with_unsubscribe_and_with_the_connection(driver: Driver) -> None:
    listeners = driver.shard.engine.state.listeners
    subscribe(driver, conn=8)
    subscribe(driver, conn=9)
    assert listeners == {"q": {8, 9}}
    driver.shard.engine.unsubscribe(8)
    driver.ask(cmd="PUSH", queue="q")
    assert len(heard(driver)) == 1
    driver.disconnect(9)
    driver.shard.engine.unsubscribe(9)
    assert listeners == {}
    driver.ask(cmd="PUSH", queue="q")
    assert driver.shard.published == {}


def test_a_refused_subscription_changes_nothing(driver: Driver) -> None:
    subscribe(driver)
    assert not driver.ask(9, cmd="SubscribeEvents", queue="a b")["ok"]
    driver.ask(cmd="PUSH", queue="q")
    assert len(heard(driver)) == 1


def test_large_payloads_are_left_out(driver: Driver) -> None:
    subscribe(driver)
    for size, there in ((MAX_DATA - 100, True), (MAX_DATA, False)):
        job_id = driver.ask(cmd="PUSH", queue="q")["id"]
        driver.ask(cmd="PULL", queue="q")
        driver.ask(cmd="ACK", id=job_id, result="x" * size)
        assert [("data" in event) for event in heard(driver)] == [there]


def test_one_batch_tells_so_much_and_counts_the_rest(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outbox, "MAX_PUBLISHED", 2000)
    subscribe(driver)
    driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 100)
    told = driver.shard.published["q"]
    assert 0 < len(told.frames) < 100
    assert told.lost == 100 - len(told.frames)
    assert told.size < 2000 + 500


# -- WaitJob -----------------------------------------------------------------------------------------


def wait(driver: Driver, job_id: str, conn: int = 5, **fields: Any) -> None:
    """Park a WaitJob; it must not be answered yet."""
    request = {"cmd": "WaitJob", "id": job_id, "reqId": "w", **fields}
    assert driver.execute(conn, msgpack.packb(request)) == []


def answers(driver: Driver) -> list[tuple[int, dict[str, Any]]]:
    return [(conn, reply) for conn, reply in driver.commit() if reply.get("reqId") == "w"]


def act(driver: Driver, **request: Any) -> None:
    driver.execute(1, msgpack.packb({**request, "reqId": "x"}))


def finish(driver: Driver, job_id: str, **fields: Any) -> None:
    act(driver, cmd="PULL", queue="q")
    act(driver, **{"cmd": "ACK", "id": job_id, **fields})


def test_all_who_wait_are_answered_at_once(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    wait(driver, job_id, 5)
    wait(driver, job_id, 6, timeout=100)
    finish(driver, job_id, result=[1])
    done = {"ok": True, "reqId": "w", "completed": True, "result": [1]}
    assert answers(driver) == [(5, done), (6, done)]
    client = driver.shard.engine.state.clients[5]
    assert (client.waiters, client.slow, client.waits) == (0, 1, set())
    driver.tick(driver.now + 100_000)
    assert answers(driver) == []


def test_by_default_it_waits_half_a_minute(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    wait(driver, job_id)
    assert driver.shard.engine.next_deadline() <= driver.now + 30_000
    driver.tick(driver.now + 29_999)
    assert answers(driver) == []
    driver.tick(driver.now + 1)
    late = {"ok": True, "reqId": "w", "completed": False, "state": "waiting"}
    assert answers(driver) == [(5, late)]
    assert driver.shard.engine.state.waits == {}


def test_its_end_is_a_deadline_of_the_shard(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    wait(driver, job_id, timeout=70)
    assert driver.shard.engine.next_deadline() == driver.now + 70


@pytest.mark.parametrize(("removes", "state"), [(False, "failed"), (True, "unknown")])
def test_a_job_that_can_no_longer_complete_ends_it(driver: Driver, removes: bool, state: str) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", maxAttempts=1, removeOnFail=removes)["id"]
    wait(driver, job_id)
    finish(driver, job_id, cmd="FAIL")
    ((_, reply),) = answers(driver)
    assert (reply["completed"], reply["state"]) == (False, state)


def test_a_retry_goes_on(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", backoff=0)["id"]
    wait(driver, job_id)
    finish(driver, job_id, cmd="FAIL")
    assert answers(driver) == []
    finish(driver, job_id, result=2)
    assert [reply["result"] for _, reply in answers(driver)] == [2]


def test_a_job_that_is_removed_on_completion_completes_without_a_result(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", removeOnComplete=True)["id"]
    wait(driver, job_id)
    finish(driver, job_id, result=2)
    assert answers(driver) == [(5, {"ok": True, "reqId": "w", "completed": True})]
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    wait(driver, job_id)
    finish(driver, job_id, result=2, removeOnComplete=True)
    assert answers(driver) == [(5, {"ok": True, "reqId": "w", "completed": True})]


def test_what_has_ended_is_answered_at_once(driver: Driver) -> None:
    done = driver.ask(cmd="PUSH", queue="q")["id"]
    finish(driver, done, result={"r": 1})
    dead = driver.ask(cmd="PUSH", queue="q", maxAttempts=1)["id"]
    finish(driver, dead, cmd="FAIL")
    alive = driver.ask(cmd="PUSH", queue="q")["id"]
    assert driver.ask(cmd="WaitJob", id=done) == {"ok": True, "completed": True, "result": {"r": 1}}
    assert driver.ask(cmd="WaitJob", id=dead) == {"ok": True, "completed": False, "state": "failed"}
    assert driver.ask(cmd="WaitJob", id=alive, timeout=0) == {
        "ok": True,
        "completed": False,
        "state": "waiting",
    }
    assert driver.ask(cmd="WaitJob", id="nope")["error"] == "Job not found"
    assert driver.shard.engine.state.clients[1].slow == 3, "not the one with timeout 0"


def test_nobody_waits_for_a_connection_that_is_gone(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    wait(driver, job_id, 5)
    wait(driver, job_id, 6)
    driver.disconnect(5)
    assert [wait.client.conn for wait in driver.shard.engine.state.waits[job_id]] == [6]
    driver.disconnect(6)
    assert driver.shard.engine.state.waits == {}
    finish(driver, job_id)
    assert answers(driver) == []
    driver.tick(driver.now + 30_000)
    assert driver.shard.engine.state.wait_ends.entries == []


def test_waits_that_are_answered_do_not_pile_up_until_their_time(driver: Driver) -> None:
    state = driver.shard.engine.state
    for _ in range(2000):
        job_id = driver.ask(cmd="PUSH", queue="q")["id"]
        wait(driver, job_id)
        finish(driver, job_id)
        driver.commit()
    assert len(state.wait_ends) <= 300
