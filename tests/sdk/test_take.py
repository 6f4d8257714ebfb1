"""A job that a program takes by hand: what becomes of it when the block ends, and of its lock meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from sdk.conftest import EndpointOptions
from support.waiting import eventually

from bunqueue import AsyncJobHandle, AsyncQueue, Backoff, LockLost, Postpone, Queue, Retry, Unrecoverable
from bunqueue.testing import Sandbox
from bunqueue.worker.locks import held_lock

LOCK_MS = 30_000  # longer than any pause of the machine


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
        async with queue.take(timeout=60_000) as job:
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


class Busy(Exception):
    retry_after = 20  # seconds


async def test_a_delay_comes_from_the_exception_as_in_a_worker(where: EndpointOptions) -> None:
    async with AsyncQueue("take-after", **where) as queue:
        bounded = await queue.add("x", backoff=Backoff(1, max_delay=5_000, retry_after=True))
        asked = await queue.add("x", backoff=Backoff(1, retry_after=True))
        deaf = await queue.add("x", backoff=Backoff(70_000, "fixed", 0))
        for _ in range(3):
            with pytest.raises(Busy):
                async with queue.take():
                    raise Busy
        waits = [[attempt.delay for attempt in await each.attempts()] for each in (bounded, asked, deaf)]
        assert waits == [[5_000], [20_000], [70_000]]


def test_postponing_ends_at_its_max_as_in_a_worker(where: EndpointOptions) -> None:
    with Queue("take-max", **where) as queue:
        added = queue.add("x", max_attempts=1)
        for _ in range(2):
            with pytest.raises(Postpone), queue.take(timeout=60_000):
                raise Postpone(0, max=1)
        job = added.job()
        assert (job.state, job.attempts, job.postponed) == ("failed", 1, 1)
        assert "was put back 1 times, its max is 1" in str(added.attempts()[-1].error)


@pytest.mark.parametrize("where_it_is", ["delay", "max"])
def test_a_postponement_that_cannot_be_fails_the_attempt(where: EndpointOptions, where_it_is: str) -> None:
    wrong = Postpone(-1) if where_it_is == "delay" else Postpone(1, max=-1)
    with Queue(f"take-wrong-{where_it_is}", **where) as queue:
        added = queue.add("x", max_attempts=1)
        with pytest.raises(Postpone), queue.take():
            raise wrong
        assert added.job().state == "failed"
        assert where_it_is in str(added.attempts()[-1].error)


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


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are renewed all the time."""
    monkeypatch.setattr(held_lock, "RENEWALS", 1_000)


async def test_the_lock_is_renewed_as_long_as_the_block_runs(where: EndpointOptions, eager: None) -> None:
    async with AsyncQueue("take-lock", **where) as queue:
        added = await queue.add("x")
        async with queue.take(lock=LOCK_MS) as job:
            assert job is not None
            for _ in range(2):
                before = (await added.job()).last_heartbeat_ms or 0
                await eventually(lambda before=before: _beats_after(added, before), "it is renewed")  # type: ignore[misc]
            assert await queue.pull() is None
            job.result = "mine"
        assert await added.result() == "mine"


async def _beats_after(handle: AsyncJobHandle, before: int) -> bool:
    return ((await handle.job()).last_heartbeat_ms or 0) > before


async def test_a_cancellation_is_seen(where: EndpointOptions, eager: None) -> None:
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
