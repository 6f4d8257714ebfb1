"""Runs that are ended before they are done: cancelled from anywhere, out of time, interrupted by a stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from support.waiting import eventually, until

from bunqueue import (
    ActiveJob,
    AsyncJobHandle,
    AsyncQueue,
    JobCancelled,
    JobInterrupted,
    JobStopped,
    JobTimeout,
    Unrecoverable,
    Worker,
    current_job,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.protocol.commands import jobs

MakeWorker = Callable[..., Worker]


@pytest.fixture
async def queue(where: EndpointOptions, name: str) -> AsyncIterator[AsyncQueue]:
    defaults: dict[str, Any] = {"backoff": 1, "max_attempts": 3}
    async with AsyncQueue(name, default_job_options=defaults, **where) as queue:  # type: ignore[arg-type]
        yield queue


@pytest.fixture
async def make_worker(queue: AsyncQueue, where: EndpointOptions) -> AsyncIterator[MakeWorker]:
    made: list[Worker] = []

    def make(handler: Callable[[ActiveJob], Any], **options: Any) -> Worker:
        made.append(Worker(queue.name, handler, **{**where, **options}))
        return made[-1]

    yield make
    for worker in made:
        await worker.stop(grace=0)


async def cancel(queue: AsyncQueue, handle: AsyncJobHandle, **fields: Any) -> bool:
    """Whether it is told that the job runs on for a moment."""
    command = jobs.Cancel(id=handle.id, running=True, **fields)
    return (await queue._caller.call(command, jobs.CancelReply)).running is True


def state_is(handle: AsyncJobHandle, state: str) -> Awaitable[None]:
    async def has_it() -> bool:
        return await handle.state() == state

    return eventually(has_it, f"the job is {state}")


# -- before it began -----------------------------------------------------------------------------------------


async def test_a_job_that_had_not_begun_is_known_as_cancelled(queue: AsyncQueue) -> None:
    own = f"{queue.name}-own"
    for handle in (await queue.add("n"), await queue.add("n", delay=60_000, job_id=own)):
        assert await handle.cancel("too late") is True
        assert (await handle.state(), await queue.get_state(handle.id)) == ("cancelled", "cancelled")
        outcome = await queue.handle(handle.id).wait(0)
        assert (outcome.state, outcome.error) == ("cancelled", "Cancelled: too late")
        with pytest.raises(JobCancelled, match="was cancelled: too late") as caught:
            await handle.result(0)
        assert caught.value.reason == "too late"
        assert await queue.get_job(handle.id) is None
    again = await queue.add("n", job_id=own, remove_on_complete=True)
    assert (again.created, await again.state()) == (True, "waiting")
    await again.remove()
    assert (await again.state(), (await again.wait(0)).state) == ("unknown", "unknown")


# -- cancelled ---------------------------------------------------------------------------------------------


async def test_a_coroutine_is_cancelled_where_it_waits(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    seen: list[Any] = []
    told: list[tuple[str, JobStopped]] = []

    async def handler(job: ActiveJob) -> str:
        if job.data == "next":
            return "done"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append((job.cancelled, job.stopped))
            raise
        return "never"

    async with make_worker(handler, on_stopped=lambda job, error: told.append((job.id, error))) as worker:
        handle, other = await queue.add("n"), await queue.add("n", "next")
        await until(worker, active=1)
        assert await cancel(queue, handle, reason="no longer wanted", grace=60_000)
        await state_is(handle, "cancelled")
        await until(worker, cancelled=1, completed=1)
        assert await other.result() == "done"  # its slot goes on
    ((cancelled, stopped),) = seen
    assert cancelled is True
    assert isinstance(stopped, JobCancelled)
    assert (stopped.reason, stopped.job_id, stopped.queue) == ("no longer wanted", handle.id, queue.name)
    assert [(job_id, type(error)) for job_id, error in told] == [(handle.id, JobCancelled)]
    job = await handle.job()
    assert (job.error, job.attempts) == ("Cancelled: no longer wanted", 0)
    assert (worker.stats.failed, worker.stats.lost, worker.stats.completed) == (0, 0, 1)


async def test_a_coroutine_that_goes_on_has_its_result_refused(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    async def handler(job: ActiveJob) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done all the same"

    async with make_worker(handler) as worker:
        handle = await queue.add("n")
        await until(worker, active=1)
        await cancel(queue, handle)
        await until(worker, cancelled=1)
        assert await handle.state() == "cancelled"
        with pytest.raises(JobCancelled):
            await handle.result()


async def test_a_thread_asks_whether_it_is_to_end(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    begun = threading.Event()

    def handler(job: ActiveJob) -> None:
        begun.set()
        while True:
            job.raise_if_cancelled()
            threading.Event().wait(0.01)  # something that takes its time

    async with make_worker(handler) as worker:
        handle = await queue.add("n")
        assert await asyncio.to_thread(begun.wait, 60)
        await cancel(queue, handle, grace=60_000)
        await until(worker, cancelled=1)
        assert await handle.state() == "cancelled"


async def test_a_thread_that_does_not_ask_is_not_waited_for(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    release = threading.Event()

    def handler(job: ActiveJob) -> str:
        release.wait(60)
        return "done all the same"

    async with make_worker(handler) as worker:
        handle = await queue.add("n")
        await until(worker, active=1)
        await cancel(queue, handle, grace=100)
        await state_is(handle, "cancelled")
        assert worker.stats.active == 1  # its place is not free before it has ended
        release.set()
        await until(worker, cancelled=1)
        with pytest.raises(JobCancelled):
            await handle.result()
    assert (worker.stats.lost, worker.stats.completed) == (0, 0)


async def test_a_result_on_its_way_when_the_job_is_cancelled(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    gate = asyncio.Event()
    handle, _ = await queue.add_bulk([("n", 1), ("slow", 2)])

    async def either(job: ActiveJob) -> str:
        if job.name == "slow":
            await gate.wait()
        return "done"

    # The acknowledgement waits for others, as another job runs, and there is room for more.
    async with make_worker(either, concurrency=3, ack_delay=60_000) as worker:
        await until(worker, active=1)
        await eventually(lambda: worker._current and worker._current._reporter.unsent, "it has ended")
        await cancel(queue, handle, grace=60_000)
        gate.set()
        await until(worker, cancelled=1, completed=1)
    assert await handle.state() == "cancelled"
    assert worker.stats.lost == 0


async def test_a_worker_that_drains_hears_of_it(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    async def handler(job: ActiveJob) -> None:
        await asyncio.Event().wait()

    worker = make_worker(handler)
    await worker.start()
    handle = await queue.add("n")
    await until(worker, active=1)
    stopping = asyncio.create_task(worker.stop())  # the grace is 30 s
    await eventually(lambda: worker._current is not None and worker._current._stopping, "it stops")
    await cancel(queue, handle, grace=20_000)
    await asyncio.wait_for(stopping, 60)
    assert worker.stats.cancelled == 1
    assert await handle.state() == "cancelled"


# -- out of time -------------------------------------------------------------------------------------------


async def test_a_coroutine_that_takes_too_long_is_stopped(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    ended: list[Any] = []
    failures: list[BaseException] = []

    async def handler(job: ActiveJob) -> str:
        if job.attempts:
            return "in time"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(job.stopped)
        return "never"

    async with make_worker(handler, on_failed=lambda job, error: failures.append(error)) as worker:
        handle = await queue.add("n", timeout=500, max_attempts=100)
        await until(worker, completed=1)
    assert [type(error) for error in ended] == [JobTimeout]
    job = await handle.job()
    assert (job.state, job.error) == ("completed", None)
    assert job.attempts >= 1  # more if the machine was so busy that the second one took too long as well
    assert [type(error) for error in failures] == [JobTimeout] * job.attempts
    assert (worker.stats.failed, worker.stats.lost) == (job.attempts, 0)


async def test_a_thread_learns_that_its_time_is_over(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    def handler(job: ActiveJob) -> None:
        while not job.cancelled:
            threading.Event().wait(0.01)
        raise ValueError("whatever it raises then")

    async with make_worker(handler) as worker:
        handle = await queue.add("n", timeout=50, max_attempts=1)
        await until(worker, failed=1)
        await state_is(handle, "failed")
    assert (await handle.job()).error == "Job timeout exceeded"


# -- interrupted -------------------------------------------------------------------------------------------


async def test_handlers_are_told_of_the_stop_and_may_end_in_time(
    queue: AsyncQueue, make_worker: MakeWorker
) -> None:
    async def handler(job: ActiveJob) -> str:
        while not job.stopping:  # noqa: ASYNC110  # a loop over pieces of work
            await asyncio.sleep(0.01)  # a piece of work
        return "up to here"

    worker = make_worker(handler)
    await worker.start()
    handle = await queue.add("n")
    await until(worker, active=1)
    await worker.stop()
    assert await handle.result() == "up to here"


@pytest.mark.parametrize("raises", [None, ValueError("in its cleanup")])
async def test_what_is_interrupted_costs_no_attempt_and_runs_again_elsewhere(
    queue: AsyncQueue, make_worker: MakeWorker, raises: Exception | None
) -> None:
    told: list[JobStopped] = []

    async def handler(job: ActiveJob) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if raises:
                raise raises

    handle = await queue.add("n", max_attempts=1)
    worker = make_worker(handler, on_stopped=lambda job, error: told.append(error))
    await worker.start()
    await until(worker, active=1)
    async with make_worker(lambda job: "elsewhere") as other:
        await worker.stop(grace=0)
        await until(other, completed=1)
    assert await handle.result() == "elsewhere"
    assert [type(error) for error in told] == [JobInterrupted]


# -- what else handlers may say ----------------------------------------------------------------------------


async def test_the_job_is_known_wherever_its_handler_runs(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    seen: list[tuple[str, str]] = []

    def deep() -> None:
        seen.append((current_job().id, current_job().data))

    async def in_a_task() -> None:
        await asyncio.to_thread(deep)

    async def handler(job: ActiveJob) -> None:
        deep()
        await asyncio.create_task(in_a_task())

    def plain(job: ActiveJob) -> None:
        deep()

    for each in (handler, plain):
        handles = await queue.add_bulk([("n", str(number)) for number in range(3)])
        async with make_worker(each, concurrency=2) as worker:
            await until(worker, completed=3)
        times = 2 if each is handler else 1
        assert sorted(seen) == sorted([(handle.id, str(n)) for n, handle in enumerate(handles)] * times)
        seen.clear()
    assert current_job(None) is None
    with pytest.raises(LookupError, match="no job's handler runs here"):
        current_job()


async def test_lines_of_a_jobs_log(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    async def handler(job: ActiveJob) -> None:
        await job.log("from a coroutine")
        await asyncio.to_thread(plain, job)

    def plain(job: ActiveJob) -> None:
        job.log("from a thread", "warn")
        job.log_soon("and in passing", "error")

    async with make_worker(handler) as worker:
        handle = await queue.add("n")
        await until(worker, completed=1)
    reply = await queue._caller.call(jobs.GetLogs(id=handle.id), jobs.GetLogsReply)
    assert [(line.level, line.message) for line in reply.data.logs] == [
        ("info", "from a coroutine"),
        ("warn", "from a thread"),
        ("error", "and in passing"),
    ]


async def test_records_of_logging_go_to_the_jobs_log(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    app, root = logging.getLogger("app.part"), logging.getLogger()
    before = root.level, list(root.handlers)

    def plain(job: ActiveJob) -> None:
        app.warning("in a thread, %d", 2)

    async def handler(job: ActiveJob) -> None:
        app.info("in a coroutine, %d", 1)
        app.debug("not worth it")
        await asyncio.to_thread(plain, job)
        try:
            raise ValueError("caught")
        except ValueError:
            app.exception("with a traceback")
        logging.getLogger("bunqueue.client").error("of the package itself")

    async with make_worker(handler, forward_logs=logging.INFO) as worker:
        app.error("where no job runs")
        handle = await queue.add("n")
        await until(worker, completed=1)
    app.error("after it has stopped")
    reply = await queue._caller.call(jobs.GetLogs(id=handle.id), jobs.GetLogsReply)
    *lines, (level, last) = [(line.level, line.message) for line in reply.data.logs]
    assert lines == [("info", "in a coroutine, 1"), ("warn", "in a thread, 2")]
    assert level == "error"
    assert last.startswith("with a traceback\nTraceback")
    assert last.endswith("ValueError: caught")
    assert (root.level, root.handlers) == before


async def test_each_worker_forwards_what_its_own_jobs_log(
    queue: AsyncQueue, make_worker: MakeWorker, where: EndpointOptions
) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers)

    async def handler(job: ActiveJob) -> None:
        logging.getLogger("app").info("once")

    silent = f"{queue.name}-silent"
    async with (
        AsyncQueue(silent, **where) as other,
        make_worker(handler, forward_logs="info"),
        Worker(silent, handler, **where),
    ):
        async with make_worker(handler, forward_logs="debug"):
            first = await queue.add("n")
            await first.result(60_000)
        second, unheard = await queue.add("n"), await other.add("n")
        await second.result(60_000)
        await unheard.result(60_000)
        for handle, lines in ((first, 1), (second, 1), (unheard, 0)):

            async def has_them(handle: AsyncJobHandle = handle, lines: int = lines) -> bool:
                return len(await handle.logs()) == lines

            await eventually(has_them, f"{lines} lines are there")
    assert (root.level, root.handlers) == before
    for handle, lines in ((first, 1), (second, 1), (unheard, 0)):
        assert [line.message for line in await queue.handle(handle.id).logs()] == ["once"] * lines


async def test_an_error_that_no_retry_would_help(queue: AsyncQueue, make_worker: MakeWorker) -> None:
    class Wrong(Unrecoverable):
        """A user's own."""

    async def handler(job: ActiveJob) -> None:
        raise Wrong("the account is closed")

    async with make_worker(handler) as worker:
        handle = await queue.add("n", max_attempts=5)
        await until(worker, failed=1)
    job = await handle.job()
    assert (job.state, job.attempts, job.error) == ("failed", 1, "Wrong: the account is closed")


async def test_stops_are_logged_at_info(
    queue: AsyncQueue, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(job: ActiveJob) -> None:
        await asyncio.Event().wait()

    with caplog.at_level(logging.INFO, "bunqueue.worker"):
        async with make_worker(handler) as worker:
            handle = await queue.add("name")
            await until(worker, active=1)
            await cancel(queue, handle, reason="enough")
            await until(worker, cancelled=1)
    assert f"queue {queue.name!r}: job {handle.id} (name) was cancelled: enough" in caplog.text
