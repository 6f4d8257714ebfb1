"""What a handle can do with its job, on a server and embedded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    CommandFailed,
    JobNotFound,
    JobProgress,
    NewJob,
    OptionError,
    PayloadError,
    Retry,
    Worker,
    WrongState,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions

FAR = 3_600_000


def working(queue: AsyncQueue, where: EndpointOptions, handler: Any, **options: Any) -> Worker:
    return Worker(queue.name, handler, **options, **where)


async def double(job: ActiveJob) -> Any:
    return job.data * 2


async def test_a_delayed_job_is_promoted(queue: AsyncQueue) -> None:
    handle = await queue.add("n", delay=FAR)
    await handle.promote()
    assert await handle.state() == "waiting"
    with pytest.raises(WrongState, match=rf"Promote of job {handle.id} in queue '{queue.name}': .*state"):
        await handle.promote()
    with pytest.raises(WrongState) as caught:
        await queue.handle("nothing").promote()
    assert (caught.value.queue, caught.value.job_id) == (queue.name, "nothing")


async def test_the_time_of_a_job_is_changed(queue: AsyncQueue) -> None:
    handle = await queue.add("n")
    for put_off in (handle.change_delay, handle.move_to_delayed):
        await put_off(FAR)
        job = await handle.job()
        assert job.state == "delayed"
        assert abs(job.run_at_ms - job.created_at_ms - FAR) < 60_000
        await handle.move_to_wait()
        assert await handle.state() == "waiting"
    with pytest.raises(OptionError, match="delay: 'soon' is no span of time"):
        await handle.change_delay("soon")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="delay must be at least 0, not -5"):
        await handle.change_delay(-5)


async def test_a_running_job_that_is_put_back_is_not_begun_beside_itself(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    begun, done = asyncio.Queue[int](), asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        begun.put_nowait(job.attempts)
        await done.wait()

    handle = await queue.add("n", max_attempts=1)
    async with working(queue, where, handler, concurrency=2):
        await begun.get()
        await handle.move_to_wait()

        async def taken_again() -> bool:
            return await handle.state() == "active"

        await eventually(taken_again, "the worker has it again", 10)
        done.set()
        await handle.wait()
    assert await handle.state() == "completed"
    assert begun.empty()


async def test_the_order_is_changed(queue: AsyncQueue, where: EndpointOptions) -> None:
    first, second, third = await queue.add_bulk([("n", 1), ("n", 2), ("n", 3)])
    await third.change_priority(5)
    await second.change_priority(0, lifo=True)
    assert [(job.data, job.priority, job.lifo) for job in await queue.get_jobs()] == [
        (1, 0, False),
        (2, 0, True),
        (3, 5, False),
    ]
    order: list[int] = []
    async with working(queue, where, lambda job: order.append(job.data), concurrency=1):
        await first.wait()
    assert order == [3, 2, 1]
    with pytest.raises(WrongState):
        await first.change_priority(1)


async def test_data_and_progress_are_changed(queue: AsyncQueue, where: EndpointOptions) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        begun.set()
        await done.wait()

    handle = await queue.add("n", 1)
    await handle.update_data({"x": [2]})
    assert (await handle.job()).data == {"x": [2]}
    with pytest.raises(PayloadError, match="the data of the job cannot be encoded"):
        await handle.update_data(object())
    with pytest.raises(CommandFailed):
        await handle.update_progress(5)
    async with working(queue, where, handler):
        await begun.wait()
        await handle.update_progress(30, "a third")
        await handle.update_progress(40.5)
        progress = await handle.progress()
        assert (progress.progress, progress.message) == (40.5, "a third")
        done.set()
        await handle.wait()
    with pytest.raises(WrongState, match="Update of job"):
        await handle.update_data(3)


async def test_between_attempts_the_last_progress_is_told(queue: AsyncQueue, where: EndpointOptions) -> None:
    """And of a dead letter; a run that says nothing takes nothing away."""

    async def handler(job: ActiveJob) -> None:
        if job.attempts == 0:
            await job.progress(60, "pages 1 to 6")
        raise Retry(FAR if job.attempts == 0 else 0)

    handle = await queue.add("n", max_attempts=2)
    failed: list[ActiveJob] = []
    async with working(queue, where, handler, on_failed=lambda job, error: failed.append(job)):
        await eventually(lambda: failed, "the first attempt has failed")
        assert await handle.progress() == JobProgress(60, "pages 1 to 6")
        job = await handle.job()
        assert (job.progress, job.last_report) == (0, JobProgress(60, "pages 1 to 6"))
        await handle.promote()
        await handle.wait()
    assert await handle.progress() == JobProgress(60, "pages 1 to 6")
    await queue.pause()
    await handle.retry()
    assert await handle.progress() == JobProgress(0, None)


async def test_a_log(queue: AsyncQueue) -> None:
    handle = await queue.add("n")
    assert await handle.logs() == []
    for number in range(5):
        await handle.log(f"line {number}", "warn" if number == 3 else "info")
    lines = await handle.logs()
    assert [line.message for line in lines] == [f"line {number}" for number in range(5)]
    assert [line.level for line in lines] == ["info", "info", "info", "warn", "info"]
    assert all(line.timestamp_ms > 1.6e12 for line in lines)
    assert [line.message for line in await handle.logs(1, 2)] == ["line 1", "line 2"]
    await handle.clear_logs(keep=1)
    assert [line.message for line in await handle.logs()] == ["line 4"]
    await handle.clear_logs()
    assert await handle.logs() == await queue.handle("nothing").logs() == []
    with pytest.raises(JobNotFound, match="AddLog of job nothing"):
        await queue.handle("nothing").log("x")


async def test_retrying(queue: AsyncQueue, where: EndpointOptions) -> None:
    async def handler(job: ActiveJob) -> int:
        runs.append(job.name)
        if len(runs) == 1:
            raise ValueError("first")
        return len(runs)

    runs: list[str] = []
    handle = await queue.add("n", max_attempts=1)
    async with working(queue, where, handler):
        assert (await handle.wait()).state == "failed"
        await handle.retry()
        assert await handle.result() == 2
        await handle.retry()  # of one that has completed
        assert await handle.result() == 3
    waiting = await queue.add("n")
    with pytest.raises(WrongState, match="cannot be retried: it is waiting, and has not ended"):
        await waiting.retry()
    with pytest.raises(JobNotFound, match="cannot be retried: it is not there"):
        await queue.handle("nothing").retry()


async def test_removing(queue: AsyncQueue, where: EndpointOptions) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        if job.name == "slow":
            begun.set()
            await done.wait()

    finished = await queue.add("n")
    async with working(queue, where, handler):
        await finished.wait()
        slow = await queue.add("slow")
        await begun.wait()
        with pytest.raises(WrongState, match=r"RemoveJob of job .* is active and cannot be removed"):
            await slow.remove()
        done.set()
        await slow.wait()
    late, blocked = await queue.add("n", delay=FAR), await queue.add("n", depends_on=[finished], delay=FAR)
    for handle in (finished, slow, late, blocked):
        assert await handle.remove() is True
        assert await handle.remove() is False
        assert await handle.state() == "unknown"
    assert await queue.count() == 0


async def test_a_unique_key_is_freed(queue: AsyncQueue) -> None:
    handle = await queue.add("n", unique_key="k")
    assert await queue.get_unique_job_id("k") == handle.id
    assert await handle.remove_unique_key() is True
    assert await handle.remove_unique_key() is False
    other = await queue.add("n", unique_key="k")
    assert other.created
    assert await queue.remove_unique_key("k") is True
    assert await queue.remove_unique_key("k") is False
    assert await queue.get_unique_job_id("k") is None
    assert await queue.count() == 2


async def test_parents_and_children(queue: AsyncQueue, where: EndpointOptions) -> None:
    async def handler(job: ActiveJob) -> Any:
        if job.name == "bad":
            raise ValueError("bad child")
        return job.data

    parent = await queue.add("parent", 0, delay=2000)
    good = await queue.add("good", 1)
    bad = await queue.add("bad", max_attempts=1, parent=parent, failure_policy="ignore")
    late = await queue.add("late", delay=FAR)
    for child in (good, bad, late):
        await child.set_parent(parent)
    with pytest.raises(JobNotFound, match="Parent job not found: nobody"):
        await good.set_parent("nobody")
    async with working(queue, where, handler):
        await asyncio.gather(good.wait(), bad.wait())
        assert await parent.children_values() == {f"{queue.name}:{good.id}": 1}
        assert await parent.ignored_children() == {f"{queue.name}:{bad.id}": "ValueError: bad child"}
        assert await parent.failed_children() == await parent.ignored_children()
        await late.leave_parent()
        assert await parent.result(60_000) == 0  # it waits for none any more
        with pytest.raises(CommandFailed, match="has no parent"):
            await late.leave_parent()


async def test_children_that_have_not_begun_are_removed(queue: AsyncQueue) -> None:
    parent = await queue.add("parent", delay=FAR)
    children = await queue.add_bulk([NewJob("child", number, delay=FAR) for number in range(2)])
    for child in children:
        await child.set_parent(parent)
    await parent.remove_children()

    async def are_gone() -> bool:
        return [await child.state() for child in children] == ["unknown", "unknown"]

    await eventually(are_gone, "the children are gone")
