"""What others see of a worker: its entry in the server's list, and what it logs when its loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
import time
from typing import Any

import pytest
from support.server import quiet_port
from support.waiting import PATIENCE_S, eventually, wait_until

from bunqueue import ActiveJob, AsyncQueue, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.protocol.commands import workers
from bunqueue.protocol.commands.workers import WorkerInfo
from bunqueue.worker.locks import lock_renewer, loop_monitor


async def listed(queue: AsyncQueue) -> list[WorkerInfo]:
    """The registered workers of a queue."""
    reply = await queue._caller.call(workers.ListWorkers())
    return [worker for worker in reply.data.workers if queue.name in worker.queues]


async def nobody_is_listed(queue: AsyncQueue) -> bool:
    return not await listed(queue)


async def test_a_worker_is_listed_from_its_start_to_its_end(
    queue: AsyncQueue, where: EndpointOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_renewer, "HEARTBEAT_S", 0.05)
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        if job.data == "bad":
            raise ValueError("bad")
        if job.data == "slow":
            await gate.wait()

    async def shows(**expected: Any) -> bool:
        found = await listed(queue)
        return len(found) == 1 and all(getattr(found[0], name) == value for name, value in expected.items())

    before = time.time() * 1000
    worker = Worker(
        queue.name, handler, concurrency=7, name="mill", heartbeat_interval=50, **where, on_failed=print
    )
    async with worker:
        await eventually(lambda: shows(active_jobs=0, processed_jobs=0), "it is listed, without any job")
        (entry,) = await listed(queue)
        assert (entry.id, entry.name, entry.queues) == (worker.owner, "mill", [queue.name])
        assert (entry.concurrency, entry.hostname, entry.pid) == (7, socket.gethostname(), os.getpid())
        assert before - 1 <= entry.registered_at_ms <= time.time() * 1000
        assert entry.status == "active"
        slow, *_ = await queue.add_bulk(
            [("n", "slow"), ("n", "good"), ("n", "good"), ("n", "bad")],
        )
        expected = {"active_jobs": 1, "processed_jobs": 2, "failed_jobs": 1, "current_job": slow.id}
        await eventually(lambda: shows(**expected), "its numbers are told")
        gate.set()
    await eventually(lambda: nobody_is_listed(queue), "it has left the list")


async def test_the_totals_of_a_worker_that_left_are_its_last_ones(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    async def totals() -> int:
        reply = await queue._caller.call(workers.ListWorkers())
        return reply.data.stats.total_processed

    before = await totals()
    async with Worker(queue.name, lambda job: None, **where) as worker:
        await eventually(lambda: listed(queue), "it is listed")
        await queue.add_bulk([("n", None)] * 5)
        await eventually(lambda: worker.stats.completed == 5, "all is done")
    await eventually(lambda: nobody_is_listed(queue), "it has left the list")
    assert await totals() == before + 5


async def test_after_the_server_has_gone_and_come_back_it_is_listed_again(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    server.start()
    async with Worker("q", print, port=server.port, heartbeat_interval=100) as worker:
        async with AsyncQueue("q", port=server.port) as queue:

            async def is_listed() -> bool:
                return [entry.id for entry in await listed(queue)] == [worker.owner]

            await eventually(is_listed, "it is listed")
        server.kill_all()
        server.restart()
        async with AsyncQueue("q", port=server.port) as queue:
            await eventually(is_listed, "it is listed again")


async def test_a_blocked_loop_is_told_with_the_place(
    queue: AsyncQueue,
    where: EndpointOptions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(loop_monitor, "BLOCKED", 0.2)
    monkeypatch.setattr(lock_renewer, "CHECK_S", 0.05)

    place = rf"{__name__}\.test_a_blocked_loop.*\.parse:\d+"

    def told() -> list[str]:
        return re.findall(rf"loop blocked \d+\.\d s in {place}: nothing else", caplog.text)

    def parse() -> None:
        end = time.monotonic() + PATIENCE_S
        while len(told()) < 2 and time.monotonic() < end:
            time.sleep(0.01)  # what blocks is a loop of calls here, seen from the outside

    async def handler(job: ActiveJob) -> None:
        parse()

    await queue.add("n")
    with caplog.at_level(logging.WARNING, "bunqueue.worker"):
        async with Worker(queue.name, handler, **where) as worker:
            await eventually(lambda: worker.stats.completed == 1, "it is done")
            end = rf"loop continues after \d+\.\d s in {place}$"
            await eventually(lambda: re.search(end, caplog.text, re.MULTILINE), "the end is told")
    assert len(told()) >= 2


async def test_a_loop_that_turns_is_not_told_of(
    queue: AsyncQueue,
    where: EndpointOptions,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lock_renewer, "CHECK_S", 0.01)
    # It blocks, but not for long.
    async with Worker(queue.name, lambda job: time.sleep(0.2), **where) as worker:
        await queue.add("n")
        await eventually(lambda: worker.stats.completed == 1, "it is done")
    assert "blocked" not in caplog.text


# -- health, and its end ----------------------------------------------------------------------------------


async def test_health_over_a_workers_life(queue: AsyncQueue, where: EndpointOptions) -> None:
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        await gate.wait()

    worker = Worker(queue.name, handler, **where)
    assert (worker.health().ok, worker.health().state) == (False, "stopped")
    await queue.add("n")
    await worker.start()
    assert worker.health().ok  # it has only begun
    await eventually(lambda: worker.stats.active == 1, "it runs")
    health = worker.health()
    assert (health.ok, health.state) == (True, "running")
    assert health.silence is not None
    assert health.silence < 60
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: worker.health().state == "stopping", "it stops")
    assert worker.health().ok  # a probe must not kill what drains
    gate.set()
    await stopping
    assert (worker.health().ok, worker.health().state) == (False, "stopped")


async def test_a_worker_without_a_server_is_not_well() -> None:
    worker = Worker("q", print, port=quiet_port(), on_error=lambda error: None)
    await worker.start()
    assert worker.health().ok
    await eventually(lambda: not worker.health(max_silence=200).ok, "it is not well any more")
    assert worker.health().silence is None
    await worker.stop()


async def test_a_worker_whose_loop_is_blocked_is_not_well(
    queue: AsyncQueue, where: EndpointOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_renewer, "CHECK_S", 0.05)
    seen: list[Any] = []

    def look() -> None:
        wait_until(lambda: worker.health().loop_lag > 0.3, "its loop owes an answer")
        seen.append(worker.health(max_silence=300))

    async def handler(job: ActiveJob) -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()  # blocks the loop

    worker = Worker(queue.name, handler, **where)
    await queue.add("n")
    async with worker:
        await eventually(lambda: worker.stats.completed == 1, "it is done")
    (health,) = seen
    assert not health.ok
    assert health.loop_lag > 0.3


@pytest.mark.parametrize(
    ("option", "text"), [({"max_jobs": 4}, "it has run 4 jobs"), ({"max_memory": 1}, "it holds")]
)
async def test_what_is_worn_out_stops_in_order(
    queue: AsyncQueue,
    where: EndpointOptions,
    option: dict[str, int],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_renewer, "CHECK_S", 0.05)
    await queue.add_bulk([("n", None)] * 20)
    worker = Worker(queue.name, lambda job: None, concurrency=2, **where, **option)
    assert worker.recycle_reason is None
    assert await asyncio.wait_for(worker.serve(), 60) is None
    assert str(worker.recycle_reason).startswith(text)
    if "max_jobs" in option:
        assert worker.stats.completed == 4

    async def none_is_active() -> bool:  # the server gives back what a poll took while it was withdrawn
        return (await queue.counts()).active == 0

    await eventually(none_is_active, "no job is active")
    assert (await queue.counts()).completed == worker.stats.completed


async def test_workers_are_called_by_what_tells_them_apart() -> None:
    async def handler(job: ActiveJob) -> None: ...

    here = f"{socket.gethostname()}:{os.getpid()}"
    assert Worker("emails", handler).name == f"emails@{here}"
    assert Worker(["invoices", "exports", "taxes"], handler, concurrency=3).name == f"invoices+2@{here}"
    assert Worker("emails", handler, name="mill").name == "mill"
    assert len(Worker("q" * 200, handler).name) == 200
