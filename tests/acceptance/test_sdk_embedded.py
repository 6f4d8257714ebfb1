"""The client on an engine inside the same process: same names, same answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from support.waiting import eventually, wait_until

from bunqueue import ActiveJob, AsyncQueue, BunqueueError, JobCounts, Queue, Worker


@pytest.mark.parametrize("on_disk", [True, False])
async def test_the_whole_way(tmp_path: Path, on_disk: bool) -> None:
    path = str(tmp_path / "jobs.db") if on_disk else None
    done: Counter[int] = Counter()

    async def handler(job: ActiveJob) -> int:
        await job.progress(50)
        if job.data % 5 == 0 and not job.attempts:
            raise ValueError(job.data)
        done[job.data] += 1
        return job.data * 2

    async with AsyncQueue(
        "q", embedded=True, data_path=path, default_job_options={"backoff": 1, "max_attempts": 2}
    ) as queue:
        handles = await queue.add_bulk([("n", number) for number in range(100)])
        async with Worker(
            "q", handler, embedded=True, data_path=path, concurrency=10, heartbeat_interval=10
        ) as worker:
            await eventually(lambda: worker.stats.completed == 100, "all are done")
        assert done == Counter(range(100))
        assert worker.stats.failed == 20
        assert await queue.counts() == JobCounts(completed=100)
        assert await handles[7].result() == 14
        with pytest.raises(BunqueueError, match="Job not found"):
            await queue.handle("nothing").job()


async def test_stopping_gives_back_what_was_not_begun(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        await gate.wait()

    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        handles = await queue.add_bulk([("n", number) for number in range(3)])
        worker = Worker("q", handler, embedded=True, data_path=path, concurrency=2)
        await worker.start()
        await eventually(lambda: worker.stats.active == 2, "two run")
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        gate.set()
        await stopping
        assert [await handle.state() for handle in handles] == ["completed", "completed", "waiting"]


def test_what_was_added_is_there_for_the_next_who_opens_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with Queue("q", embedded=True, data_path=path) as queue:
        job_id = queue.add("n", {"x": 1}).id

    async def look() -> object:
        async with AsyncQueue("q", embedded=True, data_path=path) as queue:
            return (await queue.handle(job_id).job()).data

    assert asyncio.run(look()) == {"x": 1}


async def test_blocking_and_asynchronous_objects_share_one_engine(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")

    def in_thread() -> str:
        with Queue("q", embedded=True, data_path=path) as queue:
            handle = queue.add("n", 4)
            wait_until(lambda: handle.state() == "completed", "the worker has done it")
            return str(handle.result())

    async with Worker("q", lambda job: job.data + 1, embedded=True, data_path=path):
        assert await asyncio.to_thread(in_thread) == "5"
