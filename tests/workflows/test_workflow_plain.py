"""Plain functions as workflows: they can do all that coroutine functions can, in a sandbox."""

from __future__ import annotations

import inspect
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from bunqueue import (
    BlockingFlow,
    Bunqueue,
    ChildFailed,
    Flow,
    Retry,
    SignalTimeout,
    StepFailed,
    Undo,
    Unrecoverable,
    current_step,
)
from bunqueue.testing import Sandbox, run_with_crashes

HOUR = 3_600_000


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def test_it_has_the_same_calls() -> None:
    ours, theirs = public(BlockingFlow), public(Flow)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        assert type(method) is type(theirs[name]), name
        if inspect.isfunction(method):
            parameters = inspect.signature(theirs[name]).parameters
            assert inspect.signature(method).parameters.keys() == parameters.keys(), name


def test_all_of_them(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    log: list[str] = []

    @app.job(queue="parts", max_attempts=1)
    def part(number: int) -> int:
        if number < 0:
            raise Unrecoverable("negative")
        return number * 10

    @app.workflow(max_attempts=1)
    def works(flow: BlockingFlow, page: int) -> dict[str, Any]:
        if page == 1:
            flow.step("once", log.append, "first page")
            flow.continue_as_new(2)
        found: dict[str, Any] = {"decided": [flow.random(), str(flow.uuid()), flow.now().isoformat()]}
        flow.state = {"page": page}
        flow.progress(50, "half")
        found["state"] = flow.state
        found["patched"] = flow.patched("new")
        found["key"] = flow.step("key", lambda: current_step().key.split(":", 1)[1])
        flow.sleep("night", days=1)
        found["late"] = flow.wait_for("late", str, timeout=HOUR, default="nobody")
        found["approved"] = flow.wait_for("approval", bool)
        found["paid"] = flow.wait_for("paid", dict, key="order 7")
        found["run"] = flow.run(part, 1)
        found["map"] = flow.map(part, range(3))
        found["started"] = flow.start(part, 5, child_id="outlives")
        found["gather"] = flow.gather(partial(flow.run, part, 2), lambda: flow.step("in a thread", int, "3"))
        found["race"] = flow.race(
            quick=partial(flow.sleep, "quick", hours=1), slow=partial(flow.sleep, "slow", days=9)
        )
        found["first"] = flow.first(partial(flow.run, part, -1), partial(flow.step, "good", str, "good"))
        for kind, fails in {
            "step": lambda: flow.step("fails", int, "x", retry=Retry(1, max_attempts=2)),
            "child": lambda: flow.run(part, -1),
            "signal": lambda: flow.wait_for("never", timeout=HOUR),
        }.items():
            with pytest.raises((StepFailed, ChildFailed, SignalTimeout)) as raised:
                fails()
            found[kind] = type(raised.value).__name__
        return found

    handle = works.start(1, id="w")
    app.broadcast("paid", "order 7", {"by": "card"}, keep=99 * 24 * HOUR)
    handle.signal("approval", True)
    sandbox.drain(app)  # until it sleeps
    assert handle.job().progress == 50
    sandbox.drain_until(lambda: handle.state() == "completed", app, within=9 * 24 * HOUR)
    found = handle.result()
    assert handle.query() == found.pop("state") == {"page": 2}
    assert len(found.pop("decided")) == 3
    assert found == {
        "patched": True,
        "key": "key:1",
        "late": "nobody",
        "approved": True,
        "paid": {"by": "card"},
        "run": 10,
        "map": [0, 10, 20],
        "started": "outlives",
        "gather": [20, 3],
        "race": ["quick", None],
        "first": "good",
        "step": "StepFailed",
        "child": "ChildFailed",
        "signal": "SignalTimeout",
    }
    assert log == ["first page"]


def test_a_crash_at_every_point_changes_nothing() -> None:
    app = Bunqueue("q")
    undone: list[str] = []

    @app.job(queue="parts")
    def part(number: int) -> int:
        return number * 10

    @app.workflow(max_attempts=1)
    def order(flow: BlockingFlow, fails: bool) -> list[Any]:
        charge = flow.step("charge", str, "charge", undo=Undo(undone.append, retry=3))
        flow.sleep("night", days=1)
        parts = flow.gather(*(partial(flow.run, part, number) for number in range(2)))
        approved = flow.wait_for("approval", bool)
        if fails:
            raise ValueError("no")
        return [charge, approved, *parts]

    report = run_with_crashes(lambda: order.start(False), app, signals={"approval": True})
    assert report.result == ["charge", True, 0, 10]
    assert report.crashes > 10
    assert undone == []
    report = run_with_crashes(lambda: order.start(True), app, signals={"approval": True})
    assert report.crashes > 10
    assert set(undone) == {"charge"}


def test_a_branch_of_a_function_that_loses_leaves_signals_and_children(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.job
    def pack(item: str) -> str:
        return item

    @app.workflow(max_attempts=1)
    def order(flow: BlockingFlow) -> list[object]:
        first = flow.race(
            step=lambda: flow.step("quick", lambda: "quick"),
            sleep=lambda: flow.sleep("long", days=1),
            signal=lambda: flow.wait_for("paid", name="lost"),
            child=lambda: flow.run(pack.options(delay=timedelta(days=1)), "lamp"),
        )
        return [first, flow.wait_for("paid")]

    handle = order.start()
    sandbox.drain(app)
    handle.signal("paid", "by card")
    sandbox.drain(app)
    assert handle.result() == [["step", "quick"], "by card"]
    found = {step.name: step.status for step in handle.history()}
    lost = {name: status for name, status in found.items() if name in ("long", "lost", "pack")}
    assert lost == dict.fromkeys(lost, "cancelled")
    assert found["paid"] == "completed"
