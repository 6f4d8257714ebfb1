"""What user code in a workflow raises is the outcome of its job; and no step runs twice at a time."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from support.careless import Careless, Exits, Textless
from support.waiting import eventually

from bunqueue import BlockingFlow, Bunqueue, Flow, Retry, Undo, current_job
from bunqueue.client.connection.endpoint_options import EndpointOptions

PATIENCE = 60_000
CANCELLED = "CancelledError: the code of the job has cancelled it, not its worker"


class Own(BaseException):
    """Of the user."""


def leave() -> None:
    sys.exit(3)


def cancel() -> None:
    raise asyncio.CancelledError


def interrupt() -> None:
    raise KeyboardInterrupt


def end_generator() -> None:
    raise GeneratorExit


def own() -> None:
    raise Own("no")


def careless() -> None:
    raise Careless("no")


def textless() -> None:
    raise Textless


def exits() -> None:
    raise Exits("no")


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def await_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


PLAIN: dict[Callable[[], None], str] = {
    leave: "SystemExit: 3",
    cancel: CANCELLED,
    interrupt: "KeyboardInterrupt",
    end_generator: "GeneratorExit",
    own: "Own: no",
    careless: "Careless: no",
    textless: "Textless",
    exits: "Exits: no",
}
ASYNC = {cancel_itself: CANCELLED, await_cancelled: CANCELLED}


def as_coroutine(function: Callable[[], None]) -> Callable[[], Any]:
    async def call() -> None:
        await asyncio.sleep(0)
        function()

    return call


BY_NAME: dict[str, Callable[[], Any]] = {each.__name__: each for each in (*PLAIN, *ASYNC)}
BY_NAME |= {f"async {each.__name__}": as_coroutine(each) for each in PLAIN}
TEXTS = {each.__name__: text for each, text in (*PLAIN.items(), *ASYNC.items())}
TEXTS |= {f"async {each.__name__}": text for each, text in PLAIN.items()}


async def run(what: str) -> None:
    given = BY_NAME[what]()
    if given is not None:
        await given


def declare(app: Bunqueue) -> dict[str, Any]:
    """Everything in which a user's code runs, by where that is."""
    once = {"max_attempts": 1}

    @app.job(**once)
    def step_of_job(what: str) -> None:
        current_job().step("s", BY_NAME[what])

    @app.job(**once)
    async def step_of_coroutine(what: str) -> None:
        await current_job().step("s", BY_NAME[what])

    @app.workflow(**once)
    async def body(flow: Flow, what: str) -> None:
        await run(what)

    @app.workflow(**once)
    async def step(flow: Flow, what: str) -> None:
        await flow.step("s", BY_NAME[what])

    @app.workflow(**once)
    async def step_with_undo(flow: Flow, what: str) -> None:
        await flow.step("s", BY_NAME[what], undo=lambda _: None)

    @app.workflow(**once)
    async def undo(flow: Flow, what: str) -> None:
        async def undone(_: object) -> None:
            await run(what)

        await flow.step("s", lambda: 1, undo=Undo(undone, retry=1))
        raise ValueError("undo it")

    @app.workflow(**once)
    async def branch(flow: Flow, what: str) -> None:
        await flow.gather(run(what), flow.step("t", lambda: 2))

    @app.workflow(**once)
    async def race(flow: Flow, what: str) -> None:
        await flow.race(run(what), flow.sleep(minutes=1))

    @app.workflow(**once)
    async def first(flow: Flow, what: str) -> None:
        await flow.first(run(what), run(what))

    @app.workflow(**once)
    async def task(flow: Flow, what: str) -> None:
        await asyncio.gather(run(what), flow.step("t", lambda: 2))

    @app.workflow(**once)
    async def while_it_is_undone(flow: Flow, what: str) -> None:
        await flow.step("a", lambda: 1, undo=lambda _: None)
        await flow.step("b", lambda: 1)
        await run(what)

    @app.workflow(**once)
    def plain_body(flow: BlockingFlow, what: str) -> None:
        BY_NAME[what]()

    @app.workflow(**once)
    def plain_step(flow: BlockingFlow, what: str) -> None:
        flow.step("s", BY_NAME[what])

    @app.workflow(**once)
    def plain_branch(flow: BlockingFlow, what: str) -> None:
        flow.gather(BY_NAME[what], lambda: 1)

    found = (step_of_job, step_of_coroutine, body, step, step_with_undo, undo, branch, race, first, task)
    found = (*found, while_it_is_undone, plain_body, plain_step, plain_branch)
    return {each.name: each for each in found}


def expected(place: str, what: str) -> str:
    text = TEXTS[what]
    if "step" in place and what != "cancel_itself":
        return f"StepFailed: step 's' failed: {text}"
    if place == "step_with_undo":
        return f"StepFailed: step 's' failed: {text}"
    if place == "undo":
        return f"Step s could not be undone: UndoFailed: {text}"
    return "first: no branch has succeeded" if place == "first" else text


@pytest.mark.parametrize("what", list(BY_NAME))
async def test_what_user_code_raises_is_the_outcome_of_its_job(where: EndpointOptions, what: str) -> None:
    app = Bunqueue(f"q-{uuid4().hex[:8]}", **where, concurrency=8)
    places = declare(app)
    is_plain = BY_NAME[what] in PLAIN
    if not is_plain:  # plain code gives a coroutine there, which is awaited or not
        places = {name: each for name, each in places.items() if name not in ("plain_body", "plain_branch")}
    elif what.startswith("async "):
        del places["plain_body"], places["plain_branch"]

    @app.job
    async def other() -> str:
        return "it runs"

    async with app:
        handles = {name: await each.add_async(what) for name, each in places.items()}
        for place, handle in handles.items():
            outcome = await handle.wait(timeout=PATIENCE)
            assert outcome.state in ("failed", "stuck"), place
            assert expected(place, what) in str(outcome.error), place
        assert await (await other.add_async()).result(PATIENCE) == "it runs"


class Gate:
    """A plain function that counts how many threads run it."""

    def __init__(self) -> None:
        self.running = self.most = self.calls = 0
        self.entered = threading.Event()
        self.open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.running += 1
            self.calls += 1
            self.most = max(self.most, self.running)
        self.entered.set()
        if self.calls == 1:
            assert self.open.wait(60)
        with self._lock:
            self.running -= 1
        return self.calls


@pytest.mark.parametrize("place", ["step", "job", "job's own", "plain", "flow's own"])
async def test_a_step_whose_time_is_over_is_not_run_twice_at_a_time(
    where: EndpointOptions, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call outlives its time: the next one begins when it has returned.

    On a busy machine others outlive theirs, too.
    """
    app = Bunqueue(f"q-{uuid4().hex[:8]}", **where, concurrency=4)
    gate, late = Gate(), threading.Event()
    retry = Retry(0, max_attempts=100)
    attempts = {"max_attempts": 100, "backoff": 0}

    @app.workflow(max_attempts=1)
    async def step(flow: Flow) -> int:
        return await flow.step("slow", gate, retry=retry, timeout=50)

    @app.job(**attempts)
    async def job() -> int:
        return await current_job().step("slow", gate, timeout=50)  # type: ignore[no-any-return]

    @app.job(**attempts, timeout=300)
    async def job_s_own() -> int:
        return await current_job().step("slow", gate)  # type: ignore[no-any-return]

    @app.workflow(max_attempts=1)
    def plain(flow: BlockingFlow) -> int:
        return flow.step("slow", gate, retry=retry, timeout=50)

    @app.workflow(**attempts, timeout=300)
    async def flow_s_own(flow: Flow) -> int:
        return await flow.step("slow", gate)

    what: Any = {"step": step, "job": job, "job's own": job_s_own, "plain": plain, "flow's own": flow_s_own}[
        place
    ]
    with caplog.at_level(logging.WARNING, "bunqueue.worker"):
        async with app:
            handle = await what.add_async()
            await eventually(lambda: gate.entered.is_set(), "it runs")
            await eventually(lambda: "longer than its timeout" in caplog.text, "its time is over")
            threading.Timer(0.5, late.set).start()  # for as long a second call could begin
            await asyncio.to_thread(late.wait)
            gate.open.set()
            assert await handle.result(PATIENCE) >= 2
    assert gate.most == 1


@pytest.mark.parametrize("bad", ["step", "undo", "branch"])
async def test_a_generator_is_no_step(where: EndpointOptions, bad: str) -> None:
    """Calling one runs nothing."""
    app = Bunqueue(f"q-{uuid4().hex[:8]}", **where)

    def lines() -> Any:
        yield 1

    @app.workflow(max_attempts=1)
    def work(flow: BlockingFlow) -> None:
        if bad == "step":
            flow.step("s", lines)
        elif bad == "undo":
            flow.step("s", lambda: 1, undo=lines)
        else:
            flow.gather(lines)

    async with app:
        outcome = await (await work.add_async()).wait(timeout=PATIENCE)
        assert outcome.state == "failed"
        assert "is a generator function" in str(outcome.error)
