"""Changing all jobs that a search finds: on a server of two shards and embedded."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from bunqueue import (
    Admin,
    AsyncAdmin,
    AsyncQueue,
    CommandFailed,
    JobCancelled,
    NewJob,
    OptionError,
    Queue,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions


async def fail_all(queue: AsyncQueue, count: int) -> None:
    for _ in range(count):
        taken = await queue.pull()
        assert taken is not None
        await queue.handle(taken.job.id).fail("connection refused", unrecoverable=True)


async def test_a_dry_run_says_what_will_be_and_changes_nothing(queues: list[AsyncQueue]) -> None:
    queue = queues[0]
    await queue.add_bulk([("job", {"n": n}) for n in range(6)])
    await fail_all(queue, 4)
    dry = await queue.retry_found(error="refused", where="data.n < 3", dry_run=True)
    assert (dry.changed, dry.skipped, dry.more) == (3, {}, False)
    assert (await queue.counts()).failed == 4
    done = await queue.retry_found(error="refused", where="data.n < 3")
    assert (done.changed, sorted(done.examples)) == (dry.changed, sorted(dry.examples))
    assert (await queue.counts()).failed == 1
    both = await queue.retry_found()
    assert (both.changed, both.skipped) == (1, {"unfinished": 5})


async def test_a_bound_and_progress_over_all_queues(queues: list[AsyncQueue], where: EndpointOptions) -> None:
    tag = f"tag-{queues[0].name}"
    for queue in queues:
        await queue.add_bulk([NewJob("job", n, tags=[tag]) for n in range(5)])
    reports: list[tuple[int, int]] = []
    async with AsyncAdmin(**where) as admin:
        done = await admin.prioritize_found(
            9, tag=tag, limit=33, on_progress=lambda now, most: reports.append((now, most))
        )
        assert (done.changed, done.more) == (33, True)
        assert reports
        assert all(now <= most for now, most in reports)
        assert await admin.count_found(tag=tag, where="priority = 9") == 33
        rest = await admin.prioritize_found(9, tag=tag)
        assert (rest.changed, rest.more, len(rest.examples)) == (40, False, 20)
        removed = await admin.remove_found(tag=tag, where=f"queue != {queues[1].name}")
        assert removed.changed == 35
        assert await admin.count_found(tag=tag) == 5
        with pytest.raises(OptionError, match="at least one condition"):
            await admin.remove_found()


async def test_running_jobs_hear_that_they_are_cancelled(queues: list[AsyncQueue]) -> None:
    queue = queues[0]
    handles = [await queue.add("job", n) for n in range(3)]
    assert await queue.pull() is not None
    done = await queue.cancel_found("the customer has left", grace=timedelta(0), where="data in (0, 1)")
    assert done.changed == 2
    for handle in handles[:2]:
        with pytest.raises(JobCancelled):
            await handle.result(timeout=60_000)
    assert await handles[2].state() == "waiting"
    again = await queue.cancel_found(state=["cancelled"])
    assert (again.changed, again.skipped) == (0, {"finished": 1})


async def test_handles_follow_jobs_to_another_queue(queues: list[AsyncQueue]) -> None:
    source, target = queues[0], queues[5]
    handles = [await source.add("job", n, job_id=f"{source.name}-{n}" if n % 2 else None) for n in range(4)]
    waits = [asyncio.create_task(handle.result(timeout=60_000)) for handle in handles]
    done = await source.move_found(target.name, state="waiting")
    assert (done.changed, done.skipped) == (4, {})
    assert (await source.counts()).waiting == 0
    assert [(await handle.job()).queue for handle in handles] == [target.name] * 4
    for _ in handles:
        taken = await target.pull()
        assert taken is not None
        await target.handle(taken.job.id).complete(taken.job.data * 10)
    assert await asyncio.gather(*waits) == [0, 10, 20, 30]
    there = await target.move_found(target.name)
    assert there.skipped == {"there-already": 4}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda queue: queue.move_found("no name"), "1 to 256 of the characters"),
        (lambda queue: queue.prioritize_found(10**9), "priority"),
        (lambda queue: queue.retry_found(limit=0), "limit: 0 is not allowed"),
        (lambda queue: queue.retry_found(stat="failed"), "stat"),
        (lambda queue: queue.cancel_found(grace=-1), "grace"),
    ],
)
async def test_what_cannot_be_meant_is_refused_here(queues: list[AsyncQueue], call: Any, words: str) -> None:
    await queues[0].add("job", 1)
    with pytest.raises((OptionError, CommandFailed), match=words):
        await call(queues[0])
    assert (await queues[0].counts()).waiting == 1


def test_the_same_without_coroutines(where: EndpointOptions, name: str) -> None:
    with Queue(name, **where) as queue, Admin(**where) as admin:
        handle = queue.add("rare", {"order": {"id": 7}}, tags=[name])
        assert queue.prioritize_found(5, data={"order.id": 7}).changed == 1
        assert admin.move_found(f"{name}-other", tag=name).changed == 1
        assert handle.job().queue == f"{name}-other"
        assert admin.remove_found(tag=name, dry_run=True).changed == 1
        assert admin.cancel_found(tag=name).changed == 1
        assert admin.retry_found(tag=name).changed == 0
