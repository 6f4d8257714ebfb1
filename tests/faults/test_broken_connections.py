"""Connections that break below a worker: what it runs stays its own, and is not begun again.

A reset is what a firewall does, an orderly end what a load balancer does; only the second looks to the server
as if the worker had gone.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.proxy import RESET, Proxy
from support.server import Server
from support.waiting import eventually
from support.wire import Wire
from support.worker_pool import WorkerPool

from bunqueue import ActiveJob, AsyncQueue, Worker

LONG_MS = 3_600_000
BREAKS: list[Callable[[Proxy], None]] = [Proxy.reset, Proxy.hang_up]
breaks = pytest.mark.parametrize("end", BREAKS, ids=lambda end: end.__name__)


class Runs:
    """A handler that notes how often each job was begun, and whether a run of it still went on then."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.overlaps = 0
        self._running: set[str] = set()

    async def handler(self, job: ActiveJob) -> None:
        self.begun[job.id] += 1
        self.overlaps += job.id in self._running
        self._running.add(job.id)
        await asyncio.sleep(job.data)  # how long the job runs
        self._running.discard(job.id)


async def state(wire: Wire, job_id: str) -> str:
    return str((await wire.ok("GetState", id=job_id))["state"])


async def until(wire: Wire, job_id: str, wanted: str) -> None:
    async def reached() -> bool:
        return await state(wire, job_id) == wanted

    await eventually(reached, f"the job is {wanted}")


async def reset(wire: Wire) -> None:
    sock = wire._transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    wire.abort()
    await wire.until_ended()


async def work_through_breaks(
    server: Server, proxy: Proxy, end: Callable[[Proxy], None], jobs: list[float], pause: float
) -> Runs:
    """Run jobs of so many seconds while their connections end again and again."""
    runs, name = Runs(), f"broken-{end.__name__}-{len(jobs)}"
    async with AsyncQueue(name, port=server.port) as queue:
        await queue.add_bulk([("sleep", seconds) for seconds in jobs])
        options: dict[str, Any] = {"port": proxy.port, "lock_ttl": 20_000, "concurrency": 30}
        async with Worker(name, runs.handler, **options) as worker:
            chance = random.Random(len(jobs))
            while (await queue.counts()).completed < len(jobs) * 9 // 10:
                await asyncio.sleep(pause * chance.random())  # at any moment
                end(proxy)

            async def all_done() -> bool:
                return (await queue.counts()).completed == len(jobs)

            await eventually(all_done, "all jobs are done")
            assert worker.stats.lost == 0
        counts = await queue.counts()
        assert (counts.completed, counts.failed, counts.waiting, counts.active) == (len(jobs), 0, 0, 0)
    return runs


@breaks
async def test_a_worker_whose_connections_break_begins_no_job_twice(
    shared_server: Server, proxy: Proxy, end: Callable[[Proxy], None]
) -> None:
    chance = random.Random(1)
    jobs = [chance.uniform(0.05, 2) for _ in range(150)]
    runs = await work_through_breaks(shared_server, proxy, end, jobs, 0.6)
    assert runs.overlaps == 0
    assert [count for count in runs.begun.values() if count > 1] == []


@pytest.mark.nightly
@breaks
async def test_thousands_of_jobs_through_a_bad_line(
    shared_server: Server, proxy: Proxy, end: Callable[[Proxy], None]
) -> None:
    chance = random.Random(2)
    jobs = [chance.uniform(0.1, 15) if chance.random() < 0.1 else chance.uniform(0, 0.2) for _ in range(3000)]
    runs = await work_through_breaks(shared_server, proxy, end, jobs, 1.0)
    assert runs.overlaps == 0
    assert [count for count in runs.begun.values() if count > 1] == []


async def test_a_job_waits_for_its_worker_after_a_reset(shared_server: Server) -> None:
    """It comes back with its token: by a heartbeat from anywhere, or by the acknowledgement itself."""
    async with await Wire.open(shared_server.address) as other:
        for command in ("JobHeartbeat", "ACK"):
            queue = f"reset-{command}"
            wire = await Wire.open(shared_server.address)
            job_id = (await wire.ok("PUSH", queue=queue, data=1))["id"]
            token = (await wire.ok("PULL", queue=queue, owner="w", lockTtl=LONG_MS))["token"]
            await reset(wire)
            assert (await other.ok("PULL", queue=queue, timeout=1000))["job"] is None
            await other.ok(command, id=job_id, token=token)
            assert await state(other, job_id) == ("completed" if command == "ACK" else "active")


async def test_a_job_goes_back_when_its_worker_does_not_return(shared_server: Server) -> None:
    """Half the time of its lock is what a worker has that renews it every third of that time."""
    async with await Wire.open(shared_server.address) as other:
        wire = await Wire.open(shared_server.address)
        job_id = (await wire.ok("PUSH", queue="left", data=1))["id"]
        await wire.ok("PULL", queue="left", owner="w", lockTtl=2000)
        unlocked = (await wire.ok("PUSH", queue="left", data=2))["id"]
        await wire.ok("PULL", queue="left")
        await reset(wire)
        await until(other, unlocked, "waiting")
        await until(other, job_id, "waiting")
        job = (await other.ok("GetJob", id=job_id))["job"]
        assert (job["attempts"], job["stallCount"]) == (0, 0)


async def test_what_was_given_back_too_early_can_be_taken_again(shared_server: Server) -> None:
    """The connection was closed in order, but not by the worker."""
    async with await Wire.open(shared_server.address) as other:
        jobs = []
        for _ in range(3):
            wire = await Wire.open(shared_server.address)
            job_id = (await wire.ok("PUSH", queue="early", data=1))["id"]
            ttl = 10_000 if len(jobs) == 1 else LONG_MS  # the second lock has to expire
            jobs.append((job_id, (await wire.ok("PULL", queue="early", owner="w", lockTtl=ttl))["token"]))
            await wire.close()
            await until(other, job_id, "waiting")
            if len(jobs) < 3:  # the third is one that somebody else takes
                await other.ok("JobHeartbeat", id=job_id, token=jobs[-1][1])
                assert await state(other, job_id) == "active"
        (first, token), (second, _), (third, lost) = jobs
        assert (await other.ok("PULL", queue="early", owner="thief"))["job"]["id"] == third
        assert (await other.ok("PULL", queue="early"))["job"] is None
        assert "invalid token" in await other.error("JobHeartbeat", id=third, token=lost)
        await other.ok("ACK", id=first, token=token)
        await until(other, second, "waiting")  # the lock that it was given again runs out, as every lock


@pytest.mark.parametrize("unread", [False, True], ids=["idle", "with-unread-jobs"])
async def test_the_jobs_of_a_killed_worker_go_back_at_once(
    shared_server: Server, tmp_path: Path, unread: bool
) -> None:
    """Also of one that had not read what it was sent: the kernel resets its connection then."""
    name = f"killed-{unread}"
    async with AsyncQueue(name, port=shared_server.port) as queue:
        options = {"port": shared_server.port, "concurrency": 6, "lock_ttl": LONG_MS}
        async with WorkerPool(tmp_path, name, size=1, **options).running() as workers:
            handles = await queue.add_bulk([("sleep", 600.0)] * 3)
            await eventually(lambda: len(workers.runs()) == 3, "they run")
            (process,) = workers.processes
            if unread:
                process.send_signal(signal.SIGSTOP)
                handles += await queue.add_bulk([("sleep", 600.0)] * 2)

            async def taken() -> bool:
                return (await queue.counts()).active == len(handles)

            await eventually(taken, "it has been given all of them")
            process.kill()
            # The next process begins them anew, once it has started, and long before their locks end.
            await eventually(lambda: len(workers.begun_by()) == 2, "another process has begun one")

            async def again() -> bool:
                return sum(workers.runs().values()) == 3 + len(handles)

            await eventually(again, "all are begun again")
            jobs = [await handle.job() for handle in handles]
            assert [(job.attempts, job.stall_count) for job in jobs] == [(0, 0)] * len(handles)
            process = workers.processes[0]
            process.kill()
