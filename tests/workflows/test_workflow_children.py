"""What is promised of children, and of branches that run at the same time, in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from support.promises import promises

from bunqueue import (
    BlockingFlow,
    Bunqueue,
    ChildFailed,
    Flow,
    FlowJob,
    OptionError,
    Queue,
    ResultError,
    StepFailed,
    Unrecoverable,
)
from bunqueue.testing import Sandbox
from bunqueue.workflow.idle import Watch
from bunqueue.workflow.pending_waits import Park, PendingWaits

DAY = timedelta(days=1)


def packing(app: Bunqueue, ran: list[str]) -> Any:
    @app.job(queue="packing")
    def pack(item: str) -> str:
        ran.append(item)
        if item == "bad":
            raise Unrecoverable("broken")
        return item.upper()

    return pack


@promises("The result of a child may be as large as that of any job")
@pytest.mark.parametrize("size", [70_000, 1_100_000, 20_000_000])
def test_a_result_of_any_size_reaches_the_parent(sandbox: Sandbox, size: int) -> None:
    """More than a step of its own could give: at once, in a later run, and as one of many."""
    app = Bunqueue("q")

    @app.job
    def report(size: int) -> str:
        return "x" * size

    @app.workflow
    async def parent(flow: Flow) -> list[int]:
        one = await flow.run(report, size)
        many = await flow.map(report, [size, 3])
        await flow.sleep(days=1)
        return [len(one), *map(len, many)]

    handle = parent.start()
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == [size, size, 3]
    (step, *_) = handle.history(max_result=1)
    with pytest.raises(ResultError, match="was left out"):
        print(step.result)


@promises("A child is a job or a workflow of any queue", "It is started once, however often its parent runs")
def test_children_are_started_once(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)

    @app.workflow
    async def box(flow: Flow, item: str) -> str:
        return "box of " + await flow.run(pack, item)

    @app.workflow
    async def order(flow: Flow) -> list[Any]:
        first = await flow.run(box, "a")
        foreign = await flow.run(FlowJob("pack", {"item": "f"}, queue="packing"))
        known = await flow.run(pack, "k", child_id="pack-k", step="known")
        await flow.sleep(days=1)
        return [first, foreign, known]

    handle = order.start()
    sandbox.faults.crash_in_step("box", stored=True)
    sandbox.faults.crash_in_step("pack", times=2)
    sandbox.faults.crash_in_step("known", stored=True)
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == ["box of A", "F", "K"]
    assert ran == ["a", "f", "k"]
    assert Queue("packing").handle("pack-k").result() == "K"


@promises("Its result is stored with its parent, and so is its failure", "No attempt of the parent runs a")
def test_a_failed_child_raises(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)

    @app.workflow(max_attempts=3)
    async def order(flow: Flow, handles: bool) -> str:
        try:
            return str(await flow.run(pack, "bad"))
        except ChildFailed as error:
            if not handles:
                raise
            return f"{error.step} {error.child_queue} {error.error}"

    handled, failed = order.start(True), order.start(False)
    sandbox.drain(app, within=DAY)
    assert handled.result() == "pack packing Unrecoverable: broken"
    assert failed.state() == "failed"
    assert failed.job().attempts == 1
    assert ran == ["bad", "bad"]
    failed.retry_from("pack")
    sandbox.drain(app, within=DAY)
    assert ran == ["bad", "bad", "bad"]


@promises("When the parent ends in whatever way, its unfinished children are cancelled")
def test_children_end_with_their_parent(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    pack = packing(app, [])
    slow = pack.options(delay=DAY)

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, how: str) -> None:
        child = asyncio.ensure_future(flow.run(slow, "a"))
        await flow.start(slow, "b", step="detached")
        await asyncio.sleep(0)
        if how == "fails":
            raise ValueError("no")
        if how == "waits":
            await child

    handles = {how: order.start(how) for how in ("fails", "returns", "waits")}
    sandbox.drain(app)
    handles["waits"].cancel()
    states = {how: handle.state() for how, handle in handles.items()}
    assert states == {"fails": "failed", "returns": "completed", "waits": "cancelled"}
    assert Queue("packing").counts().delayed == 3  # those that were started to stay


def test_map_runs_one_for_each_item(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)

    @app.workflow
    async def order(flow: Flow, items: list[str]) -> list[str]:
        return await flow.map(pack, items)

    items = [f"i{number}" for number in range(1_200)]
    handle = order.start(items)
    runs = sandbox.drain(app, limit=2_000)
    assert handle.result() == [item.upper() for item in items]
    assert sorted(ran) == sorted(items)
    assert len([run for run in runs if run.name == "order"]) == 2  # one wait for all


def test_failures_of_map(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)

    @app.workflow
    async def order(flow: Flow, keep: bool) -> list[str]:
        items = ["a", "bad", "c"]
        try:
            found = await flow.map(pack, items, return_exceptions=keep)
        except ChildFailed as error:
            await flow.sleep(days=1)
            return [error.error]
        await flow.sleep(days=1)
        return [each if isinstance(each, str) else type(each).__name__ for each in found]

    kept, raised = order.start(True), order.start(False)
    sandbox.drain(app, within=2 * DAY)
    assert kept.result() == ["A", "ChildFailed", "C"]
    assert raised.result() == ["Unrecoverable: broken"]


# -- at the same time


@promises(
    "`gather` gives the results of its branches in their order", "When one fails, the others are cancelled"
)
def test_gather(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)

    @app.workflow
    async def order(flow: Flow, keep: bool) -> list[Any]:
        async def two() -> str:
            return await flow.run(pack, "x") + await flow.step("y", lambda: "y")

        try:
            found = await flow.gather(
                flow.run(pack, "bad"),
                flow.step("s", lambda: "s"),
                two(),
                flow.run(pack.options(delay=DAY), "slow"),
                return_exceptions=keep,
            )
        except ChildFailed:
            await flow.sleep("then", hours=1)
            return ["failed", [step.status for step in handles[keep].history()]]
        return [str(type(each).__name__) if isinstance(each, Exception) else each for each in found]

    handles = {keep: order.start(keep) for keep in (True, False)}
    sandbox.drain(app, within=2 * DAY)
    assert handles[True].result() == ["ChildFailed", "s", "Xy", "SLOW"]
    failed, statuses = handles[False].result()
    assert failed == "failed"
    assert "cancelled" in statuses  # the slow child
    assert ran.count("slow") == 1


@promises("`race` returns the result of the first branch", "The winner is stored: every later run has")
def test_the_winner_of_a_race_stays(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def order(flow: Flow) -> list[Any]:
        name, value = await flow.race(slow=flow.sleep("slow", hours=2), quick=flow.wait_for("go"))
        first = await flow.first(flow.step("fails", fail), flow.sleep("wins", hours=1))
        with pytest.raises(StepFailed):
            await flow.race(flow.step("fails", fail), flow.sleep("loses", hours=1))
        with pytest.raises(ExceptionGroup, match="no branch has succeeded"):
            await flow.first(flow.step("fails", fail), flow.step("fails", fail))
        await flow.sleep("night", days=1)  # the slow sleep of the race would be over by now
        return [name, value, first]

    handle = order.start()
    sandbox.drain(app)
    handle.signal("go", "now")
    sandbox.drain(app, within=3 * DAY)
    assert handle.result() == ["quick", "now", None]
    statuses = {step.name: step.status for step in handle.history()}
    assert statuses["slow"] == statuses["loses"] == "cancelled"


def test_races_at_the_same_time_keep_their_own_winners(sandbox: Sandbox) -> None:
    """The second of them ends first, and its winner alone is known when the worker dies."""
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> list[str]:
        async def race(one: int, two: int) -> str:
            who, _ = await flow.race(one=flow.sleep("one", hours=one), two=flow.sleep("two", hours=two))
            return str(who)

        return await flow.gather(race(2, 30), race(25, 1))

    handle = order.start()
    sandbox.faults.crash_in_report(nth=3, stored=True)
    sandbox.drain(app, within=timedelta(days=2))
    assert handle.result() == ["one", "two"]
    assert [step for step in handle.history() if step.is_open] == []


@promises("A branch that loses is cancelled", "Its waits end, its children are cancelled")
def test_losers_are_cancelled(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)
    ended: list[str] = []

    @app.workflow
    async def order(flow: Flow) -> Any:
        async def branch() -> None:
            try:
                await flow.wait_for("go")
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        await flow.race(flow.sleep("short", hours=1), branch(), flow.run(pack.options(delay=DAY), "a"))
        return await flow.wait_for("go")

    handle = order.start()
    sandbox.drain(app, within=timedelta(hours=2))
    handle.signal("go", "for the second wait")
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == "for the second wait"
    assert ended == ["cancelled"]
    assert ran == []


@promises("A step with `undo` that runs in it is first run to its end")
async def test_a_step_with_undo_is_not_left_half_done(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []
    goes_on = asyncio.Event()

    async def pay() -> str:
        await goes_on.wait()
        for _ in range(50):  # turns of the loop, for the other one to win
            await asyncio.sleep(0)
        done.append("paid")
        return "charge"

    async def end() -> None:
        goes_on.set()
        raise ValueError("no")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.race(flow.step("pay", pay, undo=done.append), flow.step("end", end))

    handle = await order.start_async()
    await sandbox.drain_async(app)
    assert done == ["paid", "charge"]
    assert await handle.state() == "failed"


@promises("`asyncio.TaskGroup`, `asyncio.gather`, tasks, locks and queues work as in any other code")
def test_tasks_of_asyncio(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)
    runs: list[int] = []

    @app.workflow
    async def order(flow: Flow) -> list[Any]:
        runs.append(1)
        lock, queue = asyncio.Lock(), asyncio.Queue[str]()

        async def produce(item: str) -> None:
            async with lock:
                await flow.sleep(f"sleep {item}", hours=1)
                queue.put_nowait(await flow.run(pack, item))

        async with asyncio.TaskGroup() as group:
            for item in ("a", "b"):
                group.create_task(produce(item))
            both = group.create_task(asyncio.wait([asyncio.ensure_future(flow.step("s", lambda: "s"))]))
            found = [await queue.get(), await queue.get()]
        done, _ = both.result()
        return [*found, *(task.result() for task in done), *await asyncio.gather(flow.run(pack, "c"))]

    handle = order.start()
    sandbox.drain(app, within=DAY)
    assert handle.result() == ["A", "B", "s", "C"]
    assert ran == ["a", "b", "c"]
    assert len(runs) == 6  # two sleeps, three children, and the first


def test_a_task_group_cancels_the_others(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    pack = packing(app, ran)

    @app.workflow
    async def order(flow: Flow) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(flow.run(pack.options(delay=DAY), "slow"))
                group.create_task(flow.run(pack, "bad"))
        except* ChildFailed:
            pass
        await flow.sleep(days=2)
        return "handled"

    handle = order.start()
    sandbox.drain(app, within=3 * DAY)
    assert handle.result() == "handled"
    assert ran == ["bad"]  # the slow one was cancelled, and no later run has started it again
    assert [step.name for step in handle.history()] == ["pack", "pack#2", "sleep"]


@promises("But timeouts of asyncio start again with each run")
async def test_times_of_asyncio_end_with_the_run(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> str:
        async with asyncio.timeout(0.05):
            return str(await flow.wait_for("go"))

    handle = await order.start_async()
    await sandbox.drain_async(app)
    assert await handle.state() == "waiting-signal"


# -- what is no branch

NO_BRANCHES: list[tuple[str, Any, dict[str, Any]]] = [
    ("gather", (5,), {}),
    ("gather", (None, 7), {}),
    ("gather", ([],), {}),
    ("gather", (str,), {}),
    ("race", (5,), {}),
    ("race", (), {"a": 5}),
    ("first", ([],), {}),
    ("first", (), {"a": None}),
]


@pytest.mark.parametrize(("what", "given", "named"), NO_BRANCHES)
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_awaited_is_refused(sandbox: Sandbox, what: str, given: Any, named: Any) -> None:
    """Before any other branch runs, and without a word about coroutines that nobody has awaited."""
    app = Bunqueue("q")
    ran: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> tuple[Any, ...]:
        other = flow.step("other", ran.append, "other")
        more = {**named, "z": other} if named else {}
        try:
            await getattr(flow, what)(*([*given, other] if given else ()), **more)
        except OptionError as error:
            return error.field, repr(error.value), error.bound, str(error)
        raise AssertionError

    handle = order.start()
    sandbox.drain(app)
    field, value, bound, text = handle.result()
    wrong = given[0] if given else named["a"]
    assert (field, value) == (what, repr(wrong))
    assert text.startswith(f"{what}: {wrong!r} cannot be awaited; give calls of flow.step, flow.sleep")
    assert bound in text
    assert ran == []


@pytest.mark.filterwarnings("error")
def test_branches_that_are_none_or_two_in_one_are_refused(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> list[str]:
        said: list[str] = []
        twice = flow.step("twice", int)
        for call in (
            lambda: flow.race(),
            lambda: flow.first(),
            lambda: flow.race(flow.step("a", int), b=flow.step("b", int)),
            lambda: flow.gather(twice, twice),
            lambda: flow.map(FlowJob("pack", {}, queue="packing"), 5),  # type: ignore[arg-type]
        ):
            try:
                await call()
            except OptionError as error:
                said.append(str(error).partition(" object ")[0])
        assert await flow.gather() == []
        return said

    handle = order.start()
    sandbox.drain(app)
    assert handle.result() == [
        "race: give one branch at least",
        "first: give one branch at least",
        "race: give all branches a name, or none",
        "gather: <coroutine",
        "items: 5 is no list; give one, with the argument of each child",
    ]


def test_plain_functions_refuse_what_cannot_be_called(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []

    @app.workflow(max_attempts=1)
    def order(flow: BlockingFlow) -> list[str]:
        said = []
        for call in (
            lambda: flow.gather(lambda: ran.append("ran"), 5),  # type: ignore[arg-type]
            lambda: flow.race(a=5),  # type: ignore[arg-type]
            lambda: flow.first(),
        ):
            try:
                call()
            except OptionError as error:
                said.append(str(error))
        return said

    handle = order.start()
    sandbox.drain(app)
    assert handle.result() == [
        "gather: 5 cannot be called; give functions without arguments, as partial(flow.run, pack, item)",
        "race: 5 cannot be called; give functions without arguments, as partial(flow.run, pack, item)",
        "first: give one branch at least",
    ]
    assert ran == []


# -- what waiting for many costs


async def looks(many: int, how: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tasks and steps a run looks at that waits for so many children beside a step that works."""
    app = Bunqueue(f"many-{how}-{many}", embedded=True, concurrency=many)
    seen, left, over = 0, count(many - 1, -1), asyncio.Event()

    @app.job
    async def child(number: int) -> int:
        await asyncio.sleep(number * 0.0005)  # one after the other, so that the run hears of few at a time
        if not next(left):
            over.set()
        return number

    @app.workflow
    async def parent(flow: Flow) -> int:
        working = asyncio.ensure_future(flow.step("works", over.wait))
        if how == "map":
            found = await flow.map(child, range(many))
        else:
            found = await flow.gather(*(flow.run(child, number) for number in range(many)))
        await working
        return sum(found)

    inside, begin = Watch._inside, PendingWaits._begin

    def count_inside(watch: Watch, *given: Any) -> bool:
        nonlocal seen
        seen += 1
        return inside(watch, *given)

    def count_begin(pending_waits: PendingWaits, park: Park, *given: Any, **more: Any) -> None:
        nonlocal seen
        seen += len(park.names)
        begin(pending_waits, park, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "_inside", count_inside)
        patch.setattr(PendingWaits, "_begin", count_begin)
        async with app:
            handle = await parent.start_async()
            assert await handle.result(timeout=60_000) == sum(range(many))
    return seen


@pytest.mark.parametrize("how", ["map", "gather"])
async def test_each_of_many_children_costs_the_same(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = await looks(800, how, monkeypatch)
    assert 800 <= seen <= 4 * 800, "it grows with the square"


class Counted(dict[int, str]):
    """Numbers and names, and how often they were gone through."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()


async def test_news_of_one_of_many_goes_through_none_of_the_others() -> None:
    pending_waits = PendingWaits(asyncio.get_running_loop(), 0.0, lambda: None)
    names = Counted({number: f"child#{number}" for number in range(500)})
    park = pending_waits.stand(names)
    before = names.times
    for number in range(500):
        pending_waits.wake(number)
        assert await pending_waits.news(park) == {number}
        pending_waits.over(park, number)
    assert names.times == before
    pending_waits.leave(park)
    assert pending_waits.is_empty
