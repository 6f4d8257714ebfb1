"""The sandbox of `bunqueue.testing`: time, running jobs, what was added."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from support.server import Server

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    Backoff,
    CallNext,
    CommandFailed,
    JobCancelled,
    JobTimeout,
    Middleware,
    Queue,
    Unrecoverable,
    Worker,
    current_job,
)
from bunqueue.errors import OptionError
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.cron import Cron, CronReply
from bunqueue.protocol.commands.jobs import Cancel, CancelReply
from bunqueue.protocol.commands.queues import Pause, Resume
from bunqueue.testing import Sandbox, SandboxError

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
EMAILS = Queue("emails")  # as in a program that knows nothing of tests


def double(job: ActiveJob) -> int:
    return int(job.data) * 2


def broken(job: ActiveJob) -> None:
    raise ValueError(f"attempt {job.attempts + 1}")


# -- what was added


def test_what_the_program_adds_is_there_and_nowhere_else(bunqueue: Sandbox) -> None:
    EMAILS.add("welcome", {"to": "ada@example.com", "tries": [1, 2]}, priority=3, delay=timedelta(seconds=5))
    Queue("other", host="198.51.100.1", port=1).add("n")
    Queue("third", embedded=True, data_path="/nowhere/jobs.db").add_bulk([("a", 1), ("b", 2)])
    job = bunqueue.assert_added("emails", "welcome", {"to": "ada@example.com"}, delay=5 * SECOND)
    assert (job.state, job.priority) == ("delayed", 3)
    bunqueue.assert_added("emails", data={"to": ANY, "tries": (1, 2)}, priority=3)
    bunqueue.assert_added("third", count=2)
    bunqueue.assert_not_added("emails", "welcome", {"to": "bob@example.com"})
    assert [job.name for job in bunqueue.added("third")] == ["a", "b"]


def test_each_sandbox_begins_empty() -> None:
    for _ in range(2):
        with Sandbox() as sandbox:
            assert EMAILS.count() == 0
            EMAILS.add("n")
            sandbox.assert_added("emails", count=1)


def test_behind_the_sandbox_the_program_has_its_server_again(server: Server) -> None:
    with Queue("q", port=server.port) as queue:
        queue.add("before")
        with Sandbox():
            queue.add("inside")
            assert queue.count() == 1
        assert queue.add("behind").state() == "waiting"
        assert [job.name for job in queue.get_jobs()] == ["before", "behind"]


async def test_behind_the_sandbox_coroutines_have_their_file_again(tmp_path: Path) -> None:
    async with AsyncQueue("q", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        await queue.add("before")
        with Sandbox():
            await queue.add("inside")
            assert await queue.count() == 1
        await queue.add("behind")
        assert [job.name for job in await queue.get_jobs()] == ["before", "behind"]


def test_a_sandbox_within_another_is_apart_from_it(bunqueue: Sandbox) -> None:
    EMAILS.add("outside")
    with Sandbox() as inner:
        EMAILS.add("inside")
        inner.assert_added("emails", "inside", count=1)
    EMAILS.add("outside")
    bunqueue.assert_added("emails", "outside", count=2)
    bunqueue.assert_not_added("emails", "inside")


def test_near_misses_say_what_is_wrong(bunqueue: Sandbox) -> None:
    with pytest.raises(AssertionError, match=r"No job 'x' in queue 'q' was added. No job was added at all\."):
        bunqueue.assert_added("q", "x")
    EMAILS.add("welcome", {"to": "bob@example.com", "deep": {"list": [1, 2]}}, backoff=Backoff(5000, "fixed"))
    EMAILS.add("goodbye", "text")
    with pytest.raises(AssertionError) as caught:
        bunqueue.assert_added(
            "emails",
            "welcome",
            {"to": "ada@example.com", "deep": {"list": [1, 3]}, "x": 1},
            backoff=Backoff(1000, "fixed"),
            unique_key="k",
        )
    text = str(caught.value)
    assert text.splitlines()[0].startswith("No job 'welcome' in queue 'emails' with data {'to': 'ada@example")
    assert text.splitlines()[1] == (
        "  - 'welcome' in queue 'emails': data['to'] is 'bob@example.com', not 'ada@example.com'; "
        "data['deep']['list'][1] is 2, not 3; data has no 'x'; "
        "backoff is {'type': 'fixed', 'delay': 5000, 'jitter': 0.1}, "
        "not {'delay': 1000, 'type': 'fixed', 'jitter': 0.1}; and 1 more"
    )
    with pytest.raises(AssertionError, match="Not 2, but 1 times job 'goodbye'"):
        bunqueue.assert_added("emails", "goodbye", count=2)
    with pytest.raises(
        AssertionError, match=r"A job 'goodbye' in queue 'emails' was added:\n  - 'goodbye', data 'text'"
    ):
        bunqueue.assert_not_added("emails", "goodbye")
    with pytest.raises(TypeError, match="a job has no option 'colour'"):
        bunqueue.assert_added("emails", colour="red")  # type: ignore[call-arg]


def test_a_job_that_met_another_one_was_not_added(bunqueue: Sandbox) -> None:
    assert EMAILS.add("n", unique_key="k").id == EMAILS.add("n", unique_key="k").id
    bunqueue.assert_added("emails", unique_key="k", count=1)


# -- time


def test_time_stands_still_until_it_is_told_to_go_on(bunqueue: Sandbox) -> None:
    begin = bunqueue.now
    job = EMAILS.add("n", 1, delay=timedelta(days=300))
    bunqueue.advance(timedelta(days=300) - timedelta(milliseconds=1))
    assert job.state() == "delayed"
    assert bunqueue.drain(double) == []
    bunqueue.advance(1)
    assert job.state() == "waiting"
    assert bunqueue.now - begin == timedelta(days=300)
    with pytest.raises(SandboxError, match="time does not go back"):
        bunqueue.advance(-1)


def test_a_job_is_kept_as_long_as_it_says(bunqueue: Sandbox) -> None:
    short, long = (
        EMAILS.add("n", 1, keep_completed=timedelta(hours=1)),
        EMAILS.add("n", 2, keep_completed=timedelta(days=10)),
    )
    bunqueue.drain(double)
    bunqueue.advance(timedelta(minutes=59))
    assert (short.state(), long.state()) == ("completed", "completed")
    bunqueue.advance(timedelta(minutes=2))
    assert (short.state(), long.state()) == ("unknown", "completed")
    bunqueue.advance(timedelta(days=9))
    assert long.state() == "completed"
    bunqueue.advance(timedelta(days=2))
    assert long.state() == "unknown"


@pytest.mark.bunqueue(start="2026-01-01T09:00+01:00")
def test_schedules_fire_as_time_passes(bunqueue: Sandbox) -> None:
    EMAILS.upsert_cron("nightly", {"full": True}, schedule="0 3 * * *", job_name="report")
    bunqueue.advance(timedelta(hours=18))
    bunqueue.assert_not_added("emails", "report")
    bunqueue.advance(timedelta(hours=1))
    bunqueue.assert_added("emails", "report", {"full": True}, count=1)
    (run,) = bunqueue.drain(double_nothing)
    found = EMAILS.get_cron("nightly")
    assert found is not None
    assert found.last_run is not None
    assert (found.executions, found.last_run.job_id, found.last_run.outcome) == (1, run.id, "completed")
    assert found.last_run.at == datetime(2026, 1, 2, 3, tzinfo=UTC)
    EMAILS.pause_cron("nightly")
    bunqueue.advance(timedelta(days=7))
    assert EMAILS.run_cron("nightly").created
    bunqueue.assert_added("emails", "report", count=2)


@pytest.mark.bunqueue(start="2026-01-01T09:00+01:00")
def test_moments_go_by_the_clock_of_the_sandbox(bunqueue: Sandbox) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    job = EMAILS.add("n", at=noon)
    assert job.job().run_at == noon
    job.change_delay(noon + timedelta(hours=1))
    assert job.job().run_at == noon + timedelta(hours=1)
    bunqueue.advance(noon)
    assert bunqueue.now == noon
    (run,) = bunqueue.drain(double_nothing, within=noon + timedelta(hours=2))
    assert run.at == noon + timedelta(hours=1)
    with pytest.raises(SandboxError, match="duration: time does not go back"):
        bunqueue.advance(noon)
    with pytest.raises(SandboxError, match="within: time does not go back: -1"):
        bunqueue.drain(double_nothing, within=-1)


def test_the_clock_of_the_sandbox_needs_a_time_zone(bunqueue: Sandbox) -> None:
    naive = datetime(2030, 1, 1)
    for refused in (lambda: bunqueue.advance(naive), lambda: Sandbox(start=naive)):
        with pytest.raises(OptionError, match=r"has no time zone; if it is local time give its \.astimezone"):
            refused()


@pytest.mark.bunqueue(start="2026-03-29T00:00:00+01:00")
def test_schedules_follow_the_clock_and_its_zone(bunqueue: Sandbox) -> None:
    """In Berlin the hour from two to three does not exist on that day."""
    assert bunqueue.now == datetime(2026, 3, 28, 23, tzinfo=UTC)
    command = Cron(
        name="n", queue="emails", schedule="30 * * * *", timezone="Europe/Berlin", job_name="hourly"
    )
    EMAILS._caller.call(command, CronReply)
    ran = bunqueue.drain(lambda job: None, within=timedelta(hours=4))
    hours = [run.at.hour for run in ran]
    assert [run.name for run in ran] == ["hourly"] * 4
    assert hours == [23, 0, 1, 2]


def test_a_retry_waits_for_its_backoff(bunqueue: Sandbox) -> None:
    job = EMAILS.add("n", max_attempts=3, backoff=1000)
    first = bunqueue.now_ms
    assert [run.outcome for run in bunqueue.drain(broken)] == ["failed"]
    assert job.state() == "delayed"
    later = bunqueue.drain(broken, within=MINUTE)
    assert [(run.attempt, run.at_ms - first, str(run.error)) for run in later] == [
        (2, 1000, "attempt 2"),
        (3, 3000, "attempt 3"),
    ]
    assert job.state() == "failed"
    assert [dead.error for dead in EMAILS.dlq()] == ["ValueError: attempt 3"]


def test_a_handler_that_takes_time_runs_into_its_timeout(bunqueue: Sandbox) -> None:
    def slow(job: ActiveJob) -> str:
        bunqueue.advance(10 * MINUTE)
        return "late"

    job = EMAILS.add("n", timeout=5 * MINUTE, max_attempts=1)
    (run,) = bunqueue.drain(slow)
    assert (run.outcome, job.state()) == ("timed out", "failed")
    assert isinstance(run.error, JobTimeout)
    (run,) = bunqueue.drain(slow) if EMAILS.add("n") else []
    assert run.outcome == "completed"  # its lock is renewed meanwhile, as a worker does


# -- running jobs


def test_drain_runs_all_that_is_due_in_order(bunqueue: Sandbox) -> None:
    async def later(job: ActiveJob) -> str:
        await asyncio.sleep(0)
        await job.progress(50, "half")
        return "done"

    def chain(job: ActiveJob) -> int:
        job.progress(10)
        if job.data < 3:
            EMAILS.add("chain", job.data + 1)
        return double(job)

    Queue("async").add("n")
    EMAILS.add("chain", 1)
    EMAILS.add("first", 7, priority=5)
    ran = bunqueue.drain({"emails": chain, "async": later})
    assert [(run.queue, run.name, run.data, run.result) for run in ran] == [
        ("emails", "first", 7, 14),
        ("emails", "chain", 1, 2),
        ("emails", "chain", 2, 4),
        ("emails", "chain", 3, 6),
        ("async", "n", None, "done"),
    ]
    assert EMAILS.counts().completed == 4


def test_plain_handlers_run_in_the_thread_of_the_test_and_without_an_event_loop(bunqueue: Sandbox) -> None:
    def handler(job: ActiveJob) -> list[object]:
        return [threading.get_ident(), asyncio.run(asyncio.sleep(0, "a loop of its own"))]

    EMAILS.add("n")
    (run,) = bunqueue.drain(handler)
    assert run.result == [threading.get_ident(), "a loop of its own"]


def test_a_worker_need_not_be_started_to_be_drained(bunqueue: Sandbox) -> None:
    EMAILS.add("n", 4)
    assert [run.result for run in bunqueue.drain(Worker("emails", double))] == [8]


class Noting(Middleware):
    """Writes down what it is around."""

    def __init__(self, waits: bool = False) -> None:
        self.notes: list[object] = []
        self._waits = waits

    async def running(self, job: ActiveJob, call_next: CallNext) -> object:
        if self._waits:
            await asyncio.sleep(0)
        self.notes.append((job.name, threading.get_ident()))
        result = await call_next(job)
        self.notes.append(result)
        return result


async def double_later(job: ActiveJob) -> int:
    await asyncio.sleep(0)
    return double(job)


@pytest.mark.parametrize("handler", [double, double_later])
def test_middleware_is_around_the_handlers_of_workers(bunqueue: Sandbox, handler: Any) -> None:
    around = Noting()
    EMAILS.add("n", 4)
    assert [run.result for run in bunqueue.drain(Worker("emails", handler, middleware=[around]))] == [8]
    assert around.notes == [("n", threading.get_ident()), 8]
    EMAILS.add("n", 5, max_attempts=1)
    waiting = Worker("emails", handler, middleware=[Noting(waits=True)])
    assert [run.result for run in bunqueue.drain(waiting)] == [10]


@pytest.mark.parametrize("handler", [double, double_later])
async def test_middleware_when_a_coroutine_drains(bunqueue: Sandbox, handler: Any) -> None:
    around = Noting(waits=True)
    EMAILS.add("n", 4)
    (run,) = await bunqueue.drain_async(Worker("emails", handler, middleware=[around]))
    assert (run.result, around.notes[-1]) == (8, 8)


def test_queues_that_are_not_named_are_left_alone(bunqueue: Sandbox) -> None:
    job = EMAILS.add("n")
    assert bunqueue.drain({"other": broken}) == []
    assert job.state() == "waiting"
    with pytest.raises(TypeError, match="give what runs the jobs"):
        bunqueue.drain()
    with pytest.raises(TypeError, match="'emails' runs no jobs"):
        bunqueue.drain("emails")  # type: ignore[arg-type]


def test_exceptions_come_out_when_they_are_the_tests_own_or_asked_for(bunqueue: Sandbox) -> None:
    def wrong(job: ActiveJob) -> None:
        assert job.data == 2

    job = EMAILS.add("n", 1, max_attempts=1)
    with pytest.raises(AssertionError, match="1 == 2"):
        bunqueue.drain(wrong)
    assert job.state() == "failed"
    EMAILS.add("n", max_attempts=1)
    with pytest.raises(ValueError, match="attempt 1"):
        bunqueue.drain(broken, raising=True)


def test_jobs_that_add_themselves_for_ever_are_noticed(bunqueue: Sandbox) -> None:
    EMAILS.add("n")
    with pytest.raises(SandboxError, match="20 jobs have run, and queue 'emails' has more; do jobs add them"):
        bunqueue.drain(lambda job: EMAILS.add("n") and None, limit=20)


def test_a_paused_queue_is_not_drained(bunqueue: Sandbox) -> None:
    EMAILS.add("n", 1)
    EMAILS._caller.call(Pause(queue="emails"), Ok)
    assert bunqueue.drain(double) == []
    EMAILS._caller.call(Resume(queue="emails"), Ok)
    assert len(bunqueue.drain(double)) == 1


def test_waiting_for_what_nobody_does_says_so(bunqueue: Sandbox) -> None:
    from bunqueue.protocol.commands.events import WaitJob, WaitReply

    job = EMAILS.add("n", 1)
    with pytest.raises(
        SandboxError, match=r"nothing happened that it waits for.*run the job before you wait"
    ):
        EMAILS._caller.call(WaitJob(id=job.id, timeout=30_000), WaitReply)
    bunqueue.drain(double)
    assert EMAILS._caller.call(WaitJob(id=job.id, timeout=30_000), WaitReply).completed


def test_handlers_know_their_job_and_may_say_things_about_it(bunqueue: Sandbox) -> None:
    def deep_below() -> None:
        current_job().log("a line")
        current_job().log_soon("another")
        current_job().progress(40, "on the way")

    def handler(job: ActiveJob) -> list[bool]:
        deep_below()
        return [job.stopping, job.cancelled]

    job = EMAILS.add("n")
    (run,) = bunqueue.drain(handler)
    assert run.result == [False, False]
    assert current_job(None) is None
    assert (job.job().progress, job.job().progress_message) == (100, "on the way")


def cancel(job: ActiveJob) -> None:
    EMAILS._caller.call(Cancel(id=job.id, running=True, reason="enough"), CancelReply)


def test_a_job_that_is_cancelled_while_it_runs(bunqueue: Sandbox) -> None:
    seen: list[object] = []

    def handler(job: ActiveJob) -> None:
        cancel(job)
        seen.append(job.cancelled)
        job.raise_if_cancelled()

    async def waits(job: ActiveJob) -> None:
        cancel(job)
        await asyncio.sleep(60)  # until it is cancelled

    for each in (handler, waits):
        EMAILS.add("n")
        (run,) = bunqueue.drain(each)
        assert run.outcome == "cancelled"
        assert isinstance(run.error, JobCancelled)
        assert run.error.reason == "enough"
    assert seen == [True]
    assert len(EMAILS.dlq()) == 2


async def test_a_coroutine_that_is_cancelled_while_it_runs(bunqueue: Sandbox) -> None:
    async def waits(job: ActiveJob) -> None:
        cancel(job)
        await asyncio.sleep(60)  # until it is cancelled

    EMAILS.add("n")
    (run,) = await bunqueue.drain_async(waits)
    assert run.outcome == "cancelled"


def test_what_cannot_be_mended_is_a_dead_letter_at_once(bunqueue: Sandbox) -> None:
    def hopeless(job: ActiveJob) -> None:
        raise Unrecoverable("the address is wrong")

    job = EMAILS.add("n", max_attempts=5)
    bunqueue.drain(hopeless, within=HOUR)
    assert job.state() == "failed"


# -- inline


def test_inline_jobs_run_before_add_returns(bunqueue: Sandbox) -> None:
    seen: list[Any] = []

    def handler(job: ActiveJob) -> None:
        seen.append(job.data)
        if job.data == 1:
            EMAILS.add("n", 2)

    with bunqueue.inline(handler):
        EMAILS.add("n", 1)
        assert seen == [1, 2]
        EMAILS.add("n", 3, delay=HOUR)
        assert seen == [1, 2]
        bunqueue.advance(HOUR)
        assert seen == [1, 2, 3]
    EMAILS.add("n", 4)
    assert seen == [1, 2, 3]
    with bunqueue.inline(broken), pytest.raises(ValueError, match="attempt 1"):
        EMAILS.add("n", 5)


async def test_inline_for_coroutines(bunqueue: Sandbox) -> None:
    async def handler(job: ActiveJob) -> int:
        await asyncio.sleep(0)
        return double(job)

    async with AsyncQueue("q") as queue:
        with bunqueue.inline(handler):
            job = await queue.add("n", 21)
            assert await job.result() == 42


# -- coroutines and workers


async def test_draining_from_a_coroutine(bunqueue: Sandbox) -> None:
    loop = asyncio.get_running_loop()

    async def handler(job: ActiveJob) -> bool:
        return asyncio.get_running_loop() is loop

    async with AsyncQueue("q") as queue:
        await queue.add("n", 1)
        with pytest.raises(SandboxError, match="await drain_async"):
            bunqueue.drain(handler)
        (run,) = await bunqueue.drain_async(handler)
        assert run.result is True
        await queue.add("n", 1, delay=1000)
        (run,) = await bunqueue.drain_async(double, within=1000)
        assert run.result == 2


async def test_workers_that_run_get_their_jobs_at_their_time(bunqueue: Sandbox) -> None:
    begin = bunqueue.now_ms
    seen: list[tuple[str, int]] = []

    async def handler(job: ActiveJob) -> None:
        await asyncio.sleep(0.001)  # real time, for which the clock waits
        seen.append((job.name, bunqueue.now_ms - begin))
        if job.name == "fails" and not job.attempts:
            raise ValueError("once")

    async with AsyncQueue("q", port=1) as queue, Worker("q", handler, port=1, concurrency=3):
        await queue.add("now")
        await queue.add("fails", backoff=500)
        await queue.add("later", delay=700)
        await bunqueue.settle_async()
        assert sorted(seen) == [("fails", 0), ("now", 0)]
        await bunqueue.advance_async(MINUTE)
        assert seen[2:] == [("fails", 500), ("later", 700)]
        assert (await queue.counts()).completed == 3


def test_a_worker_in_another_thread(bunqueue: Sandbox) -> None:
    stop = threading.Event()

    async def work() -> None:
        async with Worker("emails", double):
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    job = EMAILS.add("n", 4)
    thread.start()
    try:
        while job.state() != "completed":
            bunqueue.settle()
        assert job.result() == 8
    finally:
        stop.set()
        thread.join()


async def test_a_worker_that_never_comes_to_rest(bunqueue: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue.testing.sandbox.PATIENCE", 0.1)
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        await gate.wait()

    async with AsyncQueue("q") as queue, Worker("q", handler):
        await queue.add("n")
        with pytest.raises(SandboxError, match=r"not come to rest within 0.1 s: job \S+ is still active"):
            await bunqueue.advance_async(1000)
        gate.set()


# -- what goes wrong


def test_the_third_ack_is_lost(bunqueue: Sandbox) -> None:
    """It had arrived, so the worker that repeats it learns that the job is completed."""
    bunqueue.faults.lose_answer("ack", nth=3)
    EMAILS.add_bulk([("n", number) for number in range(4)])
    assert [run.outcome for run in bunqueue.drain(double)] == ["completed"] * 4
    assert EMAILS.counts().completed == 4


def test_an_ack_that_does_not_arrive_is_said_again(bunqueue: Sandbox) -> None:
    """The job has gone back with the connection, but nobody else has taken it."""
    bunqueue.faults.lose_command("ack")
    EMAILS.add("n", 1)
    assert [(run.outcome, run.attempt) for run in bunqueue.drain(double)] == [("completed", 1)]


def test_reports_of_failures_are_lost(bunqueue: Sandbox) -> None:
    bunqueue.faults.lose_answer("fail")  # it arrived, so the attempt is counted once
    job = EMAILS.add("n", max_attempts=3)
    assert [run.outcome for run in bunqueue.drain(broken)] == ["failed"]
    assert job.job().attempts == 1
    bunqueue.advance(HOUR)
    bunqueue.faults.lose_command("fail", times=10)
    assert [run.outcome for run in bunqueue.drain(broken)] == ["lost", "failed"]
    assert job.job().attempts == 2


def test_a_result_that_cannot_be_sent_fails_the_attempt(bunqueue: Sandbox) -> None:
    EMAILS.add("n", max_attempts=3)
    (run,) = bunqueue.drain(lambda job: object(), within=MINUTE)
    assert (run.outcome, type(run.error).__name__) == ("failed", "ResultError")
    bunqueue.faults.refuse("ack", "Result too large", times=2)  # together with others, and by itself
    EMAILS.add("n", max_attempts=1)
    (run,) = bunqueue.drain(double_nothing)
    assert (run.outcome, str(run.error)) == ("failed", f"ACK of job {run.id}: Result too large")


def double_nothing(job: ActiveJob) -> None:
    return None


def test_the_connection_drops_on_add(bunqueue: Sandbox) -> None:
    """A client adds again what may have been lost, and it is added once."""
    bunqueue.faults.lose_command("add")
    bunqueue.faults.lose_answer("add", nth=2)
    EMAILS.add("n")
    assert EMAILS.count() == 1
    bunqueue.faults.lose_command("add", times=None)
    with pytest.raises(ConnectionError, match=r"lost \(the command was lost, as the test planned"):
        EMAILS.add("n")
    assert EMAILS.count() == 1
    bunqueue.faults.clear()
    bunqueue.faults.lose_answer("add", nth=2, times=None)
    EMAILS.add("n")
    with pytest.raises(ConnectionError, match=r"lost \(its answer was lost"):
        EMAILS.add("n")
    assert EMAILS.count() == 3


def test_what_may_be_repeated_is_repeated_as_often_as_a_client_does(bunqueue: Sandbox) -> None:
    bunqueue.faults.lose_answer("Count", times=2)
    assert EMAILS.count() == 0
    bunqueue.faults.lose_answer("Count", times=3)
    with pytest.raises(ConnectionError):
        EMAILS.count()


async def test_faults_meet_coroutines_and_workers_too(bunqueue: Sandbox) -> None:
    bunqueue.faults.lose_command("add", times=3)
    bunqueue.faults.lose_answer("ack")
    runs = 0

    async def handler(job: ActiveJob) -> None:
        nonlocal runs
        runs += 1

    async with AsyncQueue("q") as queue:
        with pytest.raises(ConnectionError):
            await queue.add("n")
        async with Worker("q", handler, on_error=lambda error: None):
            job = await queue.add("n")
            while await job.state() != "completed":
                await bunqueue.settle_async()
        assert runs == 1


def test_the_server_refuses(bunqueue: Sandbox) -> None:
    bunqueue.faults.refuse("add", "the disk is full")
    with pytest.raises(CommandFailed, match="the disk is full"):
        EMAILS.add("n")
    EMAILS.add("n")
    bunqueue.assert_added("emails", count=1)


def test_the_worker_crashes(bunqueue: Sandbox) -> None:
    bunqueue.faults.crash("emails", nth=2)
    EMAILS.add_bulk([("n", 1), ("n", 2), ("n", 3)])
    assert [(run.data, run.outcome) for run in bunqueue.drain(double)] == [
        (1, "completed"),
        (2, "crashed"),
        (2, "completed"),
        (3, "completed"),
    ]


def test_a_job_of_a_dead_worker_waits_until_its_lock_runs_out(bunqueue: Sandbox) -> None:
    bunqueue.faults.crash(renewed=True)
    job = EMAILS.add("n", 1, backoff=1000)
    begin = bunqueue.now_ms
    assert [run.outcome for run in bunqueue.drain(double)] == ["crashed"]
    assert job.state() == "active"
    (run,) = bunqueue.drain(double, within=HOUR)
    assert (run.outcome, run.attempt) == ("completed", 2)
    assert 30 * SECOND <= run.at_ms - begin <= MINUTE


def test_plans_that_cannot_be(bunqueue: Sandbox) -> None:
    with pytest.raises(OptionError, match="what: 'acks' is no command; give one of add, pull, ack"):
        bunqueue.faults.lose_answer("acks")
    with pytest.raises(OptionError, match="nth: 0 is not allowed"):
        bunqueue.faults.lose_answer("ack", nth=0)
    bunqueue.faults.refuse("add", "no")
    bunqueue.faults.clear()
    EMAILS.add("n")


# -- limits


def starts(bunqueue: Sandbox, begun: int) -> list[int]:
    return [run.at_ms - begun for run in bunqueue.drain({"emails": double}, within=10 * SECOND)]


def test_time_goes_on_to_when_a_rate_lets_the_next_job_through(bunqueue: Sandbox) -> None:
    EMAILS.set_rate_limit(2, per=SECOND)
    EMAILS.add_bulk([("n", number) for number in range(7)])
    assert starts(bunqueue, bunqueue.now_ms) == [0, 0, 500, 1000, 1500, 2000, 2500]


def test_as_does_that_of_a_group(bunqueue: Sandbox) -> None:
    EMAILS.group("acme").set_rate_limit(2, per=SECOND)
    for number in range(5):
        EMAILS.add("n", number, group="acme")
    EMAILS.add("n", 5)
    assert starts(bunqueue, bunqueue.now_ms) == [0, 0, 0, 1000, 1000, 2000]


def test_and_the_end_of_a_limit(bunqueue: Sandbox) -> None:
    EMAILS.set_rate_limit(1, per=HOUR, ttl=3 * SECOND)
    EMAILS.group("acme").hold(5 * SECOND)
    EMAILS.add_bulk([("n", number) for number in range(3)])
    EMAILS.add("n", 3, group="acme")
    assert starts(bunqueue, bunqueue.now_ms) == [0, 3000, 3000, 5000]
