"""What is promised of steps: run in a sandbox, where time is skipped and workers die as planned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from support.promises import promises

from bunqueue import (
    ActiveJob,
    Bunqueue,
    BunqueueError,
    CommandFailed,
    Flow,
    FlowJob,
    JobFailed,
    OptionError,
    Queue,
    ResultError,
    Retry,
    StepChanged,
    StepFailed,
    StepTimeout,
    Undo,
    Unrecoverable,
    WorkflowError,
    current_step,
)
from bunqueue.testing import Sandbox

DAY = timedelta(days=1)


@promises("A step has a name", "Its result is committed on the shard")
def test_a_result_is_stored_before_the_next_line(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    seen: list[list[str]] = []

    @app.workflow
    async def order(flow: Flow) -> str:
        charge = await flow.step("charge", lambda: "paid")
        seen.append([f"{step.name} {step.status} {step.result}" for step in handle.history()])
        return charge

    handle = order.start()
    sandbox.drain(app)
    assert seen == [["charge completed paid"]]
    assert handle.result() == "paid"


@promises("A finished step never runs again", "On every later run it returns its stored result")
def test_a_finished_step_never_runs_again(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    runs: list[str] = []

    @app.workflow(max_attempts=2, backoff=1_000)
    async def order(flow: Flow) -> list[str]:
        runs.append("run")
        first = await flow.step("first", lambda: runs.append("first") or "a")
        if runs.count("run") == 1:
            raise ConnectionError("the attempt fails")
        await flow.sleep("night", days=1)
        return [first, await flow.step("second", lambda: runs.append("second") or "b")]

    handle = order.start()
    sandbox.faults.crash_in_step("night", stored=True)
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == ["a", "b"]
    assert runs == ["run", "first", "run", "run", "run", "second"]  # failed, crashed, slept


@promises("A step is found again by its name and its arguments", "A step that is no longer in the code")
def test_code_may_change_between_runs(sandbox: Sandbox) -> None:
    ran: list[str] = []

    def step(name: str) -> str:
        ran.append(name)
        return name

    def deploy(*names: str) -> Bunqueue:
        app = Bunqueue("q")

        @app.workflow
        async def order(flow: Flow) -> list[str]:
            found = [await flow.step(name, step, name) for name in names]
            await flow.sleep("s", days=1)
            return found

        return app

    old, new = deploy("a", "b", "c"), deploy("c", "x", "a")
    handle = Queue("q").add("order", {}, workflow=True)
    sandbox.drain(old)
    sandbox.drain(new, within=2 * DAY)
    assert handle.result() == ["c", "x", "a"]
    assert ran == ["a", "b", "c", "x"]


@promises("A name that is used again in the same run gets a number")
def test_names_get_numbers(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> list[int]:
        found = [await flow.step("pack", lambda n: n * 10, n) for n in range(3)]
        await flow.sleep(days=1)
        return found

    handle = order.start()
    sandbox.drain(app, within=2 * DAY)
    assert [step.name for step in handle.history()] == ["pack", "pack#2", "pack#3", "sleep"]
    assert handle.result() == [0, 10, 20]


@promises("Asking for a stored step with other arguments is an error")
def test_other_arguments_are_an_error(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    prices = [5, 6]

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("pay", lambda cents: cents, prices.pop(0))
        await flow.sleep(days=1)

    handle = order.start()
    runs = sandbox.drain(app, within=2 * DAY)
    assert isinstance(runs[-1].error, StepChanged)
    assert runs[-1].error.step == "pay"
    assert "'pay'" in str(runs[-1].error)
    assert handle.state() == "failed"


def test_branches_may_come_in_another_order(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[int] = []
    orders = [[1, 2, 3], [3, 1, 2]]

    @app.workflow
    async def order(flow: Flow) -> list[int]:
        items = orders.pop(0)
        found = await flow.gather(*(flow.step("pack", lambda n: ran.append(n) or n, n) for n in items))
        await flow.sleep(days=1)
        return found

    handle = order.start()
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == [3, 1, 2]
    assert sorted(ran) == [1, 2, 3]


@promises("So is a stored result that does not fit the type")
def test_another_type_is_an_error(sandbox: Sandbox) -> None:
    @dataclass
    class Old:
        cents: int

    @dataclass
    class New:
        euros: str

    kinds: list[type] = [Old, New]
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        kind = kinds.pop(0)

        def charge() -> object:
            return Old(5)

        charge.__annotations__["return"] = kind
        await flow.step("charge", charge)
        await flow.sleep(days=1)

    order.start()
    *_, last = sandbox.drain(app, within=2 * DAY)
    assert isinstance(last.error, StepChanged)
    assert last.error.step == "charge"
    assert "'charge'" in str(last.error)
    assert "New" in str(last.error)


@promises("Every run gets what a step gave as it was stored")
def test_results_are_what_is_stored_in_every_run(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    seen: list[object] = []

    def typed() -> tuple[int, ...]:
        return (1, 2)

    @app.workflow
    async def order(flow: Flow) -> None:
        seen.append(await flow.step("plain", lambda: (1, 2)))
        seen.append(await flow.step("typed", typed))
        await flow.sleep(days=1)

    order.start()
    sandbox.drain(app, within=2 * DAY)
    assert seen == [[1, 2], (1, 2), [1, 2], (1, 2)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": -1}, "timeout: -1 is not allowed; give a time above 0"),
        ({"timeout": 0}, "timeout: 0 is not allowed; give a time above 0"),
        ({"retry": 0}, "retry: max_attempts: 0 is not allowed; give a whole number from 1 on"),
        ({"undo": "x"}, "undo: 'x' cannot be called; give a function"),
        ({"undo": Undo(print, retry=0)}, "retry: max_attempts: 0 is not allowed"),
        ({"undo": Undo(print, timeout=-1)}, "undo: timeout: -1 is not allowed; give a time above 0"),
        (
            {"retry": Retry(timedelta(days=366))},
            "retry: delay: 31622400000 ms is not allowed; give a time from 0 to",
        ),
        ({"retry": Retry(max_delay=timedelta(days=366))}, "retry: max_delay: 31622400000 ms is not allowed"),
    ],
)
def test_a_mistake_is_told_before_the_step_runs(sandbox: Sandbox, options: dict[str, Any], text: str) -> None:
    app = Bunqueue("q")
    ran: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("charge", ran.append, "charge", **options)

    handle = order.start()
    sandbox.drain(app)
    assert text in str(handle.job().error)
    assert (ran, handle.history()) == ([], [])


@promises("A sleep, a timeout or the time between two attempts may be 365 days")
@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (lambda flow: flow.sleep("long", days=366), "sleep must be at most 31536000000, not 31622400000"),
        (lambda flow: flow.wait_for("paid", timeout=2**40), "timeout must be at most 31536000000, not 10995"),
        (lambda flow: flow.wait_for("paid", key=7), "key must be a string, not 7"),
        (lambda flow: flow.wait_for("paid", key=""), "key must be a non-empty string, not ''"),
        (lambda flow: flow.wait_for("s" * 300, name="paid"), "signal must be at most 256 characters"),
        (lambda flow: flow.run(FlowJob("", {}, queue="q")), "name: a job cannot be called ''"),
        (lambda flow: flow.run(FlowJob("a", {}, queue="a b")), "'a b'"),
    ],
)
def test_a_wait_that_cannot_be_is_refused_where_it_is_asked_for(
    sandbox: Sandbox, wait: Callable[[Flow], Awaitable[object]], text: str
) -> None:
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> str:
        try:
            await wait(flow)
        except OptionError as error:
            return str(error)
        return "it was taken"

    handle = order.start()
    sandbox.drain(app)
    assert text in handle.result()
    assert handle.history() == []


@promises("A step that was running when its worker died runs again", "`flow.key` is the same in each")
def test_a_step_that_was_cut_off_runs_again(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    keys: list[str] = []

    @app.workflow
    async def order(flow: Flow) -> str:
        def pay() -> str:
            keys.append(flow.key)
            return f"paid {len(keys)}"

        return await flow.step("charge", pay)

    handle = order.start(id="order-7")
    sandbox.faults.crash_in_step("charge", times=2)
    sandbox.drain(app)
    assert keys == ["order-7:charge"] * 3
    assert handle.result() == "paid 3"
    assert len(handle.history()) == 1


def test_no_two_steps_have_the_same_key(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    keys: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("charge:1", lambda: keys.append(flow.key))
        await flow.step("charge", lambda: keys.append(flow.key), undo=lambda _: None)
        raise ValueError("no")

    handle = order.start(id="o")
    sandbox.drain(app)
    handle.retry()
    sandbox.drain(app)
    assert keys == ["o:charge:1:0", "o:charge", "o:charge:1"]


@promises("A worker that has lost its lock cannot record anything")
def test_without_the_lock_nothing_is_recorded(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    taken: list[ActiveJob] = []

    @app.workflow
    async def order(flow: Flow) -> str:
        if not taken:
            taken.append(flow.job)
            sandbox.faults.lose_command("renew", times=None)
            flow.job.token = "another"  # as after its lock had run out, and somebody else had taken it
        return await flow.step("charge", lambda: "paid")

    handle = order.start()
    first, *_ = sandbox.drain(app)
    assert first.outcome == "lost"
    assert handle.history() == []


@promises("A step may have its own retries and its own timeout", "They use no attempt of the workflow")
def test_retries_and_timeouts_of_steps(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    tries: list[int] = []

    def shaky() -> str:
        tries.append(current_step().attempt)
        if len(tries) < 4:
            raise ConnectionError("away")
        return "ok"

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> str:
        return await flow.step("ship", shaky, retry=Retry([60_000, 120_000], max_attempts=5))

    handle = order.start()
    begin = sandbox.now
    runs = sandbox.drain(app, within=timedelta(hours=1))
    assert handle.result() == "ok"
    assert tries == [1, 2, 3, 4]
    assert [run.outcome for run in runs] == ["suspended"] * 3 + ["completed"]
    assert {run.attempt for run in runs} == {1}
    waits = [round((run.at - begin).total_seconds() / 60) for run in runs]
    assert waits[:2] == [0, 1]
    assert handle.history()[0].attempts == 4


@promises("A step may have its own retries and its own timeout")
def test_a_timeout_ends_an_attempt(sandbox: Sandbox) -> None:
    import asyncio

    app = Bunqueue("q")
    tries: list[int] = []

    async def slow() -> str:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "ok"

    @app.workflow
    async def order(flow: Flow) -> str:
        return await flow.step("ship", slow, timeout=10, retry=Retry(on=StepTimeout))

    handle = order.start()
    sandbox.drain(app, within=timedelta(hours=1))
    assert handle.result() == "ok"
    assert "timeout of 10 ms" not in str(handle.history()[0].error)  # it has succeeded since


@promises("A step that fails for good raises `StepFailed`", "If the workflow handles that, the failure is")
def test_a_failure_that_is_handled_is_stored(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    seen: list[tuple[str | None, str, int]] = []

    def decline() -> None:
        ran.append("card")
        raise ValueError("declined")

    @app.workflow
    async def order(flow: Flow) -> str:
        try:
            await flow.step("card", decline)
        except StepFailed as error:
            seen.append((error.step, error.error_type, error.attempts))
            await flow.sleep(days=1)
            return str(error.error)
        return "no"

    handle = order.start()
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == "ValueError: declined"
    assert seen == [("card", "ValueError", 1)] * 2
    assert ran == ["card"]


@promises("If not, the attempt of the workflow fails, and its next attempt runs that step again")
def test_a_failure_that_is_not_handled_fails_the_attempt(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []

    def shaky() -> str:
        ran.append("shaky")
        if len(ran) < 4:
            raise ConnectionError("away")
        return "ok"

    @app.workflow(max_attempts=3, backoff=1_000)
    async def order(flow: Flow) -> str:
        return await flow.step("ship", shaky, retry=Retry(1_000, max_attempts=2))

    handle = order.start()
    runs = sandbox.drain(app, within=DAY)
    assert handle.result() == "ok"
    assert [run.attempt for run in runs if run.outcome == "failed"] == [1]
    cause = next(run.error for run in runs if run.outcome == "failed")
    assert isinstance(cause, StepFailed)
    assert isinstance(cause.__cause__, ConnectionError)


def test_what_is_unrecoverable_ends_the_workflow_at_once(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    class CardStolen(Exception):
        pass

    def steal() -> None:
        raise CardStolen

    def refuse() -> None:
        raise Unrecoverable("no")

    @app.workflow(unrecoverable=[CardStolen], max_attempts=5)
    async def order(flow: Flow, how: str) -> None:
        await flow.step("charge", steal if how == "stolen" else refuse, retry=5)

    handles = [order.start("stolen"), order.start("refused")]
    runs = sandbox.drain(app, within=DAY)
    failed = [run for run in runs if run.outcome == "failed"]
    assert [(run.attempt, run.outcome) for run in failed] == [(1, "failed")] * 2
    assert [handle.state() for handle in handles] == ["failed"] * 2


@promises("A cursor that a step saves is there when the step runs again")
def test_a_cursor_stays(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    seen: list[int] = []

    async def rows(count: int) -> int:
        step = current_step()
        start = step.cursor or 0
        for row in range(start, count):
            seen.append(row)
            await step.save(row + 1)
        return count

    @app.workflow
    async def nightly(flow: Flow) -> int:
        return await flow.step("import", rows, 5)

    handle = nightly.start()
    sandbox.faults.crash_in_report(nth=3, stored=True)
    sandbox.drain(app)
    assert handle.result() == 5
    assert seen == [0, 1, 2, 3, 4]


def test_large_cursors_and_results_are_left_out_of_no_run(sandbox: Sandbox) -> None:
    """A run is given the small ones as it begins, and asks for the others."""
    app = Bunqueue("q")
    size = 300_000

    async def rows() -> int:
        step = current_step()
        if step.cursor is None:
            await step.save("c" * size)
            raise ConnectionError("cut off")
        return len(step.cursor)

    @app.workflow(max_attempts=2, backoff=0)
    async def nightly(flow: Flow) -> list[int]:
        text = await flow.step("text", lambda: "r" * size)
        cursor = await flow.step("import", rows)
        await flow.sleep(days=1)
        return [len(text), cursor]

    handle = nightly.start()
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == [size, size]
    text, *_ = handle.history(max_result=size - 1)
    assert text.size > size
    with pytest.raises(ResultError, match=rf"has {text.size} bytes, and was left out"):
        print(text.result)
    assert handle.history(max_result=text.size)[0].result == "r" * size


def test_a_step_cannot_use_the_flow(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        async def outer() -> None:
            await flow.step("inner", lambda: None)

        await flow.step("outer", outer)

    order.start()
    *_, last = sandbox.drain(app)
    assert isinstance(last.error, StepFailed)
    assert isinstance(last.error.__cause__, WorkflowError)


def test_plain_jobs_have_steps_and_cursors(sandbox: Sandbox) -> None:
    queue = Queue("q")
    ran: list[str] = []

    def load() -> str:
        ran.append("load")
        return "rows"

    def blocking(job: ActiveJob) -> str:
        rows = job.step("load", load)
        if job.attempts == 0:
            raise ConnectionError("once")
        return rows + " loaded"

    async def coroutine(job: ActiveJob) -> str:
        rows = await job.step("load", load)
        if job.attempts == 0:
            raise ConnectionError("once")
        return rows + " loaded"

    for handler in (blocking, coroutine):
        ran.clear()
        job = queue.add("import", backoff=1_000)
        sandbox.drain(handler, within=DAY)
        assert job.result() == "rows loaded"
        assert ran == ["load"]


def test_a_failed_step_of_a_plain_job_is_tried_again(sandbox: Sandbox) -> None:
    queue = Queue("q")
    ran: list[int] = []

    def shaky() -> str:
        ran.append(current_step().attempt)
        if len(ran) < 3:
            raise ConnectionError("away")
        return "ok"

    async def handler(job: ActiveJob) -> str:
        return await job.step("ship", shaky, retry=2)

    job = queue.add("ship", backoff=1_000)
    runs = sandbox.drain(handler, within=DAY)
    assert job.result() == "ok"
    assert ran == [1, 2, 1]
    assert [run.outcome for run in runs] == ["failed", "completed"]


@pytest.mark.parametrize("size", [1 << 20, 70_000])
def test_large_results_are_read_when_they_are_asked_for(sandbox: Sandbox, size: int) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> int:
        data = await flow.step("big", lambda: b"x" * (size - 5))
        await flow.sleep(days=1)
        return len(data)

    handle = order.start()
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == size - 5


@promises(
    "A step result, a cursor or the data of a signal may have 1 MB",
    "Beyond that the command is refused with a code",
)
def test_bounds(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, what: str) -> None:
        if what == "result":
            await flow.step("big", lambda: b"x" * (1 << 20))
        elif what == "state":
            flow.state = "x" * 65_536
        else:
            for number in range(10_001):
                flow.random(f"n{number}")
            await flow.step("one more", lambda: 1)

    for what, words in {
        "result": "at most 1048576 can be stored",
        "state": "flow.state has 65541 bytes, at most 65536",
        "steps": "the workflow has 10000 steps",
    }.items():
        handle = order.start(what)
        *_, last = sandbox.drain(app)
        with pytest.raises(JobFailed, match=words):
            handle.result()
    assert isinstance(last.error, CommandFailed)
    assert (last.error.code, last.error.field, last.error.bound) == ("TOO_MANY_STEPS", "name", 10_000)


@promises("A workflow may lose any number of workers: it continues")
def test_a_worker_may_die_in_every_step(sandbox: Sandbox) -> None:
    """Each of them brings the workflow further, so it is not taken for what ends its workers."""
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> int:
        return sum([await flow.step("work", int, str(number)) for number in range(10)])

    handle = order.start()
    sandbox.faults.crash_in_step("work", stored=True, times=10)
    runs = sandbox.drain(app)
    assert [run.outcome for run in runs] == ["crashed"] * 10 + ["completed"]
    assert handle.result() == 45


@pytest.mark.parametrize(
    ("given", "named", "told"),
    [
        ((), {}, ("number", None, "(number: int)")),
        ((1,), {"foo": 1}, ("foo", None, "(number: int)")),
        (("x",), {}, ("number", "'x'", "Expected `int`, got `str`")),
        ((1,), {"id": ""}, ("id", "", None)),
        ((1,), {"id": 5}, ("id", 5, None)),
    ],
)
def test_a_start_that_is_refused_says_which_argument(
    sandbox: Sandbox, given: Any, named: Any, told: tuple[Any, ...]
) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow, number: int) -> None:
        pass

    with pytest.raises(BunqueueError) as caught:
        order.start(*given, **named)
    assert (caught.value.field, caught.value.value, caught.value.bound) == told


@promises("What would come back as text, as a date or a UUID, is refused unless the function is annotated")
@pytest.mark.parametrize("annotated", [True, False])
def test_results_keep_their_types_or_are_refused(sandbox: Sandbox, annotated: bool) -> None:
    app = Bunqueue("q")

    def made() -> UUID:
        return UUID(int=7)

    def undone(_: object) -> Any:
        return UUID(int=7)  # nobody reads it

    @app.workflow(max_attempts=3)
    async def work(flow: Flow) -> str:
        given = await flow.step("id", made if annotated else lambda: {"id": made()})
        await flow.step("undoable", lambda: 1, undo=undone)
        await flow.sleep("pause", minutes=1)
        return type(given).__name__

    handle = work.start()
    sandbox.drain(app, within=timedelta(hours=1))
    if annotated:
        assert handle.result() == "UUID"
    else:
        assert handle.state() == "failed"
        assert "which would arrive as text: give str() of it; or annotate the function" in str(
            handle.job().error
        )
