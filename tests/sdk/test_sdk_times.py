"""Spans and moments may be given in each way that makes sense, on a server and embedded."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from bunqueue import ActiveJob, AsyncQueue, OptionError, Postpone, Queue, Retry, Unrecoverable, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions

HOUR = timedelta(hours=1)
ROME = timezone(timedelta(hours=2))
NAIVE = datetime(2030, 1, 1)
MEND = r"has no time zone; if it is local time give its \.astimezone\(\), if it is UTC its \.replace"


def in_an_hour() -> datetime:
    return datetime.now(ROME) + HOUR


def near(found: datetime, wanted: datetime) -> bool:
    return abs(found - wanted) < timedelta(minutes=5)


@pytest.mark.parametrize("change", ["change_delay", "move_to_delayed"])
@pytest.mark.parametrize("given", [3_600_000, HOUR, in_an_hour])
async def test_a_job_is_put_off_by_a_span_or_to_a_moment(queue: AsyncQueue, change: str, given: Any) -> None:
    job = await queue.add("n")
    await getattr(job, change)(given() if callable(given) else given)
    assert near((await job.job()).run_at, in_an_hour())


async def test_a_job_that_is_put_off_to_the_past_runs_at_once(queue: AsyncQueue) -> None:
    job = await queue.add("n", delay=HOUR)
    await job.change_delay(datetime(2020, 1, 1, tzinfo=UTC))
    assert (await job.job()).run_at <= datetime.now(UTC) + timedelta(minutes=5)


@pytest.mark.parametrize("kind", [Postpone, Retry])
async def test_a_handler_says_when_the_job_runs_again(
    queue: AsyncQueue, where: EndpointOptions, kind: Any
) -> None:
    async def handler(job: ActiveJob) -> None:
        raise kind(in_an_hour())

    told = asyncio.Event()
    job = await queue.add("n")
    async with (
        Worker(
            queue.name,
            handler,
            on_failed=lambda job, error: told.set(),
            on_stopped=lambda job, error: told.set(),
            **where,
        ),
        asyncio.timeout(60),
    ):
        await told.wait()
    assert near((await job.job()).run_at, in_an_hour())


@pytest.mark.parametrize("kind", [Postpone, Retry])
async def test_a_handler_that_names_no_zone_fails_its_attempt(
    queue: AsyncQueue, where: EndpointOptions, kind: Any
) -> None:
    async def handler(job: ActiveJob) -> None:
        raise kind(NAIVE)

    job = await queue.add("n", max_attempts=1)
    async with Worker(queue.name, handler, **where):
        outcome = await job.wait(60_000)
    assert outcome.state == "failed"
    assert "has no time zone" in str(outcome.error)


@pytest.mark.parametrize("given", [3_600_000, HOUR, in_an_hour])
async def test_a_group_is_held_for_a_span_or_until_a_moment(queue: AsyncQueue, given: Any) -> None:
    group = queue.group("acme")
    await group.hold(given() if callable(given) else given)
    left = await group.rate_limit_ttl()
    assert left is not None
    assert abs(left - 3_600_000) < 300_000


async def test_a_moment_that_has_passed_holds_nothing(queue: AsyncQueue) -> None:
    group = queue.group("acme")
    await group.hold(datetime(2020, 1, 1, tzinfo=UTC))
    assert await group.rate_limit_ttl() is None


async def test_a_rate_limit_ends_at_a_moment(queue: AsyncQueue) -> None:
    await queue.set_rate_limit(5, ttl=in_an_hour())
    assert abs((await queue.limits()).rate_limit_ttl - 3_600_000) < 300_000


async def test_jobs_older_than_a_moment_are_removed(queue: AsyncQueue) -> None:
    old = await queue.add("old", timestamp=2 * HOUR)
    await queue.add("new")
    before = datetime.now(ROME) - HOUR
    assert await queue.clean(before) == [old.id]
    assert await queue.clean(HOUR) == []


async def test_a_timedelta_is_so_long_ago_where_moments_are_asked_for(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    async def handler(job: ActiveJob) -> None:
        if job.name == "broken":
            raise Unrecoverable("no such mailbox")

    broken, done = await queue.add("broken"), await queue.add("done")
    async with Worker(queue.name, handler, **where):
        await asyncio.gather(broken.wait(60_000), done.wait(60_000))
    just_now = timedelta(0)
    assert await queue.count_dlq(older_than=just_now) == 1
    assert await queue.count_dlq(newer_than=just_now) == 0
    assert await queue.count_dlq(newer_than=HOUR) == 1
    assert await queue.count_dlq(older_than=HOUR) == 0
    assert await queue.retry_dlq(older_than=HOUR) == 0
    assert await queue.retry_completed(before=HOUR) == 0
    assert await queue.retry_completed(before=datetime.now(ROME) + HOUR) == 1


async def test_dead_letters_are_found_by_name_and_error(queue: AsyncQueue, where: EndpointOptions) -> None:
    async def handler(job: ActiveJob) -> None:
        raise Unrecoverable("No such mailbox" if job.name == "welcome" else "disk full")

    jobs = [await queue.add(name) for name in ("welcome", "report", "digest")]
    async with Worker(queue.name, handler, **where):
        await asyncio.gather(*(job.wait(60_000) for job in jobs))
    assert [entry.job.name for entry in await queue.dlq_entries(name="report")] == ["report"]
    assert await queue.count_dlq(error="no such") == 1
    assert await queue.count_dlq(error="disk", name="digest") == 1
    assert await queue.retry_dlq(error="DISK FULL") == 2
    with Queue(queue.name, **where) as plain:
        assert plain.count_dlq(name="welcome") == 1


async def test_spans_until_a_moment_do_not_begin_in_the_past(queue: AsyncQueue) -> None:
    moment = in_an_hour()
    job = await queue.add("n", timestamp=datetime.now(UTC) - HOUR, at=moment)
    assert near((await job.job()).run_at, moment)
    job = await queue.add("n", timestamp=HOUR)
    assert near((await job.job()).created_at, datetime.now(UTC) - HOUR)


async def test_moments_without_a_zone_are_refused(queue: AsyncQueue) -> None:
    job = await queue.add("n")
    for name, refused in (
        ("delay", queue.add("n", delay=NAIVE)),
        ("at", queue.add("n", at=NAIVE)),
        ("ttl", queue.add("n", ttl=NAIVE)),
        ("timestamp", queue.add("n", timestamp=NAIVE)),
        ("delay", job.change_delay(NAIVE)),
        ("delay", job.move_to_delayed(NAIVE)),
        ("duration", queue.group("acme").hold(NAIVE)),
        ("ttl", queue.set_rate_limit(1, ttl=NAIVE)),
        ("older_than", queue.clean(NAIVE)),
        ("before", queue.retry_completed(before=NAIVE)),
        ("newer_than", queue.count_dlq(newer_than=NAIVE)),
        ("older_than", queue.dlq_entries(older_than=NAIVE)),
        ("older_than", queue.retry_dlq(older_than=NAIVE)),
    ):
        with pytest.raises(OptionError, match=rf"^{name}: .*{MEND}"):
            await refused
    assert await queue.count() == 1


async def test_moments_are_refused_where_only_a_span_makes_sense(queue: AsyncQueue) -> None:
    moment, job = in_an_hour(), await queue.add("n")
    for refused in (
        queue.add("n", timeout=moment),  # type: ignore[arg-type]
        job.cancel(grace=moment),  # type: ignore[arg-type]
        job.wait(moment),  # type: ignore[arg-type]
        queue.set_rate_limit(1, per=moment),  # type: ignore[arg-type]
        queue.upsert_cron("c", every=moment),  # type: ignore[typeddict-item]
    ):
        with pytest.raises(OptionError, match="is a moment; give a span: milliseconds, a timedelta"):
            await refused
    with pytest.raises(OptionError, match="job_options: delay: a moment suits one job only; give a span"):
        await queue.upsert_cron("c", schedule="@daily", job_options={"delay": moment})
    assert await queue.count() == 1


async def test_numbers_of_moments_are_ms_since_the_epoch(queue: AsyncQueue) -> None:
    assert await queue.count_dlq(older_than=time.time() * 1000) == 0
    assert await queue.retry_completed(before=time.time() * 1000) == 0
