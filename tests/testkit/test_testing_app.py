"""Apps and typed jobs in a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bunqueue import ActiveJob, ArgumentsError, Bunqueue, current_job
from bunqueue.app.queue_config import RateLimit
from bunqueue.testing import Sandbox

app = Bunqueue("mails", host="queues.example.com")  # as in a program that knows nothing of tests


@app.job(max_attempts=5, backoff=1000)
async def welcome(to: str, language: str = "en") -> str:
    return f"{language}: {to} at attempt {current_job().attempts + 1}"


@app.job(queue="payments", unrecoverable=[ValueError])
def charge(cents: int) -> int:
    if cents < 0:
        raise ValueError(cents)
    welcome.add("the cashier")
    return cents


@app.route("bounce")
def bounce(job: ActiveJob) -> str:
    return f"bounced {job.data}"


@app.cron("0 9 * * *", tz="Europe/Rome")
def digest() -> str:
    return "good morning"


def test_an_app_is_drained_with_all_of_its_queues(bunqueue: Sandbox) -> None:
    charge.add(500)
    app.add("bounce", "ada")
    ran = bunqueue.drain(app)
    assert [(run.queue, run.name, run.result) for run in ran] == [
        ("mails", "bounce", "bounced ada"),
        ("payments", "charge", 500),
        ("mails", "welcome", "en: the cashier at attempt 1"),
    ]


def test_a_batch_takes_what_is_there_and_waits_for_no_more(bunqueue: Sandbox) -> None:
    batches = Bunqueue("batches", host="queues.example.com")
    seen: list[int] = []

    @batches.batch("index", size=100, max_wait=600_000)
    async def index(jobs: list[ActiveJob]) -> list[int]:
        seen.append(len(jobs))
        return [job.data * 2 for job in jobs]

    batches.add("index", 1)
    batches.add("index", 2)
    assert [run.result for run in bunqueue.drain(batches)] == [2, 4]
    assert seen == [2]


def test_what_was_added_is_said_as_it_is_added(bunqueue: Sandbox) -> None:
    welcome.options(delay=timedelta(hours=1)).add("ada@example.com", language="it")
    bunqueue.assert_added(welcome)
    bunqueue.assert_added(welcome, data={"to": "ada@example.com"}, delay=timedelta(hours=1), max_attempts=5)
    bunqueue.assert_added(welcome.job("ada@example.com", "it"), delay=timedelta(hours=1))
    bunqueue.assert_added(welcome.options(delay=3_600_000).job("ada@example.com", language="it"))
    bunqueue.assert_added(welcome.job("ada@example.com"))  # what is not said does not matter
    bunqueue.assert_not_added(welcome.job("bob@example.com"))
    bunqueue.assert_not_added(charge)
    assert len(bunqueue.added(welcome)) == 1
    with pytest.raises(AssertionError, match=r"data\['language'\] is 'it', not 'fr'"):
        bunqueue.assert_added(welcome.job("ada@example.com", "fr"))
    with pytest.raises(ArgumentsError):
        bunqueue.assert_added(welcome.job(5))  # type: ignore[arg-type]  # is to be refused
    with pytest.raises(TypeError, match="has its name and its data already"):
        bunqueue.assert_added(welcome.job("ada"), "welcome")


def test_what_an_app_cannot_mend_is_a_dead_letter(bunqueue: Sandbox) -> None:
    job = charge.add(-1)
    (run,) = bunqueue.drain(app)
    assert (run.outcome, job.state()) == ("failed", "failed")


@pytest.mark.bunqueue(start="2026-06-01T12:00:00+02:00")
def test_the_schedules_of_an_app(bunqueue: Sandbox) -> None:
    ran = bunqueue.drain(app, within=timedelta(days=2))
    assert [run.result for run in ran] == ["good morning"] * 2
    hours = [run.at for run in ran]
    assert hours == [datetime(2026, 6, day, 7, tzinfo=UTC) for day in (2, 3)]


def test_the_limits_of_an_app(bunqueue: Sandbox) -> None:
    slow = Bunqueue("slow", rate_limit=RateLimit(2, timedelta(minutes=1)))
    task = slow.job(name="n")(lambda: None)
    for _ in range(5):
        task.add()
    assert len(bunqueue.drain(slow)) == 2
    assert len(bunqueue.drain(slow, within=timedelta(minutes=2))) == 3


async def test_an_app_that_runs(bunqueue: Sandbox) -> None:
    async with app:
        job = await welcome.add_async("ada")
        await bunqueue.settle_async()
        assert await job.result() == "en: ada at attempt 1"
