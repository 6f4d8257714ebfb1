"""Workers are paused, resumed, and given more or fewer places, while they run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncAdmin, AsyncQueue, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.errors import CommandFailed, NotFound, OptionError
from bunqueue.protocol.commands.workers import WorkerInfo
from bunqueue.worker.locks import lock_renewer


@pytest.fixture
async def admin(where: EndpointOptions, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncAdmin]:
    monkeypatch.setattr(lock_renewer, "CHECK_S", 0.05)
    monkeypatch.setattr(lock_renewer, "HEARTBEAT_S", 0.05)
    async with AsyncAdmin(**where) as admin:
        yield admin


class Gate:
    """A handler that is kept waiting, and how many of it run."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = self.most = 0

    async def __call__(self, job: ActiveJob) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.open.wait()
        self.running -= 1


async def entry(admin: AsyncAdmin, worker: Worker) -> WorkerInfo | None:
    return next((each for each in await admin.list_workers() if each.id == worker.owner), None)


async def shows(admin: AsyncAdmin, worker: Worker, *, paused: bool, concurrency: int) -> bool:
    found = await entry(admin, worker)
    return found is not None and (found.paused, found.concurrency) == (paused, concurrency)


async def test_a_paused_worker_takes_nothing_and_goes_on_with_what_it_has(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    gate = Gate()
    async with Worker(queue.name, gate, concurrency=2, **where) as worker:
        first = await queue.add("n")
        await eventually(lambda: gate.running == 1, "it runs")
        worker.pause()
        assert worker.paused
        polled = await queue.add("n")  # a poll was under way, and may bring it: it goes back
        gate.open.set()
        await first.result(60_000)
        await eventually(lambda: worker.stats.active == 0, "nothing is in hand")
        later = await queue.add("n")
        assert gate.most == 1

        async def both_wait() -> bool:  # one that a poll brought is reported back a moment later
            return [(await job.job()).state for job in (polled, later)] == ["waiting", "waiting"]

        await eventually(both_wait, "both wait")
        assert gate.most == 1
        assert (await polled.job()).attempts == 0
        worker.resume()
        for job in (polled, later):
            await job.result(60_000)


async def test_a_worker_may_be_paused_before_it_starts_and_from_a_thread(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    worker = Worker(queue.name, lambda job: None, **where)
    worker.pause()
    job = await queue.add("n")
    async with worker:
        thread = threading.Thread(target=worker.resume)
        assert (await job.job()).state == "waiting"
        thread.start()
        await job.result(60_000)
        thread.join()


async def test_more_places_are_used_at_once_and_fewer_when_jobs_have_ended(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    gate = Gate()
    async with Worker(queue.name, gate, concurrency=1, **where) as worker:
        await queue.add_bulk([("n", None)] * 12)
        await eventually(lambda: gate.running == 1, "one runs")
        worker.set_concurrency(8)
        await eventually(lambda: gate.running == 8, "eight run")
        worker.set_concurrency(2)
        assert worker.concurrency == 2
        gate.open.set()
        await eventually(lambda: worker.stats.completed == 12, "all is done")
        gate.open.clear()
        gate.most = 0
        await queue.add_bulk([("n", None)] * 6)
        await eventually(lambda: gate.running == 2, "two run")
        gate.open.set()
        await eventually(lambda: worker.stats.completed == 18, "all is done")
        assert gate.most == 2


async def test_threads_follow(queue: AsyncQueue, where: EndpointOptions) -> None:
    both = threading.Barrier(3)
    async with Worker(queue.name, lambda job: both.wait(60), concurrency=1, **where) as worker:
        worker.set_concurrency(3)
        await queue.add_bulk([("n", None)] * 3)  # each waits for the other two
        await eventually(lambda: worker.stats.completed == 3, "three ran at the same time")


async def test_it_is_controlled_from_elsewhere(
    queue: AsyncQueue, where: EndpointOptions, admin: AsyncAdmin
) -> None:
    gate = Gate()
    async with Worker(queue.name, gate, concurrency=1, **where) as worker:
        await eventually(lambda: shows(admin, worker, paused=False, concurrency=1), "it is listed")
        was = await admin.control_worker(worker.owner, paused=True, concurrency=3)
        assert (was.paused, was.concurrency) == (False, 1)
        await eventually(lambda: shows(admin, worker, paused=True, concurrency=3), "it has heard")
        assert (worker.paused, worker.concurrency) == (True, 3)
        jobs = await queue.add_bulk([("n", None)] * 4)
        await admin.control_worker(worker.owner, paused=False)
        await eventually(lambda: gate.running == 3, "it has more places")
        worker.pause()  # what it says itself is not undone by what was asked of it before
        await eventually(lambda: shows(admin, worker, paused=True, concurrency=3), "it says so")
        gate.open.set()
        await eventually(lambda: worker.stats.completed == 3, "what it had is done")

        async def is_left() -> bool:
            return sorted([(await job.job()).state for job in jobs]) == ["completed"] * 3 + ["waiting"]

        await eventually(is_left, "the fourth is given back")


async def test_what_cannot_be_is_refused(
    queue: AsyncQueue, where: EndpointOptions, admin: AsyncAdmin
) -> None:
    async with Worker([queue.name, f"{queue.name}-b"], print, concurrency=2, **where) as worker:
        await eventually(lambda: entry(admin, worker), "it is listed")
        with pytest.raises(CommandFailed, match="at least 2, one for each queue") as caught:
            await admin.control_worker(worker.owner, concurrency=1)
        assert (caught.value.field, caught.value.bound) == ("concurrency", 2)
        with pytest.raises(OptionError, match="concurrency: 1 is too little for 2 queues"):
            worker.set_concurrency(1)
        with pytest.raises(OptionError, match="concurrency"):
            worker.set_concurrency(0)
        with pytest.raises(NotFound):
            await admin.control_worker("absent", paused=True)
        assert not worker.paused


async def test_it_stays_paused_over_a_restart_of_the_server(
    make_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_renewer, "CHECK_S", 0.05)
    server = make_server()  # type: ignore[operator]
    server.start()
    worker = Worker("q", print, port=server.port, heartbeat_interval=100)
    worker.pause()
    async with worker:
        async with AsyncAdmin(port=server.port) as admin:
            await eventually(lambda: shows(admin, worker, paused=True, concurrency=1), "it says so")
        server.kill_all()
        server.restart()
        async with AsyncAdmin(port=server.port) as admin, AsyncQueue("q", port=server.port) as queue:
            job = await queue.add("n")
            await eventually(lambda: shows(admin, worker, paused=True, concurrency=1), "it says so again")
            assert (await job.job()).state == "waiting"
            worker.resume()
            begun = time.monotonic()
            await job.result(60_000)
            assert time.monotonic() - begun < 30
