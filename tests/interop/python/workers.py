"""Working jobs off: results, retries, dead letters, locks, limits; the simple mode."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from support import CONNECTION, job_name, new_queue, reaches, unique, until, work

from bunqueue import Bunqueue, CommandError, UnrecoverableError


def test_results_and_progress() -> None:
    queue = new_queue()
    seen: list[tuple[str, Any]] = []

    def handle(job: Any) -> Any:
        job.update_progress(50, "half")
        job.log("a line")
        return job.data["result"]

    with work(queue.name, handle, concurrency=3) as worker:
        worker.on("progress", lambda job, progress: seen.append(("progress", progress)))
        worker.on("completed", lambda job, result: seen.append(("completed", result)))
        for result in ({"a": [1]}, "text", 42, None):
            job = queue.add("x", {"result": result})
            assert queue.wait_for_job(job.id, 10000) == result
            assert queue.get_result(job.id) == result
            done = queue.get_job(job.id)
            assert (done.state, done.progress) == ("completed", 100)
            assert len(queue.get_job_logs(job.id)) == 1
        until("all was told", lambda: len(seen) == 8)
    assert ("completed", {"a": [1]}) in seen


def test_priority_and_delay() -> None:
    queue = new_queue()
    order: list[str] = []
    queue.pause()
    for name, priority in (("low", 0), ("a", 5), ("b", 5), ("top", 9)):
        queue.add(name, priority=priority)
    delayed = queue.add("delayed", delay=300)
    added = time.monotonic()
    with work(queue.name, lambda job: order.append(job_name(job)), concurrency=1):
        queue.resume()
        reaches(queue, delayed.id, "completed")
        assert time.monotonic() - added >= 0.29
    assert order == ["top", "a", "b", "low", "delayed"]


def test_retries_then_the_dead_letter_queue() -> None:
    queue = new_queue()
    broken = threading.Event()
    broken.set()
    runs: list[str] = []

    def handle(job: Any) -> str:
        runs.append(job_name(job))
        if job_name(job) == "never":
            raise UnrecoverableError("never again")
        if broken.is_set():
            raise ValueError("boom")
        return "mended"

    with work(queue.name, handle):
        flaky = queue.add("flaky", attempts=3, backoff={"type": "fixed", "delay": 20})
        never = queue.add("never", attempts=9)
        reaches(queue, flaky.id, "failed")
        reaches(queue, never.id, "failed")
        assert (runs.count("flaky"), runs.count("never")) == (3, 1)
        with pytest.raises(CommandError, match="failed before completion"):
            queue.wait_for_job(flaky.id, 200)
        letters = {entry["id"]: entry for entry in queue.get_dlq()}
        assert set(letters) == {flaky.id, never.id}
        assert (letters[flaky.id]["attempts"], letters[flaky.id]["failedReason"]) == (3, "boom")
        assert "ValueError: boom" in letters[flaky.id]["stacktrace"][-1]
        broken.clear()
        assert queue.retry_dlq(flaky.id) == 1
        reaches(queue, flaky.id, "completed")
    assert queue.purge_dlq() == 1
    queue.set_dlq_config({"maxEntries": 3})
    assert queue.get_dlq_config()["maxEntries"] == 3


def test_a_job_that_takes_too_long() -> None:
    queue = new_queue()
    with work(queue.name, lambda job: time.sleep(0.5)):  # the job takes longer than its timeout
        job = queue.add("slow", timeout=100, attempts=1)
        reaches(queue, job.id, "failed")
    assert queue.get_state(job.id) == "failed"


def test_locks_are_renewed() -> None:
    queue = new_queue()
    runs: list[float] = []

    def handle(job: Any) -> str:
        runs.append(time.monotonic())
        time.sleep(7)  # several locks long
        return "once"

    with work(queue.name, handle, lock_ttl_ms=1500, heartbeat_interval_s=0.3, concurrency=2):
        job = queue.add("long")
        assert queue.wait_for_job(job.id, 15000) == "once"
    assert len(runs) == 1


def test_a_lock_that_runs_out() -> None:
    queue = new_queue()
    stuck = threading.Event()
    runs: list[int] = []

    def handle(job: Any) -> str:
        runs.append(1)
        if len(runs) == 1:
            stuck.wait(30)
        return f"run {len(runs)}"

    with work(queue.name, handle, lock_ttl_ms=300, heartbeat_interval_s=0, concurrency=2):
        job = queue.add("lost")
        reaches(queue, job.id, "completed")
        done = queue.get_job(job.id)
        assert (queue.get_result(job.id), done.attempts) == ("run 2", 1)
        stuck.set()


def test_acks_in_batches() -> None:
    queue = new_queue()
    seen: list[int] = []
    batch = {"max_size": 20, "max_delay_ms": 5}
    ids = queue.add_bulk([{"name": "b", "data": {"n": n}} for n in range(500)])
    with work(
        queue.name, lambda job: seen.append(job.data["n"]), concurrency=10, batch_size=50, ack_batch=batch
    ):
        until("all are done", lambda: queue.get_completed_count() == len(ids), 30)
    assert sorted(seen) == list(range(500))


def test_who_works_and_pausing() -> None:
    queue = new_queue()
    with work(queue.name, lambda job: None, concurrency=3, name="me") as worker:
        (info,) = [entry for entry in queue.get_workers() if queue.name in entry["queues"]]
        assert (info["name"], info["concurrency"]) == ("me", 3)
        queue.pause()
        job = queue.add("x")
        time.sleep(0.3)  # in which it would run
        assert queue.get_state(job.id) == "waiting"
        queue.resume()
        reaches(queue, job.id, "completed")
        assert worker.is_running()
    assert not [entry for entry in queue.get_workers() if queue.name in entry["queues"]]


def test_limits_of_a_queue() -> None:
    queue = new_queue()
    lock, active, most, done = threading.Lock(), [0], [0], []

    def handle(job: Any) -> None:
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        time.sleep(0.05)  # jobs overlap if they may
        with lock:
            active[0] -= 1
            done.append(time.monotonic())

    queue.set_global_concurrency(2)
    with work(queue.name, handle, concurrency=8):
        queue.add_bulk([{"name": "n"} for _ in range(8)])
        until("all ran", lambda: len(done) == 8)
        assert most[0] == 2
        queue.remove_global_concurrency()
        queue.set_global_rate_limit(3)
        done.clear()
        queue.add_bulk([{"name": "n"} for _ in range(7)])
        until("all ran", lambda: len(done) == 7)
        assert done[6] - done[0] >= 1.2  # three at once, then three a second
        queue.remove_global_rate_limit()


def test_simple_mode() -> None:
    told: list[Any] = []
    app = Bunqueue(unique("app"), processor=lambda job: {"got": job.data}, **CONNECTION)
    app.on("completed", lambda job, result: told.append(result))
    app.add("x", {"a": 1})
    until("it ran", lambda: told == [{"got": {"a": 1}}])
    name = unique("cron")
    app.cron(name, "0 0 * * *", {"k": 1})
    assert [cron["name"] for cron in app.list_crons()] == [name]
    app.remove_cron(name)
    app.close()
