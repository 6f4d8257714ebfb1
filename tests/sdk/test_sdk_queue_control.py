"""Ruling over queues, and looking at them and at the server, on a server and embedded."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    CommandFailed,
    Dedup,
    NewJob,
    NotFound,
    OptionError,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.protocol.commands.groups import GroupRate
from bunqueue.protocol.commands.limits import Rate

FAR = 3_600_000


async def handler(job: ActiveJob) -> Any:
    if job.name == "bad":
        raise ValueError("broken")
    return job.data


def working(queue: AsyncQueue, where: EndpointOptions, **options: Any) -> Worker:
    return Worker(queue.name, handler, **options, **where)


async def failed(queue: AsyncQueue, where: EndpointOptions, count: int) -> list[str]:
    """Ids of so many dead letters."""
    handles = await queue.add_bulk([NewJob("bad", number, max_attempts=1) for number in range(count)])
    async with working(queue, where, concurrency=1):
        for handle in handles:
            await handle.wait()
    return [handle.id for handle in handles]


async def test_pausing(queue: AsyncQueue) -> None:
    assert await queue.is_paused() is False
    await queue.pause()
    assert await queue.is_paused() is True
    await queue.resume()
    assert await queue.is_paused() is False


async def test_draining_and_obliterating(queue: AsyncQueue) -> None:
    first, *_ = await queue.add_bulk([("n", number) for number in range(3)])
    await queue.add("n", delay=FAR)
    blocked = await queue.add("n", depends_on=[await queue.add("n", delay=FAR)])
    assert await queue.drain() == 5
    assert (await first.state(), await queue.count()) == ("unknown", 1)
    await queue.obliterate()
    assert await blocked.state() == "unknown"


async def test_cleaning(queue: AsyncQueue, where: EndpointOptions) -> None:
    dead = await failed(queue, where, 2)
    waiting = [handle.id for handle in await queue.add_bulk([("n", 1), ("n", 2), ("n", 3)])]
    assert await queue.clean(timedelta(hours=1)) == []
    assert await queue.clean(limit=2) == waiting[:2]
    assert await queue.clean(state="failed", limit=1) == dead[:1]
    assert await queue.clean(state="completed") == []
    assert (await queue.counts()).failed == 1
    with pytest.raises(OptionError, match="limit must be at most 1000000, not 10000000"):
        await queue.clean(limit=10_000_000)


async def test_promoting_all(queue: AsyncQueue) -> None:
    handles = await queue.add_bulk([NewJob("n", number, delay=FAR) for number in range(3)])
    assert await queue.promote_jobs(1) == 1
    assert [await handle.state() for handle in handles] == ["waiting", "delayed", "delayed"]
    assert await queue.promote_jobs() == 2


async def test_completed_jobs_run_again(queue: AsyncQueue, where: EndpointOptions) -> None:
    handles = await queue.add_bulk([("n", number) for number in range(4)])
    async with working(queue, where):
        for handle in handles:
            await handle.wait()
    assert await queue.retry_completed(handles[3].id) == 1
    assert await queue.retry_completed(before=datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert await queue.retry_completed(before=time.time() * 1000 + FAR, count=1) == 1
    assert await queue.retry_completed() == 2
    assert (await queue.counts()).waiting == 4


async def test_all_jobs_one_after_the_other(queue: AsyncQueue) -> None:
    await queue.add_bulk([("n", number) for number in range(25)])
    await queue.add("late", 25, delay=FAR)
    assert [job.data async for job in queue.iter_jobs(page=10)] == list(range(26))
    assert [job.data async for job in queue.iter_jobs("waiting", page=5)] == list(range(25))
    assert [job.data async for job in queue.iter_jobs(newest_first=True)] == list(range(25, -1, -1))
    assert [job.data for job in await queue.get_jobs(newest_first=True, limit=2)] == [25, 24]


async def test_counts_by_priority(queue: AsyncQueue) -> None:
    await queue.add_bulk([NewJob("n", priority=priority) for priority in (0, 0, 5, -3)])
    await queue.add("n", priority=5, delay=FAR)
    assert await queue.counts_per_priority() == {0: 2, 5: 2, -3: 1}


async def test_events_are_trimmed(queue: AsyncQueue) -> None:
    await queue.add_bulk([("n", None)] * 10)
    assert await queue.trim_events(4) == 6
    assert await queue.trim_events(0) == 4


# -- dead letters


async def test_dead_letters_and_how_they_died(queue: AsyncQueue, where: EndpointOptions) -> None:
    ids = await failed(queue, where, 3)
    entries = await queue.dlq_entries()
    assert [entry.job.id for entry in entries] == ids
    first = entries[0]
    assert (first.reason, first.error) == ("max_attempts_exceeded", "ValueError: broken")
    assert first.retry_count == 0
    (attempt,) = first.attempts
    assert (attempt.attempt, attempt.error, attempt.reason) == (1, first.error, first.reason)
    assert first.expires_at is not None
    assert first.expires_at > first.entered_at
    assert [entry.job.id for entry in await queue.dlq_entries(limit=1, offset=1)] == ids[1:2]
    assert await queue.dlq_entries(reason="timeout") == []
    assert await queue.dlq_entries(newer_than=datetime.now(UTC) + timedelta(hours=1)) == []
    assert len(await queue.dlq_entries(older_than=time.time() * 1000 + FAR, expired=False)) == 3
    stats = await queue.dlq_stats()
    assert (stats.total, stats.by_reason["max_attempts_exceeded"]) == (3, 3)


async def test_dead_letters_are_retried_and_removed(queue: AsyncQueue, where: EndpointOptions) -> None:
    ids = await failed(queue, where, 6)
    assert await queue.retry_dlq(ids[5]) == 1
    assert await queue.retry_dlq(reason="timeout") == 0
    assert await queue.retry_dlq(count=1, reason="max_attempts_exceeded") == 1
    assert await queue.get_state(ids[0]) == "waiting"
    assert await queue.remove_dlq_job(ids[1]) is True
    assert await queue.remove_dlq_job(ids[1]) is False
    assert await queue.purge_dlq() == 3
    assert await queue.dlq() == []


async def test_how_dead_letters_are_kept(queue: AsyncQueue) -> None:
    before = await queue.dlq_config()
    assert (before.auto_retry, before.max_entries) == (False, 10_000)
    await queue.set_dlq_config(auto_retry=True, auto_retry_interval=timedelta(minutes=5), max_auto_retries=2)
    await queue.set_dlq_config(max_age=None, max_entries=7)
    after = await queue.dlq_config()
    assert (after.auto_retry, after.auto_retry_interval, after.max_auto_retries) == (True, 300_000, 2)
    assert (after.max_age, after.max_entries) == (None, 7)
    await queue.set_dlq_config(max_age=FAR)
    assert (await queue.dlq_config()).max_age == FAR
    with pytest.raises(OptionError, match="max_entries must be at least 0, not -1"):
        await queue.set_dlq_config(max_entries=-1)


# -- limits


async def test_limits_of_a_queue(queue: AsyncQueue) -> None:
    limits = await queue.limits()
    assert (limits.rate_limit, limits.concurrency_limit, limits.maxed) == (None, None, False)
    await queue.set_rate_limit(10, per=timedelta(minutes=1))
    await queue.set_concurrency(3)
    limits = await queue.limits()
    assert (limits.rate_limit, limits.concurrency_limit) == (Rate(10, 60_000), 3)
    await queue.set_rate_limit(5, ttl=FAR)
    limits = await queue.limits()
    assert limits.rate_limit == Rate(5, 1000)
    assert 0 < limits.rate_limit_ttl <= FAR
    await queue.clear_rate_limit()
    await queue.clear_concurrency()
    limits = await queue.limits()
    assert (limits.rate_limit, limits.concurrency_limit) == (None, None)


@pytest.mark.parametrize("limit", [-1, 1.5, True, False, "10"])
async def test_a_limit_that_no_job_could_keep_is_refused(queue: AsyncQueue, limit: Any) -> None:
    for call in (queue.set_rate_limit, queue.set_concurrency):
        with pytest.raises(OptionError, match=f"limit: {limit!r} is not allowed; give a whole number from 1"):
            await call(limit)
        with pytest.raises(OptionError, match="limit: 0 would let no job start; pause the queue"):
            await call(0)
    limits = await queue.limits()
    assert (limits.rate_limit, limits.concurrency_limit) == (None, None)


async def test_when_jobs_stall(queue: AsyncQueue) -> None:
    assert (await queue.stall_config()).stall_interval == 30_000
    await queue.set_stall_config(stall_interval=timedelta(minutes=1), max_stalls=5)
    await queue.set_stall_config(grace_period=0, enabled=False)
    config = await queue.stall_config()
    assert (config.stall_interval, config.max_stalls, config.grace_period, config.enabled) == (
        60_000,
        5,
        0,
        False,
    )


async def test_groups(queue: AsyncQueue, where: EndpointOptions) -> None:
    acme = queue.group("acme")
    await queue.add_bulk([NewJob("n", number, group="acme") for number in range(3)])
    await queue.add_bulk([NewJob("n", group="other"), NewJob("n")])
    assert (await acme.count(), await acme.active_count(), await queue.grouped_count()) == (3, 0, 4)
    assert (await acme.is_paused(), await acme.pause(), await acme.pause()) == (False, True, False)
    async with working(queue, where) as worker:
        await eventually(lambda: worker.stats.completed == 2, "what is not of the group is done")
        assert await acme.count() == 3
        assert await acme.is_paused()
        assert (await acme.resume(), await acme.resume()) == (True, False)
        await eventually(lambda: worker.stats.completed == 5, "the group is done, too")
    assert repr(acme).endswith(f"JobGroup(queue='{queue.name}', id='acme')")


async def test_limits_of_a_group(queue: AsyncQueue) -> None:
    acme = queue.group("acme")
    assert (await acme.concurrency(), await acme.rate_limit(), await acme.rate_limit_ttl()) == (None,) * 3
    await acme.set_concurrency(2)
    await acme.set_rate_limit(5, per=timedelta(seconds=9))
    assert (await acme.concurrency(), await acme.rate_limit()) == (2, GroupRate(5, 9000))
    assert (await acme.clear_concurrency(), await acme.clear_concurrency()) == (True, False)
    assert (await acme.clear_rate_limit(), await acme.clear_rate_limit()) == (True, False)
    await acme.hold(FAR)
    assert 0 < (await acme.rate_limit_ttl() or 0) <= FAR
    with pytest.raises(OptionError, match="limit must be a positive safe integer, not 0"):
        await acme.set_concurrency(0)


# -- schedules and webhooks


async def test_schedules(queue: AsyncQueue, where: EndpointOptions) -> None:
    name = f"{queue.name}-nightly"
    made = await queue.upsert_cron(
        name,
        {"full": True},
        schedule="0 3 * * *",
        timezone="Europe/Rome",
        job_name="report",
        priority=2,
        limit=10,
        job_options={"max_attempts": 5, "timeout": timedelta(minutes=1)},
    )
    assert (made.name, made.queue, made.job_name, made.timezone) == (
        name,
        queue.name,
        "report",
        "Europe/Rome",
    )
    assert (made.schedule, made.priority, made.max_limit, made.executions) == ("0 3 * * *", 2, 10, 0)
    assert made.next_run > datetime.now(UTC)
    assert made.data == {"full": True}
    assert (made.prevent_overlap, made.paused, made.missed, made.last_run) == (True, False, 0, None)
    assert made.job_options is not None
    assert (made.job_options.max_attempts, made.job_options.timeout) == (5, 60_000)
    assert "UNSET" not in repr(made)
    assert await queue.get_cron(name) == made
    made.data = None  # is not in lists
    assert made in await queue.list_crons()
    async with AsyncQueue(f"{queue.name}-other", **where) as other:
        assert await other.list_crons() == []
    assert (await queue.delete_cron(name), await queue.delete_cron(name)) == (True, False)
    assert await queue.get_cron(name) is None


async def test_a_schedule_adds_jobs(queue: AsyncQueue, where: EndpointOptions) -> None:
    every = await queue.upsert_cron(
        f"{queue.name}-often",
        7,
        every=timedelta(hours=1),
        immediately=True,
        unique_key="often",
        dedup=Dedup(ttl=FAR),
        job_options={"tags": ["cron"]},
    )
    assert every.repeat_every == FAR

    async def is_there() -> bool:
        return await queue.count() == 1

    await eventually(is_there, "the first job is there")
    (job,) = await queue.get_jobs()
    assert (job.data, job.unique_key, job.tags) == (7, "often", ["cron"])
    await queue.delete_cron(every.name)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({}, OptionError, "give either a cron expression or every"),
        ({"schedule": "* * * * *", "every": 5}, OptionError, "give either a cron expression or every"),
        ({"schedule": "never"}, OptionError, "schedule: 'never': an expression has 5 fields"),
        ({"schedule": "0 0 31 2 *"}, OptionError, "there is no such date"),
        ({"schedule": "@daily", "timezone": "Mars/Olympus"}, OptionError, "unknown time zone 'Mars/Olympus'"),
        ({"every": 5, "timezone": "UTC"}, OptionError, "timezone: it goes with a cron expression"),
        ({"every": float("inf")}, OptionError, "every: inf is not allowed"),
        ({"every": 5, "job_options": [1]}, OptionError, r"job_options: \[1\] is not allowed"),
        ({"every": "often"}, OptionError, "every: 'often' is no span of time"),
        (
            {"every": 0},
            OptionError,
            "every must be a positive whole number of milliseconds, at most",
        ),
        ({"every": 5, "limit": 0}, OptionError, "limit: 0 is not allowed; give a whole number from 1 on"),
        (
            {"every": 5, "job_options": {"group": "x"}},
            OptionError,
            "group is not an option of a schedule; there are",
        ),
        ({"every": 5, "evry": 5}, OptionError, "a schedule has no option 'evry'; did you mean every"),
    ],
)
async def test_schedules_that_cannot_be(
    queue: AsyncQueue, options: Any, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        await queue.upsert_cron("x", **options)


async def test_webhooks(queue: AsyncQueue) -> None:
    hook = await queue.add_webhook("https://example.com/hook", ["job.completed"], secret="s")
    mine = {info.id: info for info in await queue.list_webhooks()}
    assert (mine[hook].url, mine[hook].queue, mine[hook].events) == (
        "https://example.com/hook",
        queue.name,
        ["job.completed"],
    )
    await queue.set_webhook_enabled(hook, False)
    assert not next(info for info in await queue.list_webhooks() if info.id == hook).enabled
    assert await queue.remove_webhook(hook) is True
    assert await queue.remove_webhook(hook) is False
    with pytest.raises(NotFound, match="Webhook not found"):
        await queue.set_webhook_enabled(hook, True)
    with pytest.raises(CommandFailed):
        await queue.add_webhook("http://localhost/", ["job.failed"])


# -- the server


async def test_numbers(queue: AsyncQueue, where: EndpointOptions) -> None:
    await failed(queue, where, 1)
    done = await queue.add("n")
    async with working(queue, where):
        await done.wait()
    await queue.add("n")
    for kind in ("completed", "failed"):
        history = await queue.history(kind)  # type: ignore[arg-type]
        assert history.meta.count == 1
    details = await queue.dashboard_queue()
    assert (details.name, details.paused) == (queue.name, False)


async def test_workers(queue: AsyncQueue, where: EndpointOptions) -> None:
    async with working(queue, where, concurrency=7):

        async def is_listed() -> bool:
            return [worker.concurrency for worker in await queue.list_workers()] == [7]

        await eventually(is_listed, "the worker is in the list")


async def test_what_people_ask_who_look_after_queues(queue: AsyncQueue, where: EndpointOptions) -> None:
    first = await queue.add("bad", 1, max_attempts=2, backoff=FAR)
    async with working(queue, where, concurrency=1):

        async def tried() -> bool:
            return bool(await first.attempts())

        await eventually(tried, "it was tried")
    (attempt,) = await first.attempts()
    assert (attempt.number, attempt.outcome) == (1, "explicit_fail")
    assert "broken" in (attempt.error or "")
    reasons = {reason.kind: reason for reason in await first.why_waiting()}
    assert reasons["retry"].until is not None
    assert reasons["retry"].until > datetime.now(UTC) - timedelta(minutes=1)
    await queue.add("good", 2, group="acme", delay=FAR)
    (group,) = await queue.list_groups()
    assert (group.id, group.waiting) == ("acme", 1)
    assert await queue.list_groups(offset=1) == []
    await failed(queue, where, 2)
    assert await queue.count_dlq() == 2
    assert await queue.count_dlq(reason="stalled") == 0


async def test_a_schedule_rests_for_a_while(queue: AsyncQueue) -> None:
    name = f"rests-{queue.name}"
    made = await queue.upsert_cron(name, every=FAR)
    runs = await queue.next_runs(name, count=3)
    assert runs == [made.next_run + number * timedelta(milliseconds=FAR) for number in range(3)]
    assert (await queue.pause_cron(name)).paused is True
    assert (await queue.resume_cron(name)).paused is not True
    for method in (queue.next_runs, queue.pause_cron, queue.resume_cron):
        with pytest.raises(NotFound):
            await method("none")
    with pytest.raises(OptionError, match="count"):
        await queue.next_runs(name, count=101)
    await queue.delete_cron(name)


async def test_a_webhook_is_not_tried_where_nobody_delivers(queue: AsyncQueue) -> None:
    hook = await queue.add_webhook("https://example.com/", ["job.failed"])
    with pytest.raises(CommandFailed, match="--http-port"):
        await queue.test_webhook(hook)
    with pytest.raises(NotFound):
        await queue.test_webhook("none")
    await queue.remove_webhook(hook)
