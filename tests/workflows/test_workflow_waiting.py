"""What is promised of sleeps and signals, in a sandbox."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from support.promises import promises
from support.waiting import eventually

from bunqueue import Admin, BlockingFlow, Bunqueue, CommandFailed, Flow, Queue, SignalTimeout, WrongState
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import Sandbox
from bunqueue.testing.engine import FrozenClock

DAY = timedelta(days=1)


@promises("`flow.sleep` and `flow.wait_for` end the run", "The job waits in the state", "It holds no slot")
def test_waits_end_the_run(sandbox: Sandbox) -> None:
    app = Bunqueue("q", concurrency=1)

    @app.job
    async def pack() -> str:
        return "packed"

    @app.workflow
    async def waits(flow: Flow, what: str) -> None:
        if what == "sleep":
            await flow.sleep(days=1)
        elif what == "signal":
            await flow.wait_for("go")
        else:
            await flow.run(pack.options(delay=DAY))

    handles = {what: waits.start(what) for what in ("sleep", "signal", "child")}
    runs = sandbox.drain(app)
    assert [run.outcome for run in runs] == ["suspended"] * 3
    states = {what: handle.state() for what, handle in handles.items()}
    assert states == {"sleep": "delayed", "signal": "waiting-signal", "child": "waiting-children"}
    assert Queue("q").counts().active == 0


@promises("A time that is waited for is stored when it is first asked for")
def test_later_runs_wait_for_what_is_left(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    begin = sandbox.now

    @app.workflow
    async def waits(flow: Flow) -> list[int]:
        first = asyncio.ensure_future(flow.sleep("long", days=3))
        await flow.sleep("short", days=1)
        await flow.step("between", lambda: 1)
        await first
        return [round((sandbox.now - begin).total_seconds() / 86_400)]

    handle = waits.start()
    sandbox.drain(app, within=4 * DAY)
    assert handle.result() == [3]


@promises("A run ends only when everything in it waits", "As long as one branch works, the others wait")
async def test_a_run_goes_on_while_one_branch_works(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    runs: list[str] = []
    seen: list[str] = []

    @app.workflow
    async def both(flow: Flow) -> None:
        runs.append("run")

        async def works() -> None:
            for _ in range(3):
                await flow.step("work", asyncio.sleep, 0.01)
            seen.append(await handle.state())
            await asyncio.sleep(0.01)  # what is no step counts, too
            seen.append(await handle.state())

        async def waits() -> None:
            await flow.wait_for("go")
            seen.append("signalled")

        await flow.gather(works(), waits())

    handle = await both.start_async()
    await sandbox.drain_async(app)
    assert seen == ["active", "active"]
    assert runs == ["run"]
    assert await handle.state() == "waiting-signal"
    await handle.signal("go")
    await sandbox.drain_async(app)
    assert await handle.state() == "completed"
    assert "signalled" in seen


async def test_a_step_that_waits_for_a_lock_works(sandbox: Sandbox) -> None:
    """Whoever holds the lock may be another workflow, or no workflow at all."""
    app = Bunqueue("q")
    runs: list[str] = []
    lock, entered = asyncio.Lock(), asyncio.Event()

    async def locked() -> str:
        entered.set()
        async with lock:
            return "locked"

    @app.workflow
    async def both(flow: Flow) -> str:
        runs.append("run")
        night = asyncio.ensure_future(flow.sleep("night", days=1))
        found = await flow.step("lock", locked)
        await night
        return found

    async def let_go() -> None:
        await entered.wait()
        for _ in range(50):  # turns in which a run that only waits would end
            await asyncio.sleep(0)
        lock.release()

    handle = await both.start_async()
    await lock.acquire()
    await asyncio.gather(sandbox.drain_async(app), let_go())
    assert [step.status for step in await handle.history() if step.name == "lock"] == ["completed"]
    assert runs == ["run"]
    await sandbox.drain_async(app, within=2 * DAY)
    assert await handle.result() == "locked"


@promises("When the clock of the server is set back, all times that are waited for move with it")
def test_the_clock_is_set_back(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> str:
        await flow.sleep(hours=2)
        return str(await flow.wait_for("go", timeout=timedelta(hours=2), default="nobody"))

    handles = [waits.start(), waits.start()]
    sandbox.drain(app)
    jumps = [-36_000_000]
    monkeypatch.setattr(FrozenClock, "check_jump", lambda clock: jumps.pop() if jumps else 0)
    clock = sandbox._engine.clock
    clock._now -= 36_000_000  # ten hours
    sandbox.drain(app, within=timedelta(hours=3))
    assert not jumps
    assert [handle.state() for handle in handles] == ["waiting-signal"] * 2
    jumps.append(-36_000_000)
    clock._now -= 36_000_000
    sandbox.drain(app, within=timedelta(hours=2))
    assert [handle.result() for handle in handles] == ["nobody"] * 2


def test_moments_and_parts_of_durations(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    begin = sandbox.now

    @app.workflow
    async def sleeps(flow: Flow) -> float:
        await flow.sleep("a", 500)
        await flow.sleep("b", timedelta(minutes=1))
        await flow.sleep(hours=1, minutes=1)
        await flow.sleep("until", begin + DAY)
        await flow.sleep(begin)  # which has passed
        return (sandbox.now - begin).total_seconds()

    handle = sleeps.start()
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == 86_400
    assert [step.name for step in handle.history()] == ["a", "b", "sleep", "until", "sleep#2"]


def test_values_are_decided_once(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    seen: list[tuple[object, ...]] = []

    @app.workflow
    async def decides(flow: Flow) -> None:
        seen.append((flow.now(), flow.random(), flow.uuid(), flow.random()))
        await flow.sleep(days=1)

    begin = sandbox.now
    decides.start()
    sandbox.drain(app, within=2 * DAY)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][0] == begin, "in a sandbox, by its clock"


# -- signals


@promises("A signal has a name and data", "It satisfies the oldest wait for its name", "One signal satisfies")
def test_signals_are_taken_in_order(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> list[object]:
        found = [await flow.wait_for("go"), await flow.wait_for("go")]
        return [*found, await flow.wait_for("stop", dict), await flow.wait_for("go")]

    handle = waits.start()
    other = waits.start()
    assert handle.signal("go", 1) is False  # nobody waits yet: it is kept
    assert handle.signal("stop", {"by": "me"}) is False
    sandbox.drain(app)
    assert [kept.name for kept in handle.info().signals] == ["stop"]
    assert handle.signal("go", 2) is True
    sandbox.drain(app)
    assert handle.signal("go", 3) is True
    sandbox.drain(app)
    assert handle.result() == [1, 2, {"by": "me"}, 3]
    assert other.state() == "waiting-signal"


@promises("A wait with a timeout ends when its time is over", "A signal that comes after that is kept")
def test_a_wait_ends_when_its_time_is_over(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> list[object]:
        first = await flow.wait_for("go", timeout=DAY, default="nobody")
        try:
            await flow.wait_for("go", timeout=DAY)
        except SignalTimeout as error:
            second = error.step
        await flow.sleep("later", days=1)
        return [first, second, await flow.wait_for("go")]

    handle = waits.start()
    sandbox.drain(app, within=DAY + timedelta(hours=1))
    sandbox.drain(app, within=DAY)
    handle.signal("go", "late")
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == ["nobody", "go#2", "late"]
    assert [step.status for step in handle.history()] == ["timed-out", "timed-out", "completed", "completed"]


@promises(
    "A broadcast has a name and a key", "It reaches every workflow that waits", "Each workflow gets it once"
)
def test_a_broadcast_reaches_all_that_wait_now_and_later(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow, key: str) -> list[object]:
        first = await flow.wait_for("paid", key=key)
        return [first, await flow.wait_for("paid", key=key, timeout=DAY, default="once")]

    now = [waits.start("a"), waits.start("a"), waits.start("b")]
    sandbox.drain(app)
    assert app.broadcast("paid", "a", 42) == 2
    later = waits.start("a")
    sandbox.drain(app, within=2 * DAY)
    too_late = waits.start("a")
    sandbox.drain(app)
    assert [each.result() for each in (*now[:2], later)] == [[42, "once"]] * 3
    assert now[2].state() == too_late.state() == "waiting-signal"


def test_a_broadcast_may_be_kept_for_less_time_or_repeated(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> object:
        return await flow.wait_for("paid", key="a", name="payment")

    app.broadcast("paid", "a", 1, keep=timedelta(hours=1))
    sandbox.advance(timedelta(hours=2))
    handle = waits.start()
    sandbox.drain(app)
    assert handle.state() == "waiting-signal"
    admin = Admin()
    counts = [admin.broadcast("paid", "a", 2, broadcast_id="one") for _ in range(2)]
    sandbox.drain(app)
    assert counts == [1, 0]
    assert handle.result() == 2
    assert handle.history()[0].name == "payment"


@promises("A wait with a key also takes a signal of its name")
def test_a_wait_with_a_key_takes_signals_of_its_own(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> list[object]:
        return [await flow.wait_for("paid", key="a") for _ in range(2)]

    handle = waits.start()
    handle.signal("paid", "signal")
    sandbox.advance(1_000)
    app.broadcast("paid", "a", "broadcast")
    sandbox.drain(app)
    assert handle.result() == ["signal", "broadcast"]


@promises("A signal that is sent again with the same id")
def test_a_signal_counts_once(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> list[object]:
        return [await flow.wait_for("go"), await flow.wait_for("go", timeout=DAY, default=None)]

    handle = waits.start()
    sandbox.faults.lose_answer("SendSignal")
    handle.signal("go", 1)  # the client repeats it by itself
    handle.signal("go", 1, signal_id="x")
    handle.signal("go", 1, signal_id="x")
    assert len(handle.info().signals) == 2
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == [1, 1]


def test_who_gets_no_signals(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def ends(flow: Flow) -> None: ...

    handle = ends.start()
    sandbox.drain(app)
    with pytest.raises(WrongState, match="has ended"):
        handle.signal("go")
    job = Queue("q").add("plain")
    with pytest.raises(CommandFailed, match="is no workflow"):
        Queue("q").workflow(job.id).signal("go")


def test_too_many_signals(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def waits(flow: Flow) -> None:
        await flow.sleep(days=1)

    handle = waits.start()
    for number in range(1_000):
        handle.signal("go", number)
    with pytest.raises(CommandFailed, match="1000 signals are kept") as raised:
        handle.signal("go")
    assert (raised.value.code, raised.value.bound) == ("TOO_MANY_SIGNALS", 1_000)


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_waits_end_with_their_workflow(where: EndpointOptions, how: str) -> None:
    """As its history says everywhere; from a step before them they are asked for again."""
    app = Bunqueue(f"ends-{how}", **where)

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> str:
        go, stop = (asyncio.ensure_future(flow.wait_for(each, str)) for each in ("go", "stop"))
        if await go == "fail":
            raise ValueError("no")
        return await stop

    async with app:
        handle = await order.start_async()

        async def comes_to(state: str) -> None:
            async def is_there() -> bool:
                return await handle.state() == state

            await eventually(is_there, f"the workflow is {state}")

        await comes_to("waiting-signal")
        if how == "failed":
            await handle.signal("go", "fail")
        else:
            await handle.cancel()
        await comes_to(how)
        steps = {step.name: step for step in await handle.history()}
        assert (steps["stop"].status, steps["stop"].error) == ("cancelled", "its workflow has ended")
        assert steps["stop"].ended_at is not None
        await handle.retry_from("go")
        await comes_to("waiting-signal")
        await handle.signal("go", "on")
        await handle.signal("stop", "in the end")
        assert await handle.result(timeout=60_000) == "in the end"


@promises(
    "`finally` and `except BaseException` around a wait run whenever a run ends there",
    "A step in them runs at the end alone",
)
@pytest.mark.parametrize("plain", [False, True])
def test_a_step_in_finally_runs_at_the_end_alone(sandbox: Sandbox, plain: bool) -> None:
    app = Bunqueue("q")
    said: list[str] = []

    @app.workflow
    async def guarded(flow: Flow) -> bool:
        try:
            await flow.sleep("first", hours=1)
            return await flow.wait_for("go", bool)
        finally:
            said.append("run ends")
            await flow.step("release", said.append, "released")

    @app.workflow
    def plain_one(flow: BlockingFlow) -> bool:
        try:
            flow.sleep("first", hours=1)
            return flow.wait_for("go", bool)
        finally:
            said.append("run ends")
            flow.step("release", said.append, "released")

    handle = (plain_one if plain else guarded).start()
    sandbox.drain(app, within=timedelta(hours=2))
    assert said == ["run ends"] * 2
    handle.signal("go", True)
    sandbox.drain(app)
    assert handle.state() == "completed"
    assert said == ["run ends"] * 3 + ["released"]
