"""Every option of a job does what it says, on a server and embedded."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bunqueue import (
    AsyncJobHandle,
    AsyncQueue,
    CommandFailed,
    Debounce,
    Dedup,
    JobNotFound,
    JobOptions,
    NewJob,
    OptionError,
    PayloadError,
    Repeat,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions


async def test_an_id_of_ones_own(queue: AsyncQueue) -> None:
    own = f"{queue.name}-order-17"
    first = await queue.add("n", 1, job_id=own)
    assert (first.id, first.created) == (own, True)
    second = await queue.add("n", 2, job_id=own)
    assert (second.id, second.created) == (own, False)
    job = await queue.get_job_by_custom_id(own)
    assert job is not None
    assert (job.id, job.custom_id, job.data) == (own, own, 1)
    assert await queue.get_job_by_custom_id("nobody's") is None


async def test_bulk_says_which_are_new(queue: AsyncQueue) -> None:
    await queue.add("n", unique_key="k")
    jobs = [NewJob("n", 1), NewJob("n", 2, unique_key="k"), NewJob("n", 3, unique_key="other")]
    assert [handle.created for handle in await queue.add_bulk(jobs)] == [True, False, True]
    assert queue.handle("x").created is None


async def test_dependencies_by_handles_and_ids(queue: AsyncQueue, where: EndpointOptions) -> None:
    first, second = await queue.add("n", 1), await queue.add("n", 2)
    last = await queue.add("n", 3, depends_on=[first, second.id], priority=10)
    assert (await last.job()).depends_on == [first.id, second.id]
    done: list[int] = []
    async with Worker(queue.name, lambda job: done.append(job.data), concurrency=1, **where):
        await last.result(60_000)
    assert done == [1, 2, 3]
    with pytest.raises(JobNotFound, match="Dependency job not found: nobody"):
        await queue.add("n", depends_on=["nobody"])


async def test_a_parent_and_what_its_childs_failure_means(queue: AsyncQueue) -> None:
    parent = await queue.add("parent", delay=60_000)
    child = await queue.add("child", parent=parent, failure_policy="fail")
    assert (await child.job()).parent_id == parent.id
    await child.set_parent(parent)
    assert (await parent.job()).children_ids == [child.id]
    with pytest.raises(
        OptionError, match="failure_policy: 'explode' is not allowed; give one of fail, ignore"
    ):
        await queue.add("child", parent=parent, failure_policy="explode")  # type: ignore[arg-type]


async def test_groups_run_one_at_a_time_and_have_a_size(queue: AsyncQueue) -> None:
    handle = await queue.add("n", group="acme", group_max_size=2)
    assert (await handle.job()).group == "acme"
    await queue.add("n", group="acme", group_max_size=2)
    with pytest.raises(CommandFailed, match="Group acme has reached its maximum size of 2"):
        await queue.add("n", group="acme", group_max_size=2)


@pytest.mark.parametrize("repeat", [Repeat(1, limit=2), Repeat(timedelta(milliseconds=1), limit=2)])
async def test_a_job_that_is_repeated(queue: AsyncQueue, where: EndpointOptions, repeat: Repeat) -> None:
    runs: list[str] = []
    await queue.add("n", repeat=repeat)
    async with Worker(queue.name, lambda job: runs.append(job.id), **where) as worker:
        while worker.stats.completed < 3:
            await (await queue.add("other", priority=1)).wait(60_000)
    assert len(set(runs) - {""}) >= 3


async def test_a_plain_interval_repeats_without_end(queue: AsyncQueue) -> None:
    job = await (await queue.add("n", repeat=timedelta(hours=1))).job()
    assert job.repeat is not None
    assert (job.repeat["every"], job.repeat["limit"]) == (3_600_000, None)


async def test_a_taken_key_and_what_may_become_of_it(queue: AsyncQueue) -> None:
    first = await queue.add("n", 1, unique_key="k", dedup=Dedup(ttl=timedelta(hours=1)))
    kept = await queue.add("n", 2, unique_key="k", dedup=Dedup(ttl=7_200_000, extend=True))
    assert (kept.id, kept.created) == (first.id, False)
    new = await queue.add("n", 3, unique_key="k", dedup=Dedup(replace=True))
    assert (new.created, await first.state(), await queue.count()) == (True, "unknown", 1)
    with pytest.raises(OptionError, match="dedup: it says what becomes of a taken unique_key"):
        await queue.add("n", dedup=Dedup(replace=True))


async def test_debounced_jobs_run_once_as_the_last_one_said(queue: AsyncQueue) -> None:
    for number in range(3):
        handle = await queue.add("n", number, debounce=Debounce("search", 60_000))
    job = await handle.job()
    assert (job.data, job.unique_key, job.state, await queue.count()) == (2, "search", "delayed", 1)
    assert job.run_at - job.created_at == timedelta(minutes=1)
    with pytest.raises(OptionError, match="delay: debounce says that already"):
        await queue.add("n", delay=5, debounce=Debounce("search", 60_000))


async def test_numbers_arrive(queue: AsyncQueue) -> None:
    job = await (
        await queue.add(
            "n", stall_timeout=timedelta(seconds=9), keep_logs=5, stack_trace_limit=3, size_limit=100
        )
    ).job()
    assert (job.stall_timeout, job.keep_logs, job.stack_trace_limit, job.size_limit) == (9000, 5, 3, 100)


async def test_how_long_a_job_is_kept(queue: AsyncQueue, where: EndpointOptions) -> None:
    handle = await queue.add("n", keep_completed=timedelta(hours=1), keep_failed=60_000)
    job = await handle.job()
    assert (job.keep_completed, job.keep_failed) == (3_600_000, 60_000)
    with pytest.raises(OptionError, match="keep_completed: remove_on_complete keeps nothing; leave out"):
        await queue.add("n", keep_completed=5, remove_on_complete=True)
    with pytest.raises(OptionError, match="keep_failed must be a positive number of milliseconds, at most"):
        await queue.add("n", keep_failed=0)
    usual: JobOptions = {"remove_on_complete": True, "keep_failed": 5}
    async with AsyncQueue(queue.name, default_job_options=usual, **where) as other:
        job = await (await other.add("n", keep_completed=7)).job()
        assert (job.keep_completed, job.remove_on_complete, job.keep_failed) == (7, False, 5)
        job = await (await other.add("n", remove_on_fail=True)).job()
        assert (job.remove_on_complete, job.remove_on_fail, job.keep_failed) == (True, True, None)


async def test_data_that_is_larger_than_it_may_be(queue: AsyncQueue) -> None:
    await queue.add("n", "x" * 98, size_limit=100)
    with pytest.raises(PayloadError, match=r"the data of the job has 101 bytes, its size_limit is 100; keep"):
        await queue.add("n", "x" * 99, size_limit=100)
    with pytest.raises(PayloadError, match=r"the data of job 1 has 101 bytes"):
        await queue.add_bulk([("n", 1), NewJob("n", "x" * 99, size_limit=100)])
    assert await queue.count() == 1


async def test_a_log_keeps_as_many_lines_as_it_was_told(queue: AsyncQueue) -> None:
    handle = await queue.add("n", keep_logs=2)
    for number in range(4):
        await handle.log(f"line {number}")
    assert [line.message for line in await handle.logs()] == ["line 2", "line 3"]


@pytest.mark.parametrize("zone", [UTC, None])
async def test_a_job_of_the_past(queue: AsyncQueue, zone: Any) -> None:
    at = time.time() - 3600
    stamp = datetime.fromtimestamp(at, zone) if zone else at * 1000
    job = await (await queue.add("n", timestamp=stamp, delay=7_200_000)).job()
    assert abs(job.created_at_ms - at * 1000) <= 1
    assert job.run_at - job.created_at == timedelta(hours=2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"timestamp": datetime(2024, 1, 1)},
            r"timestamp: datetime.datetime\(.* has no time zone; if it is local time give its .astimezone",
        ),
        ({"depends_on": [5]}, "depends_on: 5 is no job; give a handle, or the id of one"),
        ({"depends_on": ""}, "depends_on: '' is no job"),
        ({"parent": object}, "parent: <class 'object'> is no job"),
        ({"dedup": {"ttl": 5}, "unique_key": "k"}, r"dedup: .*give a bunqueue\.Dedup"),
        ({"dedup": Dedup(ttl=-1), "unique_key": "k"}, "dedup: ttl must be at least 0, not -1"),
        ({"debounce": "k"}, r"debounce: 'k' is not allowed; give a bunqueue\.Debounce"),
        ({"debounce": Debounce("k", "soon")}, "debounce: wait: 'soon' is no span of time"),  # type: ignore[arg-type]
        ({"debounce": Debounce("k", -1)}, "debounce: wait must be at least 0, not -1"),
        ({"debounce": Debounce("", 1)}, "debounce: key: '' is not allowed"),
        ({"unique_key": ""}, "unique_key: '' is not allowed; give a text that is not empty, or None"),
        ({"job_id": ""}, "job_id: '' is not allowed"),
        ({"delay": float("nan")}, "delay: nan is not a time"),
        ({"group_max_size": 2}, "group_max_size: it is the size of a group; give group, too"),
        ({"repeat": 0}, "repeat: every must be a positive number of milliseconds, at most a year, not 0"),
        ({"repeat": Repeat(5, limit=-1)}, "repeat: limit must be at least 0, not -1"),
        ({"group": ""}, "group must be a non-empty string, not ''"),
        ({"group_max_size": 0}, "group_max_size must be at least 1, not 0"),
        ({"stall_timeout": timedelta(days=2)}, "stall_timeout must be at most 86400000"),
        ({"keep_logs": -1}, "keep_logs must be at least 0, not -1"),
        ({"job_id": "x" * 1025}, "job_id must be at most 1024 characters"),
        ({"parent": "x" * 1025}, "parent must be at most 1024 characters"),
    ],
)
async def test_what_is_not_allowed_is_told_and_nothing_is_sent(
    queue: AsyncQueue, options: Any, problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        await queue.add("n", **options)
    with pytest.raises(OptionError, match=f"job 1: {problem}"):
        await queue.add_bulk([("n", None), NewJob("n", **options)])
    assert await queue.count() == 0


async def test_options_of_the_queue_hold_unless_said_otherwise(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, default_job_options={"group": "a", "keep_logs": 3}, **where) as queue:
        first: AsyncJobHandle[Any] = await queue.add("n", group="b")
        (second,) = await queue.add_bulk([("n", None)])
        jobs = [await first.job(), await second.job()]
        assert [(job.group, job.keep_logs) for job in jobs] == [("b", 3), ("a", 3)]
