"""What a schedule and a repeated job may be told, and what is refused before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import Bunqueue, OptionError, Queue, Repeat, current_job
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import Sandbox

START = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"overlap": "queue", "max_backlog": 5}, ("queue", None, 5)),
        ({"overlap": "cancel", "on_missed": "one"}, ("cancel", "one", None)),
        ({"overlap": "allow", "on_missed": "all"}, ("allow", "all", None)),
    ],
)
def test_a_schedule_says_what_it_was_told(options: dict[str, Any], shown: tuple[Any, ...]) -> None:
    with Queue("q", embedded=True) as queue:
        cron = queue.upsert_cron("c", every=60_000, **options)
        assert (cron.overlap, cron.on_missed, cron.max_backlog) == shown
        assert queue.get_cron("c") == cron


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"overlap": "later"}, "overlap"),
        ({"overlap": "skip", "prevent_overlap": True}, "overlap"),
        ({"on_missed": "one", "skip_missed_on_restart": False}, "on_missed"),
        ({"on_missed": "all"}, "on_missed"),
        ({"overlap": "queue", "unique_key": "k"}, "overlap"),
        ({"overlap": "queue", "max_backlog": 1001}, "max_backlog"),
        ({"max_backlog": 10}, "max_backlog"),
    ],
)
def test_a_schedule_that_contradicts_itself_is_refused(options: dict[str, Any], field: str) -> None:
    with Queue("q", embedded=True) as queue:
        with pytest.raises(OptionError, match=field):
            queue.upsert_cron("c", every=60_000, **options)
        assert queue.list_crons() == []


@pytest.mark.parametrize(
    ("repeat", "sent"),
    [
        (timedelta(seconds=5), {"every": 5000.0, "limit": None}),
        (Repeat(1000, 3), {"every": 1000.0, "limit": 3}),
        (
            Repeat(pattern="0 3 * * *", tz="Europe/Rome", start=START, end=START + timedelta(days=1)),
            {
                "limit": None,
                "pattern": "0 3 * * *",
                "tz": "Europe/Rome",
                "startDate": START.timestamp() * 1000,
                "endDate": START.timestamp() * 1000 + 86_400_000,
            },
        ),
    ],
)
def test_a_job_repeats_as_it_was_told(repeat: Any, sent: dict[str, Any]) -> None:
    with Queue("q", embedded=True) as queue:
        job = queue.get_job(queue.add("j", repeat=repeat).id)
        assert job is not None
        assert job.repeat == sent | {"count": 0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Repeat(), "give either every, or pattern"),
        (lambda: Repeat(5, pattern="* * * * *"), "give either every, or pattern"),
        (lambda: Repeat(5, tz="UTC"), "tz: it goes with pattern"),
        (lambda: Repeat(pattern="* *"), "pattern: '. .'"),
        (lambda: Repeat(pattern="* * * * *", tz="No/Where"), "No/Where"),
        (lambda: Repeat(5, start=datetime(2027, 1, 1)), "start: .* has no time zone"),
        (lambda: Repeat(5, end=-4), "end: -4"),
        (lambda: Repeat(0), "every must be a positive number"),
    ],
)
def test_a_repetition_that_says_nothing_is_refused(make: Callable[[], Repeat], said: str) -> None:
    with Queue("q", embedded=True) as queue:
        with pytest.raises(OptionError, match=said):
            queue.add("j", repeat=make())
        assert queue.count() == 0


def test_a_sandbox_shows_runs_that_wait_for_each_other() -> None:
    with Sandbox() as sandbox, Queue("q") as queue:
        queue.upsert_cron("c", every=1000, overlap="queue", max_backlog=2)
        sandbox.advance(5_000)
        cron = queue.get_cron("c")
        assert cron is not None
        assert (cron.executions, cron.backlog) == (5, 2)
        assert len(sandbox.drain({"q": lambda job: None})) == 3


def test_an_app_declares_it() -> None:
    app = Bunqueue("tasks")

    @app.cron(every=1000, overlap="cancel", on_missed="one")
    def sync() -> None: ...

    (declared,) = app._schedules.values()
    command = declared.command({}, "tasks")
    assert (command.overlap, command.on_missed) == ("cancel", "one")


async def test_a_job_of_a_schedule_knows_for_which_time_it_runs(where: EndpointOptions) -> None:
    app = Bunqueue("schedule-times", **where)
    seen: dict[str, tuple[str | None, datetime | None]] = {}

    @app.cron(every=timedelta(days=1), immediately=True, name="daily-report")
    async def report() -> None:
        seen["report"] = current_job().schedule, current_job().scheduled_for

    @app.job
    async def plain() -> None:
        seen["plain"] = current_job().schedule, current_job().scheduled_for

    async with app:
        await plain.add_async()
        await eventually(lambda: len(seen) == 2, "both have run")
        cron = await app.async_queue.get_cron("daily-report")
        assert cron is not None
        assert cron.last_run is not None
        job = await app.async_queue.handle(cron.last_run.job_id).job()
    assert seen["plain"] == (None, None)
    assert seen["report"] == ("daily-report", cron.next_run - timedelta(days=1))
    assert (job.schedule, job.scheduled_for) == seen["report"]
    assert job.scheduled_for_ms == cron.next_run_ms - 86_400_000
