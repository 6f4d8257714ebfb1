"""Types of queues, handles and what they give: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from bunqueue import (
    Admin,
    AsyncAdmin,
    AsyncJobGroup,
    AsyncJobHandle,
    AsyncQueue,
    Backoff,
    DeadLetter,
    Debounce,
    Dedup,
    Job,
    JobCounts,
    JobGroup,
    JobHandle,
    JobOptions,
    JobOutcome,
    JobProgress,
    NewJob,
    Queue,
    QueueInfo,
    Repeat,
)
from bunqueue.client.models.views import TakenJob


@dataclass
class Receipt:
    to: str


def blocking(queue: Queue) -> None:
    handle = queue.add("welcome", {"to": "ada"}, delay=timedelta(seconds=5), idempotency_key="a")
    assert_type(handle, JobHandle[Any])
    assert_type(handle.id, str)
    assert_type(handle.created, bool | None)
    assert_type(handle.state(), str)
    assert_type(handle.job(), Job)
    assert_type(handle.wait(5_000), JobOutcome[Any])
    assert_type(handle.progress(), JobProgress)
    assert_type(handle.cancel("no need", grace=timedelta(seconds=1)), bool)
    assert_type(queue.add_bulk([("a", 1), NewJob("b", 2, priority=5)]), list[JobHandle[Any]])
    typed = queue.handle(handle.id, Receipt)
    assert_type(typed, JobHandle[Receipt])
    assert_type(typed.result(timeout=timedelta(minutes=1)), Receipt)
    assert_type(typed.wait().result, Receipt | None)
    assert_type(queue.get_job("id"), Job | None)
    assert_type(queue.get_jobs(["waiting", "delayed"], newest_first=True), list[Job])
    assert_type(queue.iter_jobs(), Iterator[Job])
    assert_type(queue.counts(), JobCounts)
    assert_type(queue.counts_per_priority(), dict[int, int])
    assert_type(queue.clean(timedelta(days=1), state="failed"), list[str])
    assert_type(queue.dlq_entries(reason="timeout", older_than=datetime.now(UTC)), list[DeadLetter])
    assert_type(queue.retry_dlq(count=5).cancelled, int)
    assert_type(queue.group("acme"), JobGroup)
    assert_type(queue.group("acme").concurrency(), int | None)
    assert_type(queue.list_crons()[0].next_run, datetime)
    assert_type(queue.list_crons()[0].next_run_ms, float)
    assert_type(queue.next_runs("nightly"), list[datetime])
    assert_type(queue.pull(lock=timedelta(minutes=1)), TakenJob | None)


async def server(admin: Admin, async_admin: AsyncAdmin) -> None:
    assert_type(admin.prometheus(), str)
    assert_type(admin.list_queues(), list[QueueInfo])
    assert_type(admin.get_job("id"), Job | None)
    assert_type(admin.find_job("id"), JobHandle[Any])
    assert_type(admin.info().time, datetime)
    assert_type(admin.read_events(since=datetime.now(UTC)).after, list[int])
    assert_type(await async_admin.ping(), float)


async def asynchronous(queue: AsyncQueue) -> None:
    handle = await queue.add("welcome", {"to": "ada"})
    assert_type(handle, AsyncJobHandle[Any])
    assert_type(await queue.handle(handle.id, Receipt).result(), Receipt)
    assert_type(await handle.wait(), JobOutcome[Any])
    assert_type(handle.returning(Receipt), AsyncJobHandle[Receipt])
    assert_type(await handle.returning(Receipt).result(), Receipt)
    assert_type((await handle.job()).data_as(Receipt), Receipt)
    assert_type((await handle.job()).result_as(Receipt), Receipt)
    assert_type(queue.iter_jobs("failed"), AsyncIterator[Job])
    assert_type(queue.group("acme"), AsyncJobGroup)
    async for job in queue.iter_jobs():
        assert_type(job.created_at, datetime)
        assert_type(job.created_at_ms, int)
        assert_type(job.completed_at, datetime | None)
        assert_type(job.data, Any)
    async with AsyncQueue("other") as other:
        assert_type(other, AsyncQueue)


def options(queue: Queue, job: Job) -> None:
    given: JobOptions = {"max_attempts": 5, "backoff": Backoff(500, "fixed"), "tags": ["a"]}
    queue.add("n", **given)
    queue.add("n", depends_on=[job, "id", queue.handle("id")], parent=job, failure_policy="ignore")
    queue.add("n", unique_key="k", dedup=Dedup(ttl=5_000, extend=True), group="acme", group_max_size=5)
    queue.add("n", repeat=Repeat(timedelta(hours=1), limit=3), debounce=Debounce("k", 500))
    queue.add("n", timestamp=datetime.now(UTC), stall_timeout=5_000, job_id="own")
    queue.upsert_cron("nightly", {"x": 1}, schedule="0 3 * * *", job_options=given)


def mistakes(queue: Queue) -> None:
    queue.add("n", priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.add("n", prio=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    queue.add("n", failure_policy="explode")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.add("n", depends_on=[5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    queue.add("n", backoff={"delay": 5})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.upsert_cron("n", evry=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    queue.history("cancelled")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(queue.handle("id", Receipt).result(), int)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
