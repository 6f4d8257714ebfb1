"""A job that a program takes by hand: what becomes of it when the block ends, and of its lock meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from sdk.conftest import EndpointOptions
from support.waiting import eventually

from bunqueue import AsyncQueue, LockLost, Postpone, Queue, Retry, Unrecoverable
from bunqueue.testing import Sandbox

LOCK_MS = 600


class Broken(Exception):
    pass


@dataclass
class Order:
    number: int


async def state_of(queue: AsyncQueue, job_id: str) -> str:
    job = await queue.get_job(job_id)
    assert job is not None
    return str(job.state)


async def test_a_job_has_completed_when_the_block_ends(where: EndpointOptions) -> None:
    async with AsyncQueue("take-done", **where) as queue:
        added = await queue.add("order", {"number": 7})
        async with queue.take(timeout=5_000) as job:
            assert job is not None
            assert (job.id, job.name, job.data, job.attempts) == (added.id, "order", {"number": 7}, 0)
            assert job.data_as(Order) == Order(7)
            assert not job.cancelled
            job.result = {"paid": True}
        assert await added.result() == {"paid": True}
        async with queue.take() as job:
            assert job is None


def test_the_same_for_programs_without_coroutines(where: EndpointOptions) -> None:
    with Queue("take-blocking", **where) as queue:
        added = queue.add("order", 1)
        with queue.take() as job:
            assert job is not None
            job.result = 2
        assert added.result() == 2
        with queue.take() as job:
            assert job is None


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (Broken("no"), "delayed", 1),
        (Unrecoverable("never"), "failed", 1),
        (Retry(60_000), "delayed", 1),
        (Postpone(60_000), "delayed", 0),
    ],
)
async def test_an_exception_is_what_it_is_in_a_worker_and_is_raised_on(
    where: EndpointOptions, error: Exception, state: str, attempts: int
) -> None:
    async with AsyncQueue(f"take-{type(error).__name__}", **where) as queue:
        added = await queue.add("x", max_attempts=3, backoff=60_000)

        async def work() -> None:
            async with queue.take():
                raise error

        with pytest.raises(type(error)):
            await work()
        assert await state_of(queue, added.id) == state
        shown = await queue.get_job(added.id)
        assert shown is not None
        assert shown.attempts == attempts


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_a_program_that_is_told_to_end_gives_the_job_back(
    where: EndpointOptions, error: type[BaseException]
) -> None:
    with Queue(f"take-{error.__name__}", **where) as queue:
        added = queue.add("x")
        with pytest.raises(error), queue.take():
            raise error
        job = queue.get_job(added.id)
        assert job is not None
        assert (job.state, job.attempts) == ("waiting", 0)


async def test_a_task_that_is_cancelled_gives_the_job_back(where: EndpointOptions) -> None:
    async with AsyncQueue("take-task", **where) as queue:
        added = await queue.add("x")
        begun = asyncio.Event()

        async def work() -> None:
            async with queue.take():
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await state_of(queue, added.id) == "waiting"


async def test_the_lock_is_renewed_as_long_as_the_block_runs(where: EndpointOptions) -> None:
    """Somebody else waits for the job all the time, for several times as long as a lock."""
    async with AsyncQueue("take-lock", **where) as queue:
        added = await queue.add("x")
        async with queue.take(lock=LOCK_MS) as job:
            assert job is not None
            assert await queue.pull(timeout=5 * LOCK_MS + 6_000) is None
            job.result = "mine"
        assert await added.result() == "mine"


async def test_a_cancellation_is_seen(where: EndpointOptions) -> None:
    async with AsyncQueue("take-cancel", **where) as queue:
        added = await queue.add("x")

        async def work() -> None:
            async with queue.take(lock=LOCK_MS) as job:
                assert job is not None
                await added.cancel()
                await eventually(lambda: job.cancelled, "it is seen")
                raise Broken

        with pytest.raises(Broken):
            await work()
        assert await state_of(queue, added.id) == "cancelled"


async def test_a_job_that_became_somebody_elses_is_not_reported_on(where: EndpointOptions) -> None:
    async with AsyncQueue("take-lost", **where) as queue:
        added = await queue.add("x")

        async def work() -> None:
            async with queue.take() as job:
                assert job is not None
                await added.fail(lock_token=job.token, give_back=True)
                assert await queue.pull(owner="other") is not None

        with pytest.raises(LockLost):
            await work()
        assert await state_of(queue, added.id) == "active"


def test_it_works_in_a_sandbox() -> None:
    with Sandbox(), Queue("q") as queue:
        added = queue.add("x", 1)
        with queue.take() as job:
            assert job is not None
            job.result = job.data + 1
        assert added.result() == 2
