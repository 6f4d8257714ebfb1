"""What must stay bounded, equal or quick, however a shard is used."""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from engine.shard_driver import START, Answer, Driver

from bunqueue.protocol import job_view
from shardproc.engine.engine import Engine
from shardproc.engine.handlers.locks import SWEEP_MS
from shardproc.engine.memory.sums import QUEUES_A_SLICE
from shardproc.storage import rows

# -- memory ----------------------------------------------------------------------------------------


def test_a_served_queue_leaves_nothing_in_memory() -> None:
    driver = Driver()
    for _ in range(20):
        ids = driver.ask(cmd="PUSHB", queue="q", jobs=[{"uniqueKey": str(n)} for n in range(50)])["ids"]
        driver.ask(cmd="PULLB", queue="q", count=50)
        driver.ask(cmd="ACKB", ids=ids)
    state = driver.shard.engine.state
    queue = state.queues["q"]
    assert not state.jobs
    assert not queue.jobs
    assert not queue.unique
    assert not state.delays
    assert not state.clients[1].held
    assert queue.ready.pop() is None
    driver.close()


def test_polls_leave_nothing_in_memory() -> None:
    driver = Driver()
    for number in range(200):
        conn = 10 + number
        driver.execute(conn, poll(f"queue-{number % 5}", 1000))
        if number % 2:
            driver.disconnect(conn)
        driver.tick(driver.now + 10)
        driver.commit()
    driver.tick(driver.now + 1000)
    driver.commit()
    state = driver.shard.engine.state
    assert not state.poll_ends
    assert not state.early_pulls
    assert not state.queues, "a pull does not create a queue"
    assert set(state.clients) == {10 + number for number in range(0, 200, 2)}
    driver.close()


def test_polls_that_are_answered_do_not_pile_up_until_their_time() -> None:
    driver = Driver()
    driver.execute(2, poll("other", 60_000))
    for _ in range(2000):
        driver.execute(1, poll("q", 60_000))
        driver.ask(2, cmd="PUSH", queue="q", removeOnComplete=True)
        driver.commit()
    state = driver.shard.engine.state
    assert len(state.poll_ends) <= 300
    ((conn, reply),) = driver.tick(driver.now + 60_000)
    driver.close()
    assert (conn, reply["job"]) == (2, None), "who waits is answered when its time is over"


def poll(queue: str, timeout: int, req_id: int = 0) -> bytes:
    packed = msgpack.packb({"cmd": "PULL", "queue": queue, "timeout": timeout, "reqId": req_id})
    assert isinstance(packed, bytes)
    return packed


def test_finished_jobs_are_forgotten_though_they_had_a_timeout() -> None:
    driver = Driver()
    for _ in range(5):
        ids = driver.ask(cmd="PUSHB", queue="q", jobs=[{"timeout": 86_400_000}] * 1000)["ids"]
        driver.ask(cmd="PULLB", queue="q", count=1000)
        driver.ask(cmd="ACKB", ids=ids)
    assert not driver.shard.engine.state.jobs
    watched = len(driver.shard.engine.state.timeouts)
    driver.close()
    assert watched <= 2 * 1000, "at most as many as were active at once, and as many again"


def test_running_attempts_keep_their_timeout_when_others_are_forgotten() -> None:
    driver = Driver()
    kept = driver.ask(cmd="PUSH", queue="q", timeout=60_000, maxAttempts=1)["id"]
    driver.ask(cmd="PULL", queue="q")
    for _ in range(3):
        ids = driver.ask(cmd="PUSHB", queue="q", jobs=[{"timeout": 86_400_000}] * 1000)["ids"]
        driver.ask(cmd="PULLB", queue="q", count=1000)
        driver.ask(cmd="ACKB", ids=ids)
    for _ in range(12):
        assert driver.ask(cmd="GetState", id=kept)["state"] == "active"
        driver.ask(cmd="JobHeartbeat", id=kept)
        driver.tick(driver.now + SWEEP_MS)
    assert driver.ask(cmd="GetState", id=kept)["state"] == "failed"
    driver.close()


@pytest.mark.parametrize("cached", [job_view.stored_options, rows._name], ids=["options", "names"])
def test_caches_are_bounded(cached: Any) -> None:
    assert cached.cache_info().maxsize is not None


@pytest.mark.parametrize("offset", [2990, 1_000_000_000])
def test_a_late_page_needs_the_memory_of_a_page(offset: int) -> None:
    driver = Driver()
    for _ in range(3):
        ids = driver.ask(cmd="PUSHB", queue="q", jobs=[{"data": "x" * 2000}] * 1000)["ids"]
        driver.ask(cmd="PULLB", queue="q", count=1000)
        driver.ask(cmd="ACKB", ids=ids)
    tracemalloc.start()
    jobs = driver.ask(cmd="GetJobs", queue="q", state="completed", offset=offset, limit=10)["jobs"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    driver.close()
    assert len(jobs) == (10 if offset < 3000 else 0)
    assert peak < 1_000_000


def test_a_room_for_a_queue_that_never_comes_is_closed() -> None:
    driver = Driver()
    driver.execute(1, poll("never", 50))
    assert driver.shard.engine.state.early_pulls
    ((conn, reply),) = driver.tick(driver.now + 50)
    assert (conn, reply) == (1, {"ok": True, "reqId": 0, "job": None})
    assert not driver.shard.engine.state.early_pulls
    driver.close()


# -- time ------------------------------------------------------------------------------------------


def sweep_s(jobs: int) -> float:
    """Processor time to take so many jobs back whose worker is silent."""
    driver = Driver()
    for _ in range(jobs // 1000):
        driver.ask(cmd="PUSHB", queue="q", jobs=[{}] * 1000)
        driver.ask(cmd="PULLB", queue="q", count=1000)
    for _ in range(30_000 // SWEEP_MS):
        driver.tick(driver.now + SWEEP_MS)
    begun = time.process_time()
    driver.tick(driver.now + SWEEP_MS)
    took = time.process_time() - begun
    driver.commit()
    assert driver.ask(cmd="GetJobCounts", queue="q")["counts"]["waiting"] == jobs
    driver.close()
    return took


def test_a_sweep_of_many_silent_jobs_takes_no_longer_by_job() -> None:
    few, many = min(sweep_s(1_000) for _ in range(3)), sweep_s(10_000)
    assert many < 40 * few, "linear, it takes ten to fifteen times as long; a hundred times, if quadratic"


def chain_s(count: int) -> float:
    """Processor time to push jobs in one batch, of which each depends on the one before."""
    jobs: list[dict[str, Any]] = [{"jobId": "0"}]
    jobs += [{"jobId": str(number), "dependsOn": [str(number - 1)]} for number in range(1, count)]
    driver = Driver()
    begun = time.process_time()
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ok"]
    took = time.process_time() - begun
    driver.close()
    return took


def test_a_long_chain_in_one_batch_takes_no_longer_by_job() -> None:
    short, long = min(chain_s(1_000) for _ in range(3)), chain_s(16_000)
    assert long < 36 * short, "linear, it takes 16 to 20 times as long; 60 times if each looks at all before"


@pytest.mark.parametrize("command", ["ListQueues", "Stats", "Prometheus", "DashboardOverview"])
def test_looking_at_very_many_queues_goes_in_slices(command: str) -> None:
    driver, count = Driver(), 3 * QUEUES_A_SLICE
    state = driver.shard.engine.state
    for number in range(count):
        state.queue(f"queue-{number}").waiting = 1
    driver.commit()
    client = driver.shard.client(1, 2)
    driver.shard.execute(client, msgpack.packb({"cmd": command}), driver.now)
    assert not state.out.replies, "others wait for all queues"
    slices = 1
    while driver.shard.engine.work():
        slices += 1
    assert slices >= 2
    size = state.out.size
    ((_, reply),) = driver.commit()
    if command == "ListQueues":
        names = [queue["name"] for queue in reply["queues"]]
        assert names == [f"queue-{number}" for number in range(count)]
        assert size > 40 * count, "long answers count where they pile up"
    elif command == "Stats":
        assert reply["stats"]["waiting"] == count
    driver.close()


# -- equal inputs, equal outputs ----------------------------------------------------------------------


def a_day(seed: int) -> list[Answer]:
    """All replies of a life in which many queues wake in the same instant."""
    driver = Driver()
    chance = random.Random(seed)
    driver.shard.engine = Engine(driver.shard.store, chance.getrandbits, chance.random)
    driver.shard.engine.start(START)
    driver.shard.store.attach(driver.shard.engine.out)
    for number in range(12):
        driver.execute(1, poll(f"queue-{number}", 10_000, number))
    for number in range(12):
        driver.ask(2, cmd="PUSH", queue=f"queue-{number}", delay=100, backoff=1000)
    replies = driver.tick(driver.now + 100)
    for number, (_, reply) in enumerate(replies):
        driver.ask(2, cmd="FAIL", id=reply["job"]["id"], error=str(number))
    replies += driver.tick(driver.now + 5000)
    driver.commit()
    driver.close()
    return replies


def test_equal_inputs_give_equal_outputs() -> None:
    """Replies of one tick come in one order, and each retry has the same delay, in every replay."""
    days, ballast = [], []
    for number in range(12):
        ballast.append([object() for _ in range(number * 997)])  # each engine's objects get other addresses
        days.append(a_day(seed=4))
    assert all(day == days[0] for day in days)


# -- robustness ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["Ping", "Hello", "Auth"])
def test_a_command_of_the_router_is_refused(command: str) -> None:
    """Embedded mode has no router; and whatever reaches a shard must not end it."""
    driver = Driver()
    try:
        reply = driver.ask(cmd=command, token="t")
    finally:
        driver.shard.store.close()
    assert reply["ok"] in (True, False)
