"""Batches that wait for a least number of jobs, or for a time: when they run, and that no job is lost."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

import pytest
from sdk.conftest import EndpointOptions, is_renewed
from support.server import Server
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, Batch, Bunqueue, OptionError, Postpone, RetryRules, Worker

FOREVER = timedelta(hours=1)


class Kept:
    """A handler of batches, and which it got."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def __call__(self, jobs: list[ActiveJob]) -> list[Any]:
        self.batches.append([job.data for job in jobs])
        assert all(job.attempts == 0 for job in jobs)
        return [job.data * 10 for job in jobs]

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.batches]


async def add(queue: AsyncQueue, count: int) -> list[Any]:
    return await queue.add_bulk([("n", number) for number in range(count)])


async def test_a_batch_takes_all_that_are_there(queue: AsyncQueue, where: EndpointOptions) -> None:
    kept = Kept()
    batch = Batch(kept, size=10, min_size=3, max_wait=FOREVER)
    handles = await add(queue, 17)
    async with Worker(queue.name, {"n": batch}, concurrency=10, **where):
        assert [await handle.result(60_000) for handle in handles] == [number * 10 for number in range(17)]
        assert kept.sizes == [10, 7]
        handles = await add(queue, 2)
        await eventually(lambda: len(batch._waiting) == 2, "both are there")
        assert kept.sizes == [10, 7]
        handles += await add(queue, 1)
        assert [await handle.result(60_000) for handle in handles] == [0, 10, 0]
        assert kept.sizes == [10, 7, 3]


async def test_it_begins_with_fewer_when_the_first_has_waited(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    kept = Kept()
    async with Worker(queue.name, Batch(kept, min_size=3, max_wait=50), concurrency=10, **where):
        (handle,) = await add(queue, 1)
        assert await handle.result(60_000) == 0
    assert kept.sizes == [1]


def test_plain_functions_and_apps(where: EndpointOptions, name: str) -> None:
    app = Bunqueue(name, **where)
    sizes: list[int] = []

    @app.batch("n", size=5, min_size=2, max_wait=FOREVER)
    def several(jobs: list[ActiveJob]) -> None:
        sizes.append(len(jobs))

    handles = app.queue.add_bulk([("n", number) for number in range(4)])

    async def work() -> None:
        async with app:
            await asyncio.gather(*[asyncio.to_thread(handle.result, 60_000) for handle in handles])

    asyncio.run(work())
    app.close()
    assert sizes == [4]


async def test_locks_are_renewed_while_a_batch_is_filled(queue: AsyncQueue, where: EndpointOptions) -> None:
    kept = Kept()
    batch = Batch(kept, min_size=2, max_wait=FOREVER)
    async with Worker(queue.name, batch, concurrency=10, heartbeat_interval=50, **where):
        first = await add(queue, 1)
        await eventually(lambda: len(batch._waiting) == 1, "it is there")
        await eventually(lambda: is_renewed(first[0]), "its lock is renewed")
        assert await queue.pull() is None
        for handle in first + await add(queue, 1):
            assert await handle.result(60_000) == 0
        assert (await first[0].job()).stall_count == 0
    assert kept.sizes == [2]


async def test_jobs_of_a_batch_that_is_not_full_go_back_when_the_worker_stops(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    kept = Kept()
    batch = Batch(kept, min_size=3, max_wait=FOREVER)
    worker = Worker(queue.name, batch, concurrency=10, grace=FOREVER, **where)
    handles = await add(queue, 2)
    async with worker:
        await eventually(lambda: len(batch._waiting) == 2, "both are there")
    assert (kept.sizes, worker.stats.interrupted) == ([], 2)
    for handle in handles:
        job = await handle.job()
        assert (job.state, job.attempts) == ("waiting", 0)
    async with worker:
        handles += await add(queue, 1)
        for handle in handles:
            await handle.result(60_000)
    assert kept.sizes == [3]


async def test_jobs_that_were_completed_first_run_when_the_worker_stops(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    kept = Kept()
    batch = Batch(kept, min_size=3, max_wait=FOREVER)
    await add(queue, 2)
    async with Worker(queue.name, batch, concurrency=10, at_most_once=True, **where):
        await eventually(lambda: len(batch._waiting) == 2, "both are there")
    assert kept.sizes == [2]


async def test_a_job_that_is_cancelled_does_not_count(queue: AsyncQueue, where: EndpointOptions) -> None:
    kept = Kept()
    batch = Batch(kept, size=2, max_wait=FOREVER)
    async with Worker(queue.name, batch, concurrency=2, heartbeat_interval=50, **where):
        first, second = [(await add(queue, 1))[0], (await queue.add("n", 1))]
        for handle in (first, second):  # one was there alone
            await handle.result(60_000)
        (alone,) = await add(queue, 1)
        await eventually(lambda: len(batch._waiting) == 1, "it is there")
        await alone.cancel()
        await eventually(lambda: not batch._waiting, "it is gone")
        handles = [await queue.add("n", number) for number in (7, 8)]
        assert [await handle.result(60_000) for handle in handles] == [70, 80]
        assert await alone.state() == "cancelled"
    assert sorted(kept.batches[-1]) == [7, 8]


async def test_the_workers_rules_hold_for_batches(queue: AsyncQueue, where: EndpointOptions) -> None:
    async def handler(jobs: list[ActiveJob]) -> list[object]:
        return [ConnectionError("never"), Postpone(60_000)]

    rules = RetryRules(never=[ConnectionError])
    async with Worker(queue.name, Batch(handler, size=2), concurrency=2, retry=rules, **where):
        dead, later = await add(queue, 2)
        await dead.wait(60_000)
        assert await dead.state() == "failed"
        await eventually(lambda: _is(later, "delayed"), "it was put off")


async def _is(handle: Any, state: str) -> bool:
    return bool(await handle.state() == state)


PROGRAM = """
import sys
from bunqueue import Batch, Worker

def never(jobs):
    raise SystemExit("it was not to run")

batch = Batch(never, size=3, max_wait=3_600_000)
where = {"host": sys.argv[2], "port": int(sys.argv[3])}
Worker(sys.argv[1], batch, concurrency=3, **where).run_forever()
"""


async def test_jobs_of_a_batch_whose_worker_is_killed_run_elsewhere(shared_server: Server) -> None:
    host, port = shared_server.host, shared_server.port
    async with AsyncQueue("batches-killed", host=host, port=port) as queue:
        handles = await add(queue, 2)
        words = [sys.executable, "-c", PROGRAM, queue.name, host, str(port)]
        process = await asyncio.create_subprocess_exec(*words)
        try:
            await eventually(lambda: _all_active(handles), "the worker has both")
        finally:
            process.kill()
            await process.wait()
        kept = Kept()
        async with Worker(
            queue.name, Batch(kept, size=2, max_wait=FOREVER), concurrency=2, host=host, port=port
        ):
            for number, handle in enumerate(handles):
                assert await handle.result(60_000) == number * 10
    assert kept.sizes == [2]


async def _all_active(handles: list[Any]) -> bool:
    return [await handle.state() for handle in handles] == ["active"] * len(handles)


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda: Batch(print, size=5, min_size=6), "min_size: 6 is not allowed; a batch has at most size=5"),
        (lambda: Batch(print, min_size=0), "min_size: 0 is not allowed; give a whole number from 1 on"),
        (lambda: Batch(print, max_wait=-1), "max_wait: -1 is not allowed; give a time from 0 on"),
        (lambda: Batch(5), "handler: 5 cannot be called; give a function"),  # type: ignore[arg-type]  # is to be refused
        (lambda: Bunqueue("a").batch("b", size=2, min_size=3)(print), "min_size: 3 is not allowed"),
        (
            lambda: Worker("q", {"a": Batch(print, size=5), "b": Batch(print, size=3)}, concurrency=7),
            "concurrency: 7 is too little for batches of 8 jobs",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(declare: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        declare()
