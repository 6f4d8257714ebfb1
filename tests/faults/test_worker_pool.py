"""Four worker processes with fifty jobs each: whatever breaks, heartbeats go on and every job completes once.

"Once" is what the server counts. Where no lock may be lost, no job may be begun twice either.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.proxy import Proxy
from support.server import Server, StartServer, quiet_port
from support.waiting import eventually
from support.worker_pool import WorkerPool
from support.worker_program import RAISED

from bunqueue import AsyncQueue, NewJob

CONCURRENCY = 50


def pool(folder: Path, queue: AsyncQueue, port: int, **options: Any) -> WorkerPool:
    options = {"lock_ttl": 10_000, "poll_timeout": 500} | options
    return WorkerPool(folder, queue.name, port=port, concurrency=CONCURRENCY, **options)


async def add(queue: AsyncQueue, jobs: Iterable[tuple[str, Any]]) -> set[str]:
    """Their ids. Retries come at once."""
    handles = await queue.add_bulk([NewJob(name, data, backoff=1, max_attempts=10) for name, data in jobs])
    return {handle.id for handle in handles}


async def until_done(queue: AsyncQueue, added: set[str]) -> None:
    """All have completed, each once, and there is nothing else."""

    async def settled() -> bool:
        counts = await queue.counts()
        return counts.waiting == counts.delayed == counts.active == 0

    await eventually(settled, "nothing is left to do")
    counts = await queue.counts()
    assert (counts.completed, counts.failed) == (len(added), 0)
    jobs = await queue.get_jobs("completed", limit=10_000)
    assert {job.id for job in jobs} == added


async def attempts(queue: AsyncQueue) -> int:
    """That were counted in vain, over all jobs, lost locks among them."""
    jobs = await queue.get_jobs("completed", limit=10_000)
    return sum(job.attempts + job.stall_count for job in jobs)


async def until_begun(workers: WorkerPool, count: int) -> None:
    await eventually(lambda: len(workers.runs()) >= count, f"{count} jobs were begun")


async def test_the_server_is_killed_and_restarted(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server(port=quiet_port())
    server.start()
    async with AsyncQueue("killed", port=server.port) as queue:
        added = await add(queue, [("sleep", 0.2)] * 1200)
        # Jobs whose pull was answered into the void come back when their lock runs out.
        async with pool(tmp_path, queue, server.port).running() as workers:
            for part in (200, 600):
                await until_begun(workers, part)
                await asyncio.to_thread(server.kill_all)
                await asyncio.to_thread(server.restart)
            await until_done(queue, added)
    assert set(workers.runs().values()) == {1}  # also those that were running then
    assert workers.stats["lost"] == workers.ended == 0


async def test_all_connections_go_half_open(shared_server: Server, proxy: Proxy, tmp_path: Path) -> None:
    patience = "command_timeout=1000&ping_interval=500&max_ping_failures=2"
    async with AsyncQueue("half-open", port=shared_server.port) as queue:
        added = await add(queue, [("sleep", 0.5)] * 1000)
        url = f"bunqueue://127.0.0.1:{proxy.port}?{patience}"
        options = {"lock_ttl": 10_000, "poll_timeout": 500, "concurrency": CONCURRENCY}
        async with WorkerPool(tmp_path, queue.name, url=url, **options).running() as workers:
            for part in (200, 600):
                await until_begun(workers, part)
                before = proxy.accepted
                frozen = proxy.freeze()
                assert frozen >= 4
                await eventually(lambda: proxy.accepted >= before + 4, "all have come anew")  # noqa: B023
            await until_done(queue, added)
    assert set(workers.runs().values()) == {1}
    assert workers.stats["lost"] == workers.ended == 0


async def test_a_process_is_stopped_for_longer_than_its_locks_last(
    shared_server: Server, tmp_path: Path
) -> None:
    async with AsyncQueue("stopped", port=shared_server.port) as queue:
        added = await add(queue, [("sleep", 0.2)] * 600)
        async with pool(tmp_path, queue, shared_server.port).running() as workers:
            await eventually(lambda: len(workers.begun_by()) == 4, "all of them work")
            frozen = workers.processes[0]
            begun = workers.begun_by()[frozen.pid]
            frozen.send_signal(signal.SIGSTOP)
            await until_done(queue, added)  # the others do its jobs, too
            frozen.send_signal(signal.SIGCONT)  # and now it reports what was taken from it
            await eventually(lambda: "does not count" in workers.log(), "it was told")
        assert begun > 0
        twice = workers.runs().total() - len(added)
        assert 0 < workers.stats["lost"] <= twice <= CONCURRENCY
        await until_done(queue, added)


@pytest.mark.parametrize("name", ["block", "spin"])
async def test_handlers_keep_the_loop_busy(shared_server: Server, tmp_path: Path, name: str) -> None:
    """Each process has jobs that wait behind some that block it, twelve seconds in all: for several lives of
    a lock, and from one look that the shard takes at locks to the next."""
    async with AsyncQueue(name, port=shared_server.port) as queue:
        added = await add(queue, [("sleep", 0.1) if number % 17 else (name, 4) for number in range(200)])
        async with pool(tmp_path, queue, shared_server.port, lock_ttl=4000).running() as workers:
            await until_done(queue, added)
        assert await attempts(queue) == 0
    assert set(workers.runs().values()) == {1}
    assert workers.stats["lost"] == 0


async def test_handlers_raise_anything(shared_server: Server, tmp_path: Path) -> None:
    async with AsyncQueue("raising", port=shared_server.port) as queue:
        raising = [("raise", kind) for kind in RAISED for _ in range(5)]
        added = await add(queue, raising + [("sleep", 0.1)] * 200)
        async with pool(tmp_path, queue, shared_server.port).running() as workers:
            await until_done(queue, added)
        assert await attempts(queue) == len(raising)
    assert workers.runs().total() == len(added) + len(raising)
    assert workers.stats["lost"] == 0
