"""How handlers run, and what is told of their failures."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextvars import ContextVar
from typing import Any, cast

import msgpack
import pytest
from msgspec import MsgspecError, Raw

from bunqueue.client.runner import (
    MAX_ERROR,
    MAX_STACK,
    ActiveJob,
    ProgressLine,
    Runner,
    error_stack,
    error_text,
)

NO_LINE = cast(ProgressLine, None)


def pulled(data: Any = None, **fields: Any) -> ActiveJob:
    job = {"id": "j1", "queue": "q", "name": "n", "createdAt": 1.0, "runAt": 2.0, "data": data, **fields}
    active = ActiveJob(Raw(msgpack.packb(job)), "token", NO_LINE)
    active.open()
    return active


def test_an_active_job_has_what_a_handler_needs() -> None:
    job = pulled({"x": 1}, attempts=1, maxAttempts=5)
    assert (job.id, job.queue, job.name, job.data) == ("j1", "q", "n", {"x": 1})
    assert (job.attempts, job.max_attempts, job.token) == (1, 5, "token")
    assert job.job().run_at == 2
    assert repr(job) == "ActiveJob(queue='q', name='n', id='j1', attempts=1)"


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(MsgspecError):
        ActiveJob(Raw(msgpack.packb({"id": 5})), "token", NO_LINE)


async def test_coroutine_functions_run_in_the_loop() -> None:
    async def handler(job: ActiveJob) -> int:
        return threading.get_ident()

    class WithCall:
        async def __call__(self, job: ActiveJob) -> int:
            return threading.get_ident()

    for each in (handler, functools.partial(handler), WithCall()):
        runner = Runner(each, 1)
        assert runner.is_async
        assert await runner.run(pulled()) == threading.get_ident()
        runner.stop()


async def test_plain_functions_run_in_threads_with_a_clean_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")
    seen = []

    def handler(job: ActiveJob) -> int:
        seen.append(variable.get())
        variable.set("dirty")
        return threading.get_ident()

    runner = Runner(handler, 1)
    threads = {await runner.run(pulled()) for _ in range(3)}
    runner.stop()
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert seen == ["clean"] * 3


async def test_no_more_threads_than_needed() -> None:
    runner = Runner(lambda job: threading.get_ident(), 50)
    threads = {await runner.run(pulled()) for _ in range(20)}
    runner.stop()
    assert len(threads) == 1


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(1), SystemExit(3), KeyboardInterrupt()])
async def test_threads_hand_on_every_exception(error: BaseException) -> None:
    def handler(job: ActiveJob) -> None:
        raise error

    runner = Runner(handler, 1)
    with pytest.raises((type(error), RuntimeError)) as caught:
        await runner.run(pulled())
    runner.stop()
    # Coroutines cannot raise StopIteration; Python makes it the cause of a RuntimeError.
    assert error in (caught.value, caught.value.__cause__)


async def test_a_plain_function_may_give_a_coroutine() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    runner = Runner(lambda job: work(), 1)
    assert await runner.run(pulled()) == "done"
    runner.stop()


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

    runner = Runner(lambda job: deep(2), 1)
    with pytest.raises(LookupError) as caught:
        await runner.run(pulled())
    runner.stop()
    assert caught.value.__traceback__ is not None
    stack = error_stack(caught.value.with_traceback(caught.value.__traceback__.tb_next))  # without the test
    assert stack[-1] == "LookupError: here"
    assert any("in deep" in line for line in stack)
    assert not any("bunqueue/client" in line for line in stack)


def test_stacks_are_bounded() -> None:
    error = ValueError("x" * 100_000)
    assert sum(map(len, error_stack(error))) <= MAX_STACK
    assert error_stack(Broken())
