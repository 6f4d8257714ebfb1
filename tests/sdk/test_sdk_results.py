"""Waiting for the ends of jobs: results, failures, and everything else that may become of one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    ConnectionLost,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobOutcome,
    NewJob,
    Queue,
    ResultError,
    ResultTimeout,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions


@dataclass
class Receipt:
    to: str
    copies: int


async def handler(job: ActiveJob) -> Any:
    match job.name:
        case "double":
            return job.data * 2
        case "raise":
            raise ValueError("broken")
        case "receipt":
            return {"to": "ada", "copies": 2}
        case "never":
            await asyncio.Event().wait()
    return None


def working(queue: AsyncQueue, where: EndpointOptions, **options: Any) -> Worker:
    return Worker(queue.name, handler, **{"concurrency": 20, **options}, **where)


async def test_a_result_is_waited_for(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("double", 21)
    waiting = asyncio.ensure_future(handle.result())
    async with working(queue, where):
        assert await waiting == 42
        assert await handle.result() == 42  # of a job that has completed long ago
        outcome = await handle.wait()
        assert outcome == JobOutcome("completed", 42)
        assert await (await queue.add("nothing")).result() is None


async def test_results_have_the_type_that_was_asked_for(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("receipt")
    async with working(queue, where):
        typed = queue.handle(handle.id, Receipt)
        assert await typed.result() == Receipt("ada", 2)
        with pytest.raises(ResultError, match=handle.id):
            await queue.handle(handle.id, int).result()


async def test_a_thousand_are_waited_for_at_a_time(queue: AsyncQueue, where: EndpointOptions) -> None:
    """Far more than a connection may have long polls, and the queue may be used meanwhile."""
    handles = await queue.add_bulk([("double", number) for number in range(1200)])
    waiting = asyncio.ensure_future(asyncio.gather(*[handle.result() for handle in handles]))
    await asyncio.sleep(0)
    assert await queue.count() == 1200
    async with working(queue, where):
        assert await waiting == [2 * number for number in range(1200)]


async def test_many_threads_wait(queue: AsyncQueue, where: EndpointOptions) -> None:
    def ask(number: int) -> int:
        with Queue(queue.name, **where) as blocking:
            result: int = blocking.add("double", number).result(60_000)
            return result

    async with working(queue, where):
        found = await asyncio.gather(*[asyncio.to_thread(ask, number) for number in range(12)])
    assert found == [2 * number for number in range(12)]


async def test_a_failure_is_raised(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("raise", max_attempts=2, backoff=1)
    async with working(queue, where):
        with pytest.raises(
            JobFailed, match=r"failed after 2 attempts: ValueError: broken .*retry\(\)"
        ) as caught:
            await handle.result()
    error = caught.value
    assert (error.error, error.reason, error.attempts) == (
        "ValueError: broken",
        "max_attempts_exceeded",
        2,
    )
    assert (error.queue, error.job_id, error.code) == (queue.name, handle.id, "job_failed")
    outcome = await handle.wait()
    assert (outcome.state, outcome.result, outcome.error) == ("failed", None, "ValueError: broken")


async def test_a_failure_that_leaves_nothing_behind_is_raised_too(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    handle = await queue.add("raise", max_attempts=1, remove_on_fail=True)
    waiting = asyncio.ensure_future(handle.wait())
    for _ in range(2):  # over the same connection: when the second is answered, the wait has begun
        await queue.counts()
    async with working(queue, where):
        assert (await waiting).state == "failed"
        with pytest.raises(JobNotFound, match="is not there: it was removed, perhaps on completion"):
            await handle.result()


async def test_a_discarded_job(queue: AsyncQueue) -> None:
    handle = await queue.add("double")
    await handle.discard()
    with pytest.raises(JobFailed, match=r"was discarded \(unknown\)"):
        await handle.result()


async def test_a_job_that_is_cancelled_before_it_began(queue: AsyncQueue) -> None:
    handle = await queue.add("double")
    waiting = asyncio.ensure_future(handle.result())
    await eventually(lambda: _is_waited_for(queue), "it waits")
    assert await handle.cancel("no need") is True
    with pytest.raises(JobCancelled, match="was cancelled: no need") as caught:
        await waiting
    assert (caught.value.reason, caught.value.job_id) == ("no need", handle.id)
    with pytest.raises(JobCancelled, match="was cancelled: no need"):
        await handle.result()
    with pytest.raises(JobNotFound):
        await queue.handle("nothing").job()


async def _is_waited_for(queue: AsyncQueue) -> bool:
    waits = queue._caller._waits
    return waits is not None and any(watch._parked for watch in waits._queues.values())


async def test_a_job_that_is_cancelled_while_it_runs(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("never")
    async with working(queue, where) as worker:
        await eventually(lambda: worker.stats.active == 1, "it runs")
        waiting = asyncio.ensure_future(handle.result())
        assert await handle.cancel("enough", grace=30_000) is False
        with pytest.raises(JobCancelled, match="was cancelled: enough"):
            await waiting
        assert await handle.state() == "cancelled"
        other = await queue.add("never")
        await eventually(lambda: worker.stats.active == 1, "the other runs")
        assert await other.cancel(grace=0) is True
        with pytest.raises(JobCancelled, match="gave no reason") as caught:
            await other.result()
        assert caught.value.reason is None


async def test_a_job_that_nobody_took_in_time(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("double", 1, ttl=1)
    waiting = asyncio.ensure_future(handle.result())
    await eventually(lambda: _is_waited_for(queue), "it waits")
    async with working(queue, where):
        with pytest.raises(JobExpired, match="nobody took it within its ttl"):
            await waiting
    assert (await handle.state(), (await handle.wait(0)).state) == ("expired", "expired")


async def test_the_result_of_a_job_that_is_removed_on_completion(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    handle = await queue.add("double", 4, remove_on_complete=True)
    waiting = asyncio.ensure_future(handle.result())
    await eventually(lambda: _is_waited_for(queue), "it waits")
    async with working(queue, where):
        assert await waiting == 8
        assert await handle.state() == "unknown"


async def test_patience_has_an_end(queue: AsyncQueue) -> None:
    handle = await queue.add("double", delay=60_000)
    start = time.monotonic()
    with pytest.raises(ResultTimeout, match=r"has not ended within 0\.2 s; it goes on") as caught:
        await handle.result(200)
    assert 0.19 < time.monotonic() - start < 20
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ResultTimeout):
        await handle.wait(0)
    assert (await queue.get_result(handle.id), await handle.state()) == (None, "delayed")


async def test_many_who_lose_patience_do_not_keep_others_from_being_told(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    late = await queue.add_bulk([NewJob("double", 1, delay=60_000)] * 30)
    done = await queue.add_bulk([("double", number) for number in range(30)])
    async with working(queue, where):
        await asyncio.gather(*[handle.wait() for handle in done])
        waits = []
        for handle in late:  # one after the other, so that each has a command of its own, as far as may be
            waits.append(asyncio.ensure_future(handle.wait(2000)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        results = [await handle.result(0) for handle in done]
        assert results == [2 * number for number in range(30)]
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(each) for each in ended} == {ResultTimeout}


async def test_who_is_cancelled_while_waiting_harms_nobody(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("double", 5)
    first, second = asyncio.ensure_future(handle.result()), asyncio.ensure_future(handle.result())
    await eventually(lambda: _is_waited_for(queue), "they wait")
    first.cancel()
    async with working(queue, where):
        assert await second == 10
    assert first.cancelled()


async def test_closing_the_queue_ends_the_waiting(queue: AsyncQueue) -> None:
    waiting = asyncio.ensure_future((await queue.add("double")).result())
    await eventually(lambda: _is_waited_for(queue), "it waits")
    await queue.close()
    with pytest.raises(ConnectionLost, match="is closed; open a new one"):
        await waiting


async def test_a_blocking_queue_waits_too(queue: AsyncQueue, where: EndpointOptions) -> None:
    def ask() -> list[Any]:
        with Queue(queue.name, **where) as blocking:
            good, bad = blocking.add("double", 3), blocking.add("raise", max_attempts=1)
            with pytest.raises(JobFailed, match="broken"):
                bad.result()
            with pytest.raises(ResultTimeout):
                blocking.add("double", delay=60_000).result(50)
            return [good.result(), bad.wait().state]

    async with working(queue, where):
        assert await asyncio.to_thread(ask) == [6, "failed"]
