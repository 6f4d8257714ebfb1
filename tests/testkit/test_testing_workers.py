"""`drain` does what a worker does: hooks, middleware, batches, timeouts; and no job ends more than itself."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import ANY

import attrs
import msgspec
import pydantic
import pytest

from bunqueue import (
    ActiveJob,
    Batch,
    Bunqueue,
    CallNext,
    Flow,
    JobTimeout,
    Middleware,
    Postpone,
    Queue,
    Worker,
    current_job,
)
from bunqueue.testing import Sandbox, SandboxError

EMAILS = Queue("emails", host="queues.example.com")


class Own(BaseException):
    pass


LEAVING = (SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), Own("mine"))


# -- what a worker calls


def hooked() -> tuple[Bunqueue, list[Any]]:
    """An app that writes down what is called, and when."""
    app = Bunqueue("hooked", host="queues.example.com")
    seen: list[Any] = []

    class Around(Middleware):
        async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
            seen.append("around")
            return await call_next(job)

    app.use(Around())
    app.on("startup")(lambda: seen.append("startup"))
    app.on("shutdown")(lambda: seen.append("shutdown"))
    for event in JOB_EVENTS:
        app.on(event)(lambda job, value, event=event: seen.append((event, job.name, str(value))))

    @app.job()
    async def divide(by: int) -> int:
        return 6 // by

    @app.job()
    def later() -> None:
        if not current_job().postponed:
            raise Postpone(1_000, "not yet")

    return app, seen


JOB_EVENTS: tuple[Any, ...] = ("completed", "failed", "exhausted", "stopped")
ZERO = "integer division or modulo by zero"
EXPECTED = [
    "startup",
    "around",
    ("completed", "divide", "3"),
    "around",
    ("failed", "divide", ZERO),
    ("exhausted", "divide", ZERO),
    "around",
    ("stopped", "later", "not yet"),
    "shutdown",
]


def add_all(app: Bunqueue) -> None:
    app.add("divide", {"by": 2})
    app.add("divide", {"by": 0}, max_attempts=1)
    app.add("later")


def test_an_app_calls_its_hooks_as_when_it_works(bunqueue: Sandbox) -> None:
    app, seen = hooked()
    add_all(app)
    assert [run.outcome for run in bunqueue.drain(app)] == ["completed", "failed", "postponed"]
    assert seen == EXPECTED
    seen.clear()
    with bunqueue.inline(app):
        assert seen == []  # there is nothing to run
        app.add("divide", {"by": 3})
    assert seen == ["startup", "around", ("completed", "divide", "2"), "shutdown"]


async def test_and_so_it_does_for_a_coroutine(bunqueue: Sandbox) -> None:
    app, seen = hooked()
    add_all(app)
    await bunqueue.drain_async(app)
    assert seen == EXPECTED
    seen.clear()
    async with app:  # it has begun, and ends later
        add_all(app)
        await bunqueue.drain_async(app)
        await bunqueue.settle_async()
        assert "startup" not in seen[1:]
        assert "shutdown" not in seen
    assert seen[-1] == "shutdown"


def test_a_worker_calls_its_callbacks(bunqueue: Sandbox) -> None:
    seen: list[Any] = []
    worker = Worker(
        "emails",
        {"good": lambda job: 1, "bad": lambda job: 1 // 0},
        on_completed=lambda job, result: seen.append(("completed", result)),
        on_failed=lambda job, error: seen.append(("failed", type(error))),
        on_error=lambda error: seen.append(("error", type(error).__name__)),
    )
    EMAILS.add("good")
    EMAILS.add("bad", max_attempts=1)
    bunqueue.drain(worker)
    bunqueue.faults.lose_command("fail", times=10)
    EMAILS.add("bad", max_attempts=1)
    bunqueue.drain(worker, limit=3)
    assert seen[:2] == [("completed", 1), ("failed", ZeroDivisionError)]
    assert ("error", "ConnectionLost") in seen
    assert ("error", "LockLost") in seen


def test_hooks_that_are_coroutines_are_awaited_and_may_add_jobs(bunqueue: Sandbox) -> None:
    app = Bunqueue("alerts", host="queues.example.com")
    calls: list[str] = []

    @app.job(max_attempts=1)
    def breaks() -> None:
        raise OSError("down")

    @app.job()
    async def alert(about: str) -> str:
        return about

    @app.on("startup")
    async def open_all() -> None:
        await asyncio.sleep(0)
        calls.append("open")

    @app.on("exhausted")
    async def tell(job: ActiveJob, error: BaseException) -> None:
        await asyncio.sleep(0)
        await alert.add_async(job.name)

    @app.on("completed")
    async def broken(job: ActiveJob, result: object) -> None:
        raise ValueError("of a hook")  # is logged, and changes nothing

    breaks.add()
    assert [(run.name, run.outcome) for run in bunqueue.drain(app)] == [
        ("breaks", "failed"),
        ("alert", "completed"),
    ]
    assert calls == ["open"]


def test_a_hook_of_the_start_that_fails_ends_the_drain_in_order(bunqueue: Sandbox) -> None:
    app = Bunqueue("broken", host="queues.example.com")
    ended: list[int] = []
    app.on("shutdown")(lambda: ended.append(1))
    app.job(name="n")(lambda: None)

    @app.on("startup")
    def fails() -> None:
        raise OSError("no database")

    app.add("n")
    with pytest.raises(OSError, match="no database"):
        bunqueue.drain(app)
    assert ended == [1]
    assert Queue("broken").counts().waiting == 1


def test_logs_of_handlers_are_forwarded(bunqueue: Sandbox) -> None:
    def handler(job: ActiveJob) -> None:
        logging.getLogger("shop").warning("out of stock")

    job = EMAILS.add("n")
    bunqueue.drain(Worker("emails", handler, forward_logs="warning"))
    assert [line.message for line in job.logs()] == ["out of stock"]


def test_a_batch_has_all_that_is_there_and_plain_functions_the_thread_of_the_test(bunqueue: Sandbox) -> None:
    calls: list[list[int]] = []

    def insert(jobs: list[ActiveJob]) -> list[object]:
        assert threading.get_ident() == here
        calls.append([job.data for job in jobs])
        return [ValueError("odd") if job.data % 2 else job.data for job in jobs]

    here = threading.get_ident()
    for number in range(5):
        EMAILS.add("insert", number, max_attempts=1)
    EMAILS.add("other", 7)
    EMAILS.add("insert", 8)
    handlers: dict[str, Any] = {
        "insert": Batch(insert, size=3, max_wait=timedelta(hours=1)),
        "*": lambda job: "other",
    }
    runs = bunqueue.drain(Worker("emails", handlers, concurrency=3))
    assert calls == [[0, 1, 2], [3, 4], [8]]
    assert [(run.data, run.outcome) for run in runs] == [
        (0, "completed"),
        (2, "completed"),
        (1, "failed"),
        (4, "completed"),
        (3, "failed"),
        (7, "completed"),
        (8, "completed"),
    ]


def test_a_batch_whose_worker_dies_runs_again(bunqueue: Sandbox) -> None:
    for number in range(3):
        EMAILS.add("n", number)
    worker = Worker("emails", {"n": Batch(lambda jobs: None, size=5)}, concurrency=5)
    bunqueue.faults.crash_in_report()
    runs = bunqueue.drain(worker)
    assert [(run.data, run.outcome) for run in runs] == [
        *[(number, "crashed") for number in range(3)],
        *[(number, "completed") for number in range(3)],
    ]


# -- what a job raises is its own outcome


def plain_function(error: BaseException) -> Callable[[ActiveJob], object]:
    def handler(job: ActiveJob) -> None:
        raise error

    return handler


def coroutine(error: BaseException) -> Callable[[ActiveJob], object]:
    async def handler(job: ActiveJob) -> None:
        await asyncio.sleep(0)
        raise error

    return handler


def inner_task(error: BaseException) -> Callable[[ActiveJob], object]:
    async def handler(job: ActiveJob) -> None:
        async def inner() -> None:
            raise error

        await asyncio.create_task(inner())

    return handler


@pytest.mark.parametrize("kind", [plain_function, coroutine, inner_task])
def test_what_a_job_raises_ends_nothing_but_its_attempt(bunqueue: Sandbox, kind: Any) -> None:
    for error in LEAVING:
        if kind is inner_task and isinstance(error, GeneratorExit):
            continue  # a task that ends so is an error of its own in asyncio
        bad, good = EMAILS.add("bad", max_attempts=1), EMAILS.add("good")
        runs = bunqueue.drain(Worker("emails", {"bad": kind(error), "good": lambda job: 1}))
        assert [(run.name, run.outcome) for run in runs] == [("bad", "failed"), ("good", "completed")], error
        assert type(runs[0].error) is type(error)
        assert (bad.state(), good.state()) == ("failed", "completed")
        assert type(error).__name__ in str(bad.job().error)


async def test_and_when_a_coroutine_drains(bunqueue: Sandbox) -> None:
    for kind in (plain_function, coroutine):
        for error in LEAVING:
            EMAILS.add("bad", max_attempts=1)
            (run,) = await bunqueue.drain_async(kind(error))
            assert (run.outcome, type(run.error)) == ("failed", type(error))


def test_in_middleware_batches_steps_and_workflows(bunqueue: Sandbox) -> None:
    app = Bunqueue("leaving", host="queues.example.com")
    raised: list[BaseException] = []

    def leave() -> None:
        raise raised[-1]

    @app.workflow(max_attempts=1)
    async def in_step(flow: Flow) -> None:
        await flow.step("leave", leave, retry=1)

    @app.workflow(max_attempts=1)
    async def in_code(flow: Flow) -> None:
        leave()

    @app.batch("together", size=2)
    async def together(jobs: list[ActiveJob]) -> None:
        leave()

    class Leaving(Middleware):
        async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
            leave()

    around = Worker("around", lambda job: None, middleware=[Leaving()])
    for error in LEAVING:
        raised.append(error)
        handles = [in_step.start(), in_code.start()]
        app.add("together", max_attempts=1)
        Queue("around").add("n", max_attempts=1)
        runs = bunqueue.drain(app, around)
        assert [run.outcome for run in runs] == ["failed"] * 4, (error, runs)
        assert [handle.state() for handle in handles] == ["failed"] * 2


def test_raising_raises_what_does_not_end_the_test_run(bunqueue: Sandbox) -> None:
    for error in LEAVING:
        EMAILS.add("n", max_attempts=1)
        with pytest.raises(SandboxError, match=f"a job has raised {type(error).__name__}") as caught:
            bunqueue.drain(plain_function(error), raising=True)
        assert caught.value.__cause__ is error


def test_what_a_handler_says_of_the_test_comes_out(bunqueue: Sandbox) -> None:
    """Also where the run was to end anyway: a test that cannot fail is worth nothing."""

    def stops(stop: Callable[[str], object], job: ActiveJob) -> None:
        stop("of the test")

    def cancelled(job: ActiveJob) -> None:
        bunqueue.advance(timedelta(hours=1))
        assert job.data == "of the test"

    EMAILS.add("n", timeout=1_000)
    with pytest.raises(AssertionError, match="of the test"):
        bunqueue.drain(cancelled)
    for stop in (pytest.fail, pytest.skip):
        EMAILS.add("n", max_attempts=1)
        with pytest.raises(stop.Exception, match="of the test"):
            bunqueue.drain(partial(stops, stop))


CTRL_C = """
import asyncio, os, signal, sys, threading
from bunqueue import Queue
from bunqueue.testing import Sandbox

def press():
    os.kill(os.getpid(), signal.SIGINT)

def plain(job):
    press()
    threading.Event().wait(600)

async def waits(job):
    threading.Timer(0.2, press).start()
    await asyncio.Event().wait()

queue = Queue("q")
with Sandbox() as sandbox:
    queue.add("n")
    try:
        sandbox.drain(dict(plain=plain, waits=waits)[sys.argv[1]])
    except KeyboardInterrupt:
        print("ended", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize("where", ["plain", "waits"])
def test_ctrl_c_ends_a_drain(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, where], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ended True\n", done.stderr


async def test_a_test_that_is_cancelled_gives_its_job_back(bunqueue: Sandbox) -> None:
    began = asyncio.Event()

    async def waits(job: ActiveJob) -> None:
        began.set()
        await asyncio.Event().wait()

    job = EMAILS.add("n")
    draining = asyncio.create_task(bunqueue.drain_async(waits))
    await began.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert (job.state(), job.job().attempts) == ("waiting", 0)


def test_a_job_added_without_awaiting_in_a_coroutine_runs_inline(bunqueue: Sandbox) -> None:
    async def handler(job: ActiveJob) -> int:
        await asyncio.sleep(0)
        return 42

    async def endpoint() -> Any:
        return EMAILS.add("n").result()

    with bunqueue.inline(handler):
        assert asyncio.run(endpoint()) == 42


# -- timeouts


def test_timeouts_end_runs_in_real_time_as_well(bunqueue: Sandbox) -> None:
    stopped: list[str] = []

    async def sleeps(job: ActiveJob) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("coroutine")
            raise
        return "late"

    async def swallows(job: ActiveJob) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "late"

    def blocks(job: ActiveJob) -> str:
        time.sleep(0.1)  # longer than its timeout: this test is about real time
        return "late"

    for handler in (sleeps, swallows, blocks):
        job = EMAILS.add("n", timeout=20, max_attempts=1)
        (run,) = bunqueue.drain(handler)
        assert (run.outcome, job.state()) == ("timed out", "failed"), handler
        assert isinstance(run.error, JobTimeout)
        job = EMAILS.add("n", timeout=20, max_attempts=1)
        with pytest.raises(JobTimeout):
            bunqueue.drain(handler, raising=True)
    assert stopped == ["coroutine"] * 2


async def test_timeouts_when_a_coroutine_drains(bunqueue: Sandbox) -> None:
    gate = threading.Event()

    async def sleeps(job: ActiveJob) -> None:
        await asyncio.Event().wait()

    EMAILS.add("n", timeout=20, max_attempts=1)
    (run,) = await bunqueue.drain_async(sleeps)
    assert run.outcome == "timed out"
    EMAILS.add("n", timeout=20, max_attempts=1)
    (run,) = await bunqueue.drain_async(lambda job: gate.wait(0.1) and None)
    assert run.outcome == "timed out"


# -- schedules


def test_schedules_can_be_left_out(bunqueue: Sandbox) -> None:
    app = Bunqueue("left", host="queues.example.com")
    runs: list[str] = []

    @app.cron("0 9 * * *")
    def digest() -> None:
        runs.append("digest")

    @app.job()
    def remind() -> None:
        runs.append("remind")

    EMAILS.upsert_cron("minutely", every=60_000, job_name="tick")
    remind.options(delay=timedelta(days=2)).add()
    week = timedelta(days=7)
    assert len(bunqueue.drain(app, lambda job: runs.append("tick"), within=week, schedules=False)) == 1
    assert runs == ["remind"]
    schedule = EMAILS.get_cron("minutely")
    assert schedule is not None
    assert not schedule.paused
    assert bunqueue.drain(app, within=timedelta(days=1))[0].name == "digest"
    assert len(bunqueue.drain(app, within=week, schedules=False)) == 0


# -- what was added, as records


@dataclass
class Plain:
    to: str
    copies: Any = 1


@attrs.define
class Attrs:
    to: str
    copies: Any = 1


class Packed(msgspec.Struct):
    to: str
    copies: Any = 1


class Model(pydantic.BaseModel):
    to: str
    copies: Any = 1


def test_records_match_the_jobs_that_carry_them(bunqueue: Sandbox) -> None:
    app = Bunqueue("records", host="queues.example.com")

    @app.job()
    def send(letter: Model) -> None: ...

    for kind in (Plain, Attrs, Packed, Model):
        name = kind.__name__
        EMAILS.add(name, kind(to="ada"))
        EMAILS.add(name + "s", [{"inner": kind(to="ada")}])
        for data in (kind(to="ada"), kind(to="ada", copies=ANY), {"to": "ada"}):
            bunqueue.assert_added("emails", name, data)
            with pytest.raises(AssertionError, match="was added"):
                bunqueue.assert_not_added("emails", name, data)
        bunqueue.assert_added("emails", name + "s", [{"inner": kind(to="ada", copies=ANY)}])
        for data in (kind(to="bob"), kind(to="bob", copies=ANY), kind(to="ada", copies=2)):
            bunqueue.assert_not_added("emails", name, data)
            with pytest.raises(AssertionError, match="Near misses"):
                bunqueue.assert_added("emails", name, data)
    send.add(Model(to="ada"))
    bunqueue.assert_added(send, data={"letter": Model(to="ada")})
    bunqueue.assert_not_added(send, data={"letter": Model(to="bob")})
    with pytest.raises(AssertionError):
        bunqueue.assert_not_added(send.job(Model(to="ada")))


def test_what_no_job_can_have_is_refused(bunqueue: Sandbox) -> None:
    EMAILS.add("n", {"to": "ada"})
    for data in (object(), {"to": object()}, [lambda: None]):
        with pytest.raises(TypeError, match="it cannot be sent"):
            bunqueue.assert_not_added("emails", "n", data)
