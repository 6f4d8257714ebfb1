"""A server as a whole, and an embedded engine as one: the admin client, and the names it replaces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    Admin,
    AsyncAdmin,
    AsyncQueue,
    CommandFailed,
    JobNotFound,
    LockLost,
    NotFound,
    OptionError,
    Worker,
    __version__,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions

FAR = 3_600_000


@pytest.fixture
async def admin(where: EndpointOptions) -> AsyncIterator[AsyncAdmin]:
    async with AsyncAdmin(**where) as admin:
        yield admin


async def handler(job: ActiveJob) -> Any:
    if job.name == "bad":
        raise ValueError("broken")
    return job.data


async def test_figures(admin: AsyncAdmin, queue: AsyncQueue, where: EndpointOptions) -> None:
    bad = await queue.add("bad", max_attempts=1)
    done = await queue.add("n")
    async with Worker(queue.name, handler, **where):
        await bad.wait()
        await done.wait()
    await queue.add("n")
    metrics = await admin.metrics()
    assert (metrics.total_pushed >= 3, metrics.total_completed >= 1) == (True, True)
    assert (await admin.stats()).waiting >= 1
    assert "bunqueue_jobs_pushed_total" in await admin.prometheus()
    status = await admin.storage_status()
    assert (status.disk_full, status.error) == (False, None)
    assert (await admin.dashboard()).stats.total_pushed >= 3
    mine = next(each for each in await admin.dashboard_queues() if each.name == queue.name)
    assert (mine.waiting, mine.dlq) == (1, 1)
    await admin.compact_memory()
    info = await admin.info()
    assert info.version == __version__
    assert abs(info.time_ms - time.time() * 1000) < 60_000
    assert info.time.tzinfo is UTC
    assert 0 < await admin.ping() < 30_000


async def test_what_there_is(admin: AsyncAdmin, queue: AsyncQueue, where: EndpointOptions) -> None:
    await queue.add_bulk([("n", None)] * 3)
    info = next(info for info in await admin.list_queues() if info.name == queue.name)
    assert (info.waiting, info.active, info.paused) == (3, 0, False)
    shards = await admin.list_shards()
    assert [shard.shard for shard in shards] == list(range(shards[0].of))
    async with Worker(queue.name, handler, concurrency=7, **where):

        async def is_listed() -> bool:
            return [worker.concurrency for worker in await admin.list_workers(queue.name)] == [7]

        await eventually(is_listed, "the worker is in the list")
        assert queue.name in {name for worker in await admin.list_workers() for name in worker.queues}
        assert (await admin.worker_stats()).active >= 1
    assert await admin.list_workers("nobody") == []


async def test_schedules_of_all_queues(admin: AsyncAdmin, queue: AsyncQueue) -> None:
    name = f"nightly-{queue.name}"
    made = await queue.upsert_cron(name, {"x": 1}, every=FAR)
    assert name in {each.name for each in await admin.list_crons()}
    assert [each.name for each in await admin.list_crons(queue.name)] == [name]
    found = await admin.get_cron(name)
    assert found is not None
    assert (found.queue, found.next_run) == (queue.name, made.next_run)
    assert (await admin.pause_cron(name)).paused is True
    assert (await admin.resume_cron(name)).paused is not True
    assert await admin.next_runs(name, count=1) == [made.next_run]
    job = await admin.run_cron(name)
    assert (job.queue, job.created) == (queue.name, True)
    assert await admin.delete_cron(name) is True
    assert await admin.delete_cron(name) is False
    assert await admin.get_cron(name) is None


async def test_webhooks_of_all_queues(admin: AsyncAdmin, queue: AsyncQueue) -> None:
    everywhere = await admin.add_webhook("https://example.com/all", ["job.failed"])
    here = await admin.add_webhook("https://example.com/hook", ["job.pushed"], queue=queue.name)
    hooks = {hook.id: hook for hook in await admin.list_webhooks()}
    assert (hooks[everywhere].queue, hooks[here].queue) == (None, queue.name)
    assert here in {hook.id for hook in await queue.list_webhooks()}
    assert here not in {hook.id for hook in await admin.list_webhooks("another")}
    await admin.set_webhook_enabled(here, False)
    with pytest.raises(NotFound):
        await admin.test_webhook("none")
    with pytest.raises(CommandFailed):
        await admin.add_webhook("http://localhost/", ["job.failed"])
    assert [await admin.remove_webhook(each) for each in (everywhere, here, here)] == [True, True, False]


async def test_jobs_by_id(admin: AsyncAdmin, queue: AsyncQueue) -> None:
    added = await queue.add("n", {"x": 1}, delay=FAR)
    job = await admin.get_job(added.id)
    assert job is not None
    assert (job.queue, job.data) == (queue.name, {"x": 1})
    assert await admin.get_state(added.id) == "delayed"
    handle = await admin.find_job(added.id)
    assert (handle.queue, await handle.state()) == (queue.name, "delayed")
    assert (await admin.get_job("none"), await admin.get_state("none")) == (None, "unknown")
    with pytest.raises(JobNotFound):
        await admin.find_job("none")


async def test_events_are_read_page_by_page(admin: AsyncAdmin, queue: AsyncQueue) -> None:
    ids = [(await queue.add("n")).id for _ in range(5)]
    read: list[str] = []
    page = await admin.read_events(since=timedelta(minutes=1), limit=2, queues=[queue.name], types=["pushed"])
    while True:
        assert len(page.events) <= 2
        read += [event["jobId"] for event in page.events]
        if page.last:
            break
        page = await admin.read_events(after=page.after, limit=2, queues=[queue.name], types=["pushed"])
    assert (read, page.missed) == (ids, 0)
    with pytest.raises(OptionError, match="limit"):
        await admin.read_events(limit=10_001)


async def test_jobs_are_taken_by_hand(queue: AsyncQueue) -> None:
    assert await queue.pull() is None
    for number in range(3):
        await queue.add("n", number, max_attempts=1)
    first = await queue.pull(owner="by hand", lock=60_000)
    assert first is not None
    handle = queue.handle(first.job.id)
    assert (first.job.data, await handle.state()) == (0, "active")
    with pytest.raises(LockLost):
        await handle.complete("wrong", lock_token="another")
    assert await handle.heartbeat(lock_token=first.lock_token) is True
    await handle.complete({"sent": True}, lock_token=first.lock_token)
    assert await handle.result() == {"sent": True}
    second = await queue.pull(timeout=60_000)
    assert second is not None
    assert second.lock_token is None
    await queue.handle(second.job.id).fail("not today", give_back=True)
    again = await queue.pull()
    assert again is not None
    assert again.job.id == second.job.id
    await queue.handle(again.job.id).fail("never", unrecoverable=True)
    (letter,) = await queue.dlq_entries(name="n", error="NEVER")
    assert letter.job.id == again.job.id
    assert await queue.count_dlq(name="other") == 0


async def test_a_cancelled_job_that_was_taken_says_so(queue: AsyncQueue) -> None:
    await queue.add("n")
    taken = await queue.pull(owner="by hand")
    assert taken is not None
    handle = queue.handle(taken.job.id)
    await handle.cancel(grace=FAR)
    assert await handle.heartbeat(lock_token=taken.lock_token) is False


async def test_cancelled_dead_letters_are_counted(queue: AsyncQueue) -> None:
    await queue.add("n", max_attempts=1)
    await queue.add("n", max_attempts=1)
    first, second = await queue.pull(owner="by hand"), await queue.pull(owner="by hand")
    assert first is not None
    assert second is not None
    await queue.handle(first.job.id).fail("no", lock_token=first.lock_token)
    cancelled = queue.handle(second.job.id)
    await cancelled.cancel(grace=FAR)
    with pytest.raises(LockLost):
        await cancelled.complete(lock_token=second.lock_token)
    retried = await queue.retry_dlq()
    assert (retried, retried.cancelled) == (1, 1)


def test_an_admin_is_closed(where: EndpointOptions) -> None:
    admin = Admin(**where)
    assert admin.ping() > 0
    admin.close()
    admin.close()
    with pytest.raises(Exception, match="closed"):
        admin.ping()


def test_many_threads_use_one_admin(where: EndpointOptions) -> None:
    async def ask(admin: Admin) -> list[float]:
        return await asyncio.gather(*(asyncio.to_thread(admin.ping) for _ in range(8)))

    with Admin(**where) as admin:
        assert all(ms > 0 for ms in asyncio.run(ask(admin)))
