"""Only one process of the server stands still: what nobody could hear meanwhile is held against nobody."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.server import Server, StartServer
from support.waiting import eventually
from support.wire import Wire

from bunqueue import ActiveJob, AsyncQueue, ConnectionOptions, Worker

LOCK_MS = 5_000  # more than a busy machine needs between two signs of life
STILL_S = 11.0  # longer than a lock, and than the 5 s between two looks for locks that have run out
LONG_S = 40.0


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """While this lasts, a process does nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def job_of(wire: Wire, job_id: str) -> dict[str, object]:
    job: dict[str, object] = (await wire.ok("GetJob", id=job_id))["job"]
    return job


async def test_a_router_that_stands_still_costs_no_worker_its_jobs(server: Server) -> None:
    """Locks, renewed or not, outlive a time in which the shards alone went on; so does a job with a timeout
    that was acknowledged in time."""
    async with await Wire.open(server.address) as wire:
        renewed = (await wire.ok("PUSH", queue="q", data=1, maxAttempts=1))["id"]
        fresh = (await wire.ok("PUSH", queue="q", data=2, maxAttempts=1))["id"]
        timed = (await wire.ok("PUSH", queue="q", data=3, maxAttempts=1, timeout=LOCK_MS))["id"]
        tokens = [(await wire.ok("PULL", queue="q", owner="w", lockTtl=LOCK_MS))["token"] for _ in range(3)]
        await wire.ok("JobHeartbeat", id=renewed, token=tokens[0])
        with standing_still(server.pid):
            heard_late = [
                wire.send("JobHeartbeat", id=renewed, token=tokens[0]),
                wire.send("JobHeartbeat", id=fresh, token=tokens[1]),
                wire.send("ACK", id=timed, token=tokens[2]),
            ]
            await asyncio.sleep(STILL_S)  # the fault itself
        for reply in heard_late:
            assert (await reply)["ok"]
        for job_id, token in ((renewed, tokens[0]), (fresh, tokens[1])):
            job = await job_of(wire, job_id)
            assert (job["state"], job["attempts"], job["stallCount"]) == ("active", 0, 0)
            await wire.ok("ACK", id=job_id, token=token)
        assert (await job_of(wire, timed))["state"] == "completed"
    assert "the router stood still" in server.log()


async def test_who_is_really_gone_is_still_found_out(server: Server) -> None:
    """Locks run anew when the router is back, once."""
    async with await Wire.open(server.address) as wire:
        job_id = (await wire.ok("PUSH", queue="q", data=1))["id"]
        token = (await wire.ok("PULL", queue="q", owner="w", lockTtl=2000))["token"]
        await wire.ok("JobHeartbeat", id=job_id, token=token)
        with standing_still(server.pid):
            await asyncio.sleep(3.0)  # the fault itself: long enough to be noticed

        async def lost() -> bool:
            return (await job_of(wire, job_id))["attempts"] == 1

        await eventually(lost, "the lock has run out")


async def work_beside(server: Server, still_s: float, lock_ttl: int, options: ConnectionOptions) -> None:
    """A worker and an idle one; the router stands still while the first one works."""
    runs: Counter[str] = Counter()
    gate = asyncio.Event()

    async def slow(job: ActiveJob) -> None:
        runs[job.id] += 1
        await gate.wait()

    async def quick(job: ActiveJob) -> None:
        runs[job.id] += 1

    common = {"port": server.port, "lock_ttl": lock_ttl, "poll_timeout": 500, "connection": options}
    async with (
        AsyncQueue("beside", port=server.port) as queue,
        Worker("beside", slow, concurrency=20, **common) as worker,  # type: ignore[arg-type]
    ):
        handles = await queue.add_bulk([("n", number) for number in range(20)])
        await eventually(lambda: len(runs) == 20, "all run")
        async with Worker("beside", quick, concurrency=20, **common) as idle:  # type: ignore[arg-type]
            await eventually(lambda: idle.health().silence is not None, "the idle worker is connected")
            with standing_still(server.pid):
                await asyncio.sleep(still_s)  # the fault itself
            await queue.counts()
            await eventually(lambda: (worker.health().silence or 9) < 1, "the worker is back")
            gate.set()

            async def done() -> bool:
                return (await queue.counts()).completed == 20

            await eventually(done, "all are done")
            assert (worker.stats.completed, worker.stats.lost, idle.stats.completed) == (20, 0, 0)
        assert set(runs.values()) == {1}
        jobs = [await handle.job() for handle in handles]
        assert {(job.attempts, job.stall_count) for job in jobs} == {(0, 0)}


async def test_a_worker_keeps_what_it_runs_though_the_router_stood_still(server: Server) -> None:
    """Also when it has given up its connections meanwhile, as nobody answered."""
    await work_beside(server, STILL_S, LOCK_MS, ConnectionOptions(command_timeout=1500))


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [15.0, LONG_S])
async def test_a_worker_keeps_what_it_runs_with_the_usual_times(server: Server, seconds: float) -> None:
    await work_beside(server, seconds, 30_000, ConnectionOptions())


async def test_a_shard_that_stands_still_costs_no_worker_its_jobs(make_server: StartServer) -> None:
    """Neither its own, nor those of its peer, whose questions it does not answer."""
    server = make_server(shards=2)
    server.start()
    async with await Wire.open(server.address) as wire:
        held = []
        for number in range(8):
            job_id = (await wire.ok("PUSH", queue=f"q{number}", data=1, maxAttempts=1))["id"]
            token = (await wire.ok("PULL", queue=f"q{number}", owner="w", lockTtl=LOCK_MS))["token"]
            held.append((job_id, token))
        with standing_still(server.shard(1).pid):
            for _ in range(int(STILL_S)):
                beats = [wire.send("JobHeartbeat", id=job_id, token=token) for job_id, token in held]
                await asyncio.sleep(1)  # the fault itself, and the pace of a worker
        for beat in beats:
            assert (await beat)["ok"]
        for job_id, token in held:
            await wire.ok("ACK", id=job_id, token=token)
