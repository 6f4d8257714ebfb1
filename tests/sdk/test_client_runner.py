"""How handlers run, and what is told of their failures."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, cast

import msgpack
import pytest
from msgspec import MsgspecError, Raw

from bunqueue import JobCancelled, JobStopped, JobTimeout
from bunqueue.worker.active_job import CANCELLED, INTERRUPTED, TIMED_OUT, ActiveJob, Ending, JobChannel
from bunqueue.worker.job_runner import JobRunner, RunConfig, end
from bunqueue.worker.outcomes import Outcomes
from bunqueue.worker.reporting.failures import MAX_ERROR, MAX_STACK, error_stack, error_text
from bunqueue.worker.reporting.reporter import Reporter
from bunqueue.worker.routes import Table

NO_CHANNEL = cast(JobChannel, None)


class Notes:
    """Takes the place of the outcomes and of the boss."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.errors: list[BaseException] = []
        self.stopped: list[JobStopped] = []
        self.fatal: list[BaseException] = []

    def complete(self, job: ActiveJob, result: Raw, value: object) -> None:
        self.values.append(value)

    def fail(self, job: ActiveJob, error: BaseException) -> None:
        self.errors.append(error)

    def stop_short(self, job: ActiveJob, error: JobStopped) -> None:
        self.stopped.append(error)

    job_failed = stop_short

    def give_up(self, error: BaseException) -> None:
        self.fatal.append(error)


class Bench:
    """A runner that takes notes."""

    def __init__(self, handler: Any, threads: int = 1) -> None:
        self.notes = Notes()
        outcomes, stats = cast(Reporter, self.notes), cast(Outcomes, self.notes)
        config = RunConfig(table=Table(handler, None), threads=threads)
        self.runner = JobRunner(config, outcomes, stats, self.notes.give_up, NO_CHANNEL)

    async def run(self, job: ActiveJob) -> Any:
        """What the handler gave back, or raise what it raised."""
        task = asyncio.current_task()
        assert task is not None
        await self.runner.run(job, task)
        if self.notes.errors:
            raise self.notes.errors.pop()
        return self.notes.values.pop()


def pulled(data: Any = None, **fields: Any) -> ActiveJob:
    job = {"id": "j1", "queue": "q", "name": "n", "createdAt": 1.0, "runAt": 2.0, "data": data, **fields}
    active = ActiveJob(Raw(msgpack.packb(job)), "token", NO_CHANNEL)
    active.open()
    return active


def test_an_active_job_has_what_a_handler_needs() -> None:
    job = pulled({"x": 1}, attempts=1, maxAttempts=5)
    assert (job.id, job.queue, job.name, job.data) == ("j1", "q", "n", {"x": 1})
    assert (job.attempts, job.max_attempts, job.token) == (1, 5, "token")
    assert job.job().run_at_ms == 2
    assert repr(job) == "ActiveJob(queue='q', name='n', id='j1', attempts=1)"


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(MsgspecError):
        ActiveJob(Raw(msgpack.packb({"id": 5})), "token", NO_CHANNEL)


async def test_coroutine_functions_run_in_the_loop() -> None:
    async def handler(job: ActiveJob) -> int:
        return threading.get_ident()

    class WithCall:
        async def __call__(self, job: ActiveJob) -> int:
            return threading.get_ident()

    for each in (handler, functools.partial(handler), WithCall()):
        runner = Bench(each)
        assert await runner.run(pulled()) == threading.get_ident()
        runner.runner.stop()


async def test_plain_functions_run_in_threads_with_a_clean_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")
    seen = []

    def handler(job: ActiveJob) -> int:
        seen.append(variable.get())
        variable.set("dirty")
        return threading.get_ident()

    runner = Bench(handler)
    threads = {await runner.run(pulled()) for _ in range(3)}
    runner.runner.stop()
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert seen == ["clean"] * 3


async def test_no_more_threads_than_needed() -> None:
    runner = Bench(lambda job: threading.get_ident(), 50)
    threads = {await runner.run(pulled()) for _ in range(20)}
    runner.runner.stop()
    assert len(threads) == 1


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(1), SystemExit(3), KeyboardInterrupt()])
async def test_threads_hand_on_every_exception(error: BaseException) -> None:
    def handler(job: ActiveJob) -> None:
        raise error

    runner = Bench(handler)
    with pytest.raises((type(error), RuntimeError)) as caught:
        await runner.run(pulled())
    runner.runner.stop()
    # Coroutines cannot raise StopIteration; Python makes it the cause of a RuntimeError.
    assert error in (caught.value, caught.value.__cause__)


async def test_a_plain_function_may_give_a_coroutine() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    runner = Bench(lambda job: work())
    assert await runner.run(pulled()) == "done"
    runner.runner.stop()


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError("message"), "TypeError: message"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError(), "ValueError"),
        (Broken(), "Broken: (its text cannot be had: RuntimeError)"),
    ],
)
def test_errors_in_words(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def test_long_errors_are_cut() -> None:
    text = error_text(ValueError("x" * 10_000))
    assert len(text) == MAX_ERROR
    assert text.endswith("...")


async def test_stacks_show_the_handler_and_not_this_package() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise LookupError("here")

    runner = Bench(lambda job: deep(2))
    with pytest.raises(LookupError) as caught:
        await runner.run(pulled())
    runner.runner.stop()
    within = caught.value.__traceback__
    assert within is not None
    assert within.tb_next is not None
    stack = error_stack(caught.value.with_traceback(within.tb_next.tb_next))  # without the frames of the test
    assert stack[-1] == "LookupError: here"
    assert any("in deep" in line for line in stack)
    assert not any("bunqueue/client" in line for line in stack)


def test_stacks_are_bounded() -> None:
    error = ValueError("x" * 100_000)
    assert sum(map(len, error_stack(error))) <= MAX_STACK
    assert error_stack(Broken())


async def test_a_job_that_was_ended_before_it_began_is_not_begun() -> None:
    bench, job = Bench(lambda job: pytest.fail("it began")), pulled()
    end(job, Ending(CANCELLED))
    with pytest.raises(IndexError):
        await bench.run(job)
    assert [type(error) for error in bench.notes.stopped] == [JobCancelled]


async def test_of_several_reasons_to_end_the_first_counts_but_for_cancelling() -> None:
    job = pulled(timeout=5)
    for why in (TIMED_OUT, INTERRUPTED, CANCELLED, INTERRUPTED):
        end(job, Ending(why))
    assert job.ending == Ending(CANCELLED)
    other = pulled(timeout=5)
    end(other, Ending(TIMED_OUT))
    end(other, Ending(INTERRUPTED))
    assert isinstance(other.stopped, JobTimeout)
    with pytest.raises(JobTimeout, match="took longer than its timeout of 5 ms"):
        other.raise_if_cancelled()


async def test_what_cancels_one_job_does_not_reach_the_next_of_its_slot() -> None:
    task = asyncio.current_task()
    assert task is not None

    async def handler(job: ActiveJob) -> str:
        if job.data == "swallows":
            end(job, Ending(CANCELLED))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        elif job.data == "raises":
            end(job, Ending(CANCELLED))
            await asyncio.sleep(0)
        return "done"

    bench = Bench(handler)
    for data in ("swallows", "raises", "swallows"):
        await bench.runner.run(pulled(data), task)
        assert not task.cancelling()
        end(pulled(data), Ending(CANCELLED))
    late = pulled("late")
    assert await bench.run(late) == "done"
    end(late, Ending(CANCELLED))  # it has ended: nobody is to be stopped any more
    await asyncio.sleep(0)
    assert len(bench.notes.stopped) == 3
