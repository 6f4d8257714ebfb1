"""Adding jobs and looking at them, through the asynchronous client, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from support.server import Server
from support.waiting import eventually

from bunqueue import (
    AsyncQueue,
    AuthError,
    Backoff,
    CommandFailed,
    ConnectionOptions,
    ConnectTimeout,
    JobCounts,
    JobNotFound,
    NewJob,
    OptionError,
    Worker,
)


@pytest.fixture
async def queue(shared_server: Server, name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(name, host=shared_server.host, port=shared_server.port) as queue:
        yield queue


def worker_of(queue: AsyncQueue, handler: object, **options: object) -> Worker:
    endpoint = queue._caller.endpoint
    return Worker(queue.name, handler, host=endpoint.host, port=endpoint.port, **options)  # type: ignore[arg-type]


async def test_a_job_is_there_when_add_returns(queue: AsyncQueue) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    handle = await queue.add("welcome", {"to": "a@example.com", "n": 1})
    assert handle.queue == queue.name
    assert await handle.state() == await queue.get_state(handle.id) == "waiting"
    job = await handle.job()
    assert job == await queue.get_job(handle.id)
    assert (job.id, job.queue, job.name) == (handle.id, queue.name, "welcome")
    assert (job.data, job.state, job.attempts) == ({"to": "a@example.com", "n": 1}, "waiting", 0)
    assert type(job.created_at_ms) is int
    assert job.created_at > before
    assert job.started_at is None


async def test_options_arrive(queue: AsyncQueue) -> None:
    handle = await queue.add(
        "n",
        None,
        priority=3,
        delay=timedelta(hours=1),
        max_attempts=7,
        backoff=Backoff(2500, "fixed"),
        ttl=timedelta(days=1),
        timeout=1234,
        unique_key="k",
        lifo=True,
        durable=True,
        remove_on_complete=True,
        remove_on_fail=True,
        tags=["a", "b"],
    )
    job = await handle.job()
    assert (job.priority, job.state, job.run_at - job.created_at) == (3, "delayed", timedelta(hours=1))
    assert (job.max_attempts, job.backoff, job.ttl, job.timeout) == (7, 2500, 86_400_000, 1234)
    assert (job.unique_key, job.lifo, job.durable, job.tags) == ("k", True, True, ["a", "b"])
    assert job.remove_on_complete
    assert job.remove_on_fail


async def test_default_options_hold_unless_said_otherwise(shared_server: Server) -> None:
    async with AsyncQueue(
        "sdk-defaults", port=shared_server.port, default_job_options={"max_attempts": 9, "priority": 1}
    ) as queue:
        first = await (await queue.add("n", priority=2)).job()
        (second,) = await queue.add_bulk([("n", None)])
        assert (first.max_attempts, first.priority) == (9, 2)
        job = await second.job()
        assert (job.max_attempts, job.priority) == (9, 1)


@pytest.mark.parametrize(
    "data", [None, 0, -1, 2**63, 1.5, "text", b"bytes", [], {}, {"a": [1, {"b": None}]}, "\N{SNOWMAN}", True]
)
async def test_data_comes_back_as_it_went(queue: AsyncQueue, data: object) -> None:
    job = await (await queue.add("n", data)).job()
    assert job.data == data
    assert type(job.data) is type(data)


async def test_bulk_keeps_the_order_and_takes_options(queue: AsyncQueue) -> None:
    handles = await queue.add_bulk([("a", 1), NewJob("b", 2, priority=5), ("c", 3)])
    jobs = [await handle.job() for handle in handles]
    assert [(job.name, job.data, job.priority) for job in jobs] == [("a", 1, 0), ("b", 2, 5), ("c", 3, 0)]
    assert await queue.add_bulk([]) == []


async def test_a_bulk_is_added_as_a_whole_or_not_at_all(queue: AsyncQueue) -> None:
    with pytest.raises(CommandFailed, match="Dependency job not found"):
        await queue.add_bulk([NewJob("a", 1), NewJob("b", 2, depends_on=["nobody"])])
    with pytest.raises(OptionError, match="job 1: name: a job cannot be called 'bbb"):
        await queue.add_bulk([("a", 1), ("b" * 300, 2)])
    assert await queue.count() == 0


async def test_thousands_of_adds_at_a_time(queue: AsyncQueue) -> None:
    handles = await asyncio.gather(*[queue.add("n", number) for number in range(3000)])
    assert len({handle.id for handle in handles}) == 3000
    assert (await queue.counts()).waiting == 3000


async def test_a_unique_key_gives_the_job_that_is_there(queue: AsyncQueue) -> None:
    first = await queue.add("n", 1, unique_key="only")
    second = await queue.add("n", 2, unique_key="only")
    assert second.id == first.id
    assert await queue.count() == 1


async def test_lists_counts_and_pages(queue: AsyncQueue) -> None:
    await queue.add_bulk([("n", number) for number in range(5)])
    await queue.add("later", delay=60_000)
    assert await queue.counts() == JobCounts(waiting=5, delayed=1)
    assert await queue.count() == 6
    assert [job.data for job in await queue.get_jobs("waiting", limit=2, offset=1)] == [1, 2]
    assert [job.name for job in await queue.get_jobs("delayed")] == ["later"]
    assert len(await queue.get_jobs()) == len(await queue.get_jobs(["waiting", "delayed"])) == 6


async def test_what_is_not_there(queue: AsyncQueue) -> None:
    assert await queue.get_job("nothing") is None
    assert await queue.get_state("nothing") == "unknown"
    assert await queue.get_result("nothing") is None
    assert await queue.dlq() == []
    assert await queue.retry_dlq() == 0
    with pytest.raises(JobNotFound) as caught:
        await queue.handle("nothing").job()
    assert (caught.value.code, caught.value.job_id) == ("job_not_found", "nothing")


async def test_results_and_progress(queue: AsyncQueue) -> None:
    working, go_on = asyncio.Event(), asyncio.Event()

    async def handler(job: object) -> dict[str, int]:
        await job.progress(40, "almost")  # type: ignore[attr-defined]
        working.set()
        await go_on.wait()
        return {"sum": 3}

    done = asyncio.Event()
    handle = await queue.add("n")
    assert (await handle.progress()).progress == 0  # it has not begun
    async with worker_of(queue, handler, on_completed=lambda job, result: done.set()):
        await working.wait()
        progress = await queue.progress(handle.id)
        assert (progress.progress, progress.message) == (40, "almost")
        assert await queue.get_result(handle.id) is None
        go_on.set()
        await done.wait()
    assert await handle.result() == {"sum": 3}
    job = await handle.job()
    assert (job.state, job.result) == ("completed", {"sum": 3})
    assert job.completed_at is not None


async def test_dead_letters_and_their_second_life(queue: AsyncQueue) -> None:
    async def handler(job: object) -> None:
        raise ValueError("broken")

    handles = await queue.add_bulk([NewJob("n", number, max_attempts=1) for number in range(3)])
    async with worker_of(queue, handler) as worker:
        await eventually(lambda: worker.stats.failed == 3, "all have failed")
    dead = await queue.dlq()
    assert sorted(job.data for job in dead) == [0, 1, 2]
    assert [job.data for job in await queue.dlq(1)] == [dead[0].data]
    job = await handles[0].job()
    assert (job.state, job.error, job.attempts) == ("failed", "ValueError: broken", 1)
    assert await queue.retry_dlq(handles[0].id) == 1
    assert await handles[0].state() == "waiting"
    assert await queue.retry_dlq() == 2
    assert (await queue.counts()).failed == 0


async def test_tokens(make_server: object) -> None:
    server: Server = make_server("--auth-token", "right")  # type: ignore[operator]
    server.start()
    async with AsyncQueue("q", port=server.port, token="right") as queue:
        await queue.add("n")
    for token in ("wrong", None):
        async with AsyncQueue("q", port=server.port, token=token) as queue:
            with pytest.raises(AuthError, match=r"give the token of that server \(token=...\)"):
                await queue.add("n")


async def test_no_server_there() -> None:
    async with AsyncQueue("q", port=1, connection=ConnectionOptions(command_timeout=100)) as queue:
        with pytest.raises(ConnectTimeout, match=r"127.0.0.1:1.*bunqueue start"):
            await queue.add("n")
