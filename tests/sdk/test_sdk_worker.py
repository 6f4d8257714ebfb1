"""Workers against a real server: what handlers may do, how many at a time, how it ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from sdk.conftest import told
from support.server import Server
from support.waiting import eventually, until

from bunqueue import ActiveJob, AsyncQueue, AuthError, Backoff, Job, JobCancelled, NewJob, Postpone, Worker
from bunqueue.client.connection import requests
from bunqueue.errors import CommandFailed

MakeWorker = Callable[..., Worker]


@pytest.fixture
async def queue(shared_server: Server, name: str) -> AsyncIterator[AsyncQueue]:
    defaults = {"backoff": 1, "max_attempts": 1}
    async with AsyncQueue(name, port=shared_server.port, default_job_options=defaults) as queue:  # type: ignore[arg-type]
        yield queue


@pytest.fixture
async def make_worker(queue: AsyncQueue, shared_server: Server) -> AsyncIterator[MakeWorker]:
    made: list[Worker] = []

    def make(handler: Callable[[ActiveJob], Any], **options: Any) -> Worker:
        worker = Worker(queue.name, handler, port=shared_server.port, **options)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        await worker.stop(grace=0)


async def only_job(queue: AsyncQueue) -> Job:
    (job,) = await queue.get_jobs()
    return job


async def test_coroutines_and_functions_both_get_jobs_and_give_results(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    seen: list[tuple[Any, ...]] = []

    def look(job: ActiveJob) -> dict[str, Any]:
        seen.append((job.name, job.data, job.attempts, job.max_attempts, job.queue, threading.get_ident()))
        return {"twice": job.data * 2}

    async def look_async(job: ActiveJob) -> dict[str, Any]:
        return look(job)

    for handler, here in ((look, False), (look_async, True)):
        handle = await queue.add("n", 21)
        async with make_worker(handler) as worker:
            await until(worker, completed=1)
        assert await handle.result() == {"twice": 42}
        *rest, thread = seen.pop()
        assert rest == ["n", 21, 0, 1, queue.name]
        assert (thread == threading.get_ident()) is here


@pytest.mark.parametrize("concurrency", [1, 7, 50])
async def test_never_more_at_a_time_than_the_concurrency(
    queue: AsyncQueue, make_worker: MakeWorker, concurrency: int
) -> None:
    running = most = 0
    full, gate = asyncio.Event(), asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == concurrency:
            full.set()
        await gate.wait()
        await asyncio.sleep(0)
        running -= 1

    await queue.add_bulk([("n", number) for number in range(300)])
    async with make_worker(handler, concurrency=concurrency) as worker:
        await full.wait()
        assert (await queue.counts()).active == concurrency  # it has none in reserve
        gate.set()
        await until(worker, completed=300)
    assert most == concurrency
    assert (await queue.counts()).completed == 300


async def test_one_slow_job_does_not_hold_up_the_others(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        if job.data == 0:
            await gate.wait()

    await queue.add_bulk([("n", number) for number in range(100)])
    async with make_worker(handler, concurrency=5) as worker:
        await until(worker, completed=99)
        assert worker.stats.active == 1
        gate.set()
        await until(worker, completed=100)


async def test_plain_functions_run_side_by_side(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    barrier = threading.Barrier(8, timeout=60)
    await queue.add_bulk([("n", None)] * 16)
    async with make_worker(lambda job: barrier.wait(), concurrency=8) as worker:
        await until(worker, completed=16)


async def test_a_job_that_comes_to_an_idle_worker_is_done_at_once(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    times = []
    async with make_worker(lambda job: None, concurrency=10, poll_timeout=30_000, ack_delay=10_000) as worker:
        for number in range(1, 6):
            start = time.perf_counter()
            await queue.add("n")
            await until(worker, completed=number)
            times.append(time.perf_counter() - start)
    assert min(times) < 5.0  # neither the poll nor the batch of acknowledgements is waited for


class Odd(BaseException):
    """No Exception."""


def broken_text() -> Exception:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    return BrokenError()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError("message"), "TypeError: message"),
        (Odd("strange"), "Odd: strange"),
        (asyncio.CancelledError("by itself"), "CancelledError: by itself"),
        (TimeoutError(), "TimeoutError"),
        (ExceptionGroup("several", [ValueError("x")]), "ExceptionGroup: several (1 sub-exception)"),
        (broken_text(), "BrokenError: (its text cannot be had: RuntimeError)"),
        (ValueError("\N{SNOWMAN}\n" * 5), "ValueError: " + "\N{SNOWMAN}\n" * 5),
        (ValueError("caf\udce9.txt"), "ValueError: caf\\udce9.txt"),  # a file's name that is no UTF-8
        (JobCancelled("of another job"), "JobCancelled: of another job"),
        (
            Postpone("soon"),
            "OptionError: Postpone: delay: 'soon' is no span of time; give ms, "
            "or 500ms, 30s, 5m, 2h, 7d or 1h30m",
        ),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_whatever_a_handler_raises_fails_its_job_and_nothing_else(
    queue: AsyncQueue, make_worker: MakeWorker, error: BaseException, text: str, in_thread: bool
) -> None:
    def sync_handler(job: ActiveJob) -> str:
        if job.data == "bad":
            raise error
        return "fine"

    async def handler(job: ActiveJob) -> str:
        return sync_handler(job)

    bad, good = await queue.add_bulk([("n", "bad"), ("n", "good")])
    told: list[tuple[str, BaseException]] = []
    async with make_worker(
        sync_handler if in_thread else handler, on_failed=lambda job, error: told.append((job.id, error))
    ) as worker:
        await until(worker, completed=1, failed=1)
    job = await bad.job()
    assert (job.state, job.error) == ("failed", text)
    assert await good.result() == "fine"
    ((told_id, told_error),) = told
    assert told_id == bad.id
    assert told_error is error or isinstance(error, Postpone)


async def test_dead_letters_are_logged_unless_somebody_is_told(
    queue: AsyncQueue, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(job: ActiveJob) -> None:
        raise ValueError("bad")

    handle = await queue.add("n", max_attempts=2)
    async with make_worker(handler) as worker:
        await until(worker, failed=2)
    again, final = told(caplog)
    assert (again.levelname, final.levelname) == ("WARNING", "ERROR")
    line = f"job {handle.id} (n) has failed for good, in attempt 2 of 2: ValueError: bad"
    assert line in final.getMessage()
    caplog.clear()
    await queue.add("n")
    async with make_worker(handler, on_failed=lambda job, error: None) as worker:
        await until(worker, failed=1)
    assert len(told(caplog)) == 1


async def test_failed_jobs_are_tried_again_and_know_it(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    attempts = []

    async def handler(job: ActiveJob) -> str:
        attempts.append(job.attempts)
        if job.attempts < 2:
            raise ValueError(f"attempt {job.attempts}")
        return "at last"

    handle = await queue.add("n", max_attempts=3)
    async with make_worker(handler) as worker:
        await until(worker, completed=1)
    assert attempts == [0, 1, 2]
    assert worker.stats.failed == 2
    assert await handle.result() == "at last"


@pytest.mark.parametrize(
    "result", [object(), lambda: None, 2**70, "\ud800"], ids=["object", "function", "int", "text"]
)
async def test_a_result_that_cannot_be_sent_fails_the_job(
    queue: AsyncQueue, make_worker: MakeWorker, result: object
) -> None:
    async def handler(job: ActiveJob) -> object:
        return result

    await queue.add("n")
    async with make_worker(handler) as worker:
        await until(worker, failed=1)
    job = await only_job(queue)
    assert job.error is not None
    assert job.error.startswith("ResultError: the result of the handler cannot be encoded")


async def test_a_result_beyond_what_a_frame_holds_fails_its_job_alone(
    queue: AsyncQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_FRAME", 50_000)
    large, small = await queue.add_bulk([("n", 100_000), ("n", 10)])
    async with make_worker(lambda job: "x" * job.data, concurrency=2) as worker:
        await until(worker, completed=1, failed=1)
    assert await small.result() == "x" * 10
    assert "has 100" in str((await large.job()).error)
    assert "keep large data elsewhere" in str((await large.job()).error)


async def test_data_that_cannot_be_decoded_is_refused(queue: AsyncQueue) -> None:
    import msgspec

    from bunqueue.protocol.commands import core
    from bunqueue.protocol.commands.core import JobFields, PushBatch

    spoilt = msgspec.Raw(b"\xa1\xff")  # a text that is no UTF-8
    jobs = [JobFields(name="n", data=msgspec.Raw(b"\x05")), JobFields(name="n", data=spoilt)]
    with pytest.raises(CommandFailed, match=r"jobs\[1\]: data cannot be read: it has text that is not UTF-8"):
        await queue._caller.call(PushBatch(queue=queue.name, jobs=jobs), core.PushBatchReply)
    assert (await queue.counts()).waiting == 0


async def test_progress_from_both_kinds_of_handlers(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def in_thread(job: ActiveJob) -> None:
        job.progress(10, "begun")
        job.progress(55)
        reached.set()
        assert go_on.wait(60)

    handle = await queue.add("n")
    async with make_worker(in_thread) as worker:
        assert await asyncio.to_thread(reached.wait, 60)
        progress = await handle.progress()
        assert (progress.progress, progress.message) == (55, "begun")
        go_on.set()
        await until(worker, completed=1)


async def test_the_owner_names_the_worker(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    import os

    one, two = make_worker(print, name="mill"), make_worker(print)
    assert one.owner.startswith(f"mill:{os.getpid()}:")
    assert len({one.owner, two.owner}) == 2


async def test_acknowledgements_are_batched(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    await queue.add_bulk([("n", None)] * 500)
    worker = make_worker(lambda job: None, concurrency=50)

    async def quick(job: ActiveJob) -> None:
        pass

    worker = make_worker(quick, concurrency=50)
    await worker.start()
    assert worker._current is not None
    sent: Counter[str] = Counter()
    caller = worker._current._caller
    call = caller.call

    async def count(command: Any, reply: Any) -> Any:
        sent[type(command).__name__] += 1
        return await call(command, reply)

    caller.call = count  # type: ignore[method-assign, assignment]
    await until(worker, completed=500)
    assert sent["AckBatch"] <= 50
    assert set(sent) == {"AckBatch"}


async def test_callbacks_that_fail_do_no_harm(
    queue: AsyncQueue, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("broken callback")

    async def handler(job: ActiveJob) -> None:
        if job.data:
            raise ValueError

    await queue.add_bulk([("n", 0), ("n", 1), ("n", 0)])
    async with make_worker(handler, on_completed=broken, on_failed=broken) as worker:
        await until(worker, completed=2, failed=1)
    assert "broken callback" in caplog.text


async def test_jobs_do_not_see_each_others_context(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")

    async def handler(job: ActiveJob) -> str:
        seen = variable.get()
        variable.set("dirty")
        return seen

    handles = await queue.add_bulk([("n", None)] * 20)
    async with make_worker(handler, concurrency=2) as worker:
        await until(worker, completed=20)
    assert {await handle.result() for handle in handles} == {"clean"}


async def test_stopping_waits_for_what_runs_and_reports_it(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(job: ActiveJob) -> str:
        begun.set()
        await gate.wait()
        return "done"

    handles = await queue.add_bulk([("n", number) for number in range(3)])
    worker = make_worker(handler, concurrency=2, heartbeat_interval=100)
    await worker.start()
    await eventually(lambda: worker.stats.active == 2, "two run")
    stopping = asyncio.create_task(worker.stop())
    # While it drains it takes nothing new, and nobody else gets what it holds.
    late = await queue.add("late")
    await eventually(lambda: worker._current is not None and worker._current._stopping, "it stops")
    assert not stopping.done()
    gate.set()
    await stopping
    assert [await handle.state() for handle in handles] == ["completed", "completed", "waiting"]
    assert await late.state() == "waiting"
    assert worker.stats.completed == 2


async def test_an_idle_worker_stops_at_once(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    await queue.add("n")
    worker = make_worker(lambda job: None, poll_timeout=60_000)
    await worker.start()
    await until(worker, completed=1)
    start = time.perf_counter()
    await worker.stop()
    await worker.stop()
    assert time.perf_counter() - start < 30  # not the time of the poll
    late = await queue.add("n")
    assert await late.state() == "waiting"


async def test_after_the_grace_handlers_are_cancelled_and_their_job_goes_back(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    cleaned = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    handle = await queue.add("n")
    worker = make_worker(handler)
    await worker.start()
    await eventually(lambda: worker.stats.active == 1, "it runs")
    await worker.stop(grace=50)
    assert cleaned.is_set()
    job = await handle.job()
    assert (job.state, job.attempts, job.error) == ("waiting", 0, None)
    assert (worker.stats.interrupted, worker.stats.failed) == (1, 0)


async def test_a_handler_may_finish_when_it_is_cancelled(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    async def handler(job: ActiveJob) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return "never"

    handle = await queue.add("n")
    worker = make_worker(handler)
    await worker.start()
    await eventually(lambda: worker.stats.active == 1, "it runs")
    await worker.stop(grace=0)
    assert await handle.result() == "saved"


async def test_a_thread_that_does_not_end_is_left_behind(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    release = threading.Event()
    handle = await queue.add("n")
    worker = make_worker(lambda job: release.wait(60))
    await worker.start()
    await eventually(lambda: worker.stats.active == 1, "it runs")
    await worker.stop(grace=50)
    release.set()
    assert (await handle.job()).state == "waiting"


async def test_a_worker_may_start_again(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    worker = make_worker(lambda job: None)
    for _ in range(2):
        await queue.add("n")
        async with worker:
            await until(worker, completed=1)
    assert await queue.count() == (await queue.counts()).completed == 2


class Own(BaseException):
    """Not an Exception, as those that end programs."""


ENDS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Own("x")]


async def test_whatever_a_coroutine_raises_is_the_outcome_of_its_job_alone(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    async def handler(job: ActiveJob) -> str:
        if job.data is not None:
            raise ENDS[job.data]
        return "done"

    handles = [await queue.add("n", number, max_attempts=1) for number in range(len(ENDS))]
    other = await queue.add("n")
    async with make_worker(handler, concurrency=3) as worker:
        outcomes = [await handle.wait(timeout=60_000) for handle in handles]
        assert await other.result(timeout=60_000) == "done"
        assert worker.health().ok
    assert [outcome.state for outcome in outcomes] == ["failed"] * len(ENDS)
    assert [str(outcome.error).partition(":")[0] for outcome in outcomes] == [
        type(each).__name__ for each in ENDS
    ]


async def test_a_thread_that_exits_fails_its_job_only(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    def handler(job: ActiveJob) -> None:
        if job.data == 0:
            raise SystemExit(3)

    await queue.add_bulk([("n", 0), ("n", 1)])
    async with make_worker(handler) as worker:
        await until(worker, failed=1, completed=1)


async def test_cancelling_run_stops_in_order(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(job: ActiveJob) -> str:
        begun.set()
        await gate.wait()
        return "done"

    handle = await queue.add("n")
    worker = make_worker(handler)
    running = asyncio.create_task(worker.run())
    await begun.wait()
    running.cancel()
    await eventually(lambda: worker._stopping is not None, "it stops")
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await handle.state() == "completed"


async def test_a_wrong_token_ends_run(make_server: Any) -> None:
    server = make_server("--auth-token", "right")
    server.start()
    errors: list[Exception] = []
    with pytest.raises(AuthError):
        await asyncio.wait_for(
            Worker("q", print, port=server.port, token="wrong", on_error=errors.append).run(), 60
        )
    assert isinstance(errors[-1], AuthError)
    async with AsyncQueue("q", port=server.port, token="right") as queue:
        await queue.add("n")
        async with Worker("q", lambda job: 1, port=server.port, token="right") as worker:
            await until(worker, completed=1)


async def test_a_worker_that_was_only_started_tells_that_it_cannot_go_on(
    make_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server("--auth-token", "right")
    server.start()
    async with Worker("q", print, port=server.port, token="wrong") as worker:
        await eventually(lambda: worker.health().state == "stopped", "it has stopped by itself")
        assert not worker.health().ok
    assert "refuses this client: Invalid token; give the token of that server" in caplog.text


async def test_a_worker_that_was_only_started_stops_when_it_is_worn_out(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    await queue.add_bulk([("n", None)] * 500)
    async with make_worker(lambda job: None, max_jobs=3) as worker:
        await eventually(lambda: worker.health().state == "stopped", "it has stopped by itself")
        assert worker.recycle_reason == "it has run 3 jobs"
    counts = await queue.counts()
    assert (counts.completed, counts.waiting, counts.active) == (3, 497, 0)


async def test_bulk_of_everything(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    """Every job exactly once, with two workers that compete and a third of the jobs failing once."""
    done: Counter[int] = Counter()

    async def handler(job: ActiveJob) -> None:
        if job.data % 3 == 0 and job.attempts == 0:
            raise ValueError(job.data)
        await asyncio.sleep(0)
        done[job.data] += 1

    await queue.add_bulk([NewJob("n", number, max_attempts=2) for number in range(2000)])
    async with make_worker(handler, concurrency=20) as one, make_worker(handler, concurrency=20) as two:
        await eventually(lambda: one.stats.completed + two.stats.completed == 2000, "all are done")
    assert done == Counter(range(2000))
    assert one.stats.failed + two.stats.failed == 667
    assert one.stats.lost == two.stats.lost == 0


async def test_the_waits_between_attempts_are_as_written(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    exact = await queue.add("n", max_attempts=4, backoff=Backoff(40, jitter=0))
    about = await queue.add("n", max_attempts=4, backoff=40)
    waits: dict[str, list[float]] = {exact.id: [], about.id: []}

    async def note(job: ActiveJob) -> None:
        known = job.job()
        failed = [moment.timestamp_ms for moment in known.timeline if moment.state == "failed"]
        if failed:
            waits[job.id].append(int(known.run_at_ms) - int(failed[-1]))
        raise ValueError("no")

    async with make_worker(note, concurrency=2) as worker:
        await until(worker, failed=8)
    assert waits[exact.id] == [40, 80, 160]
    assert all(
        abs(wait - base) <= base / 10 + 1 for wait, base in zip(waits[about.id], (40, 80, 160), strict=True)
    )


DIES = """
import os, signal, sys
from bunqueue import Worker

async def handler(job):
    with open(sys.argv[3], "a") as runs:
        runs.write(job.id + "\\n")
    os.kill(os.getpid(), signal.SIGKILL)

Worker(sys.argv[1], handler, port=int(sys.argv[2]), at_most_once=True).run_forever()
"""


async def test_a_job_that_runs_at_most_once_is_not_run_again_after_a_kill(
    queue: AsyncQueue, shared_server: Server, make_worker: MakeWorker, tmp_path: Path
) -> None:
    runs, again = tmp_path / "runs", []
    handle = await queue.add("n", max_attempts=5)
    command = [sys.executable, "-c", DIES, queue.name, str(shared_server.port), str(runs)]
    died = await asyncio.to_thread(subprocess.run, command, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    other = await queue.add("n", "other")

    async def note(job: ActiveJob) -> None:
        again.append(job.id)

    async with make_worker(note) as worker:
        await until(worker, completed=1)
    assert (runs.read_text().split(), again) == ([handle.id], [other.id])
    assert await handle.state() == "completed"


async def test_what_runs_at_most_once_may_fail_and_is_counted(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    failed: list[str] = []
    seen: list[str] = []

    async def handler(job: ActiveJob) -> str:
        seen.append(await handle.state())
        if job.data == "bad":
            raise ValueError("no")
        return "kept nowhere"

    handle = await queue.add("n", "bad", max_attempts=5)
    good = await queue.add("n", "good")
    options: dict[str, Any] = {
        "on_failed": lambda job, error: failed.append(str(error)),
        "at_most_once": True,
    }
    async with make_worker(handler, **options) as worker:
        await until(worker, completed=1, failed=1)
    assert (seen, failed) == (["completed", "completed"], ["no"])
    assert (await handle.state(), await good.result()) == ("completed", None)
