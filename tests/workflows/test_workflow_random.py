"""Random workflows with random crashes, compared with the same program in one straight line.

A program is a list of operations: steps that fail before they succeed, with and without undo, sleeps,
signals, broadcasts, children, races, and several of these at the same time, also within one another. Its
worker dies at random points, just before or just after what it says is stored. WORKFLOW_EXAMPLES is the
number of programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import budget

from bunqueue import Bunqueue, ChildFailed, Flow, Retry
from bunqueue.testing import Sandbox

EXAMPLES = budget(25, 1000)
NAMES = st.sampled_from("abc")
HOUR = timedelta(hours=1)

SIMPLE = st.one_of(
    st.tuples(st.just("step"), NAMES, st.integers(0, 2)),
    st.tuples(st.just("undoable"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("sleep"), st.integers(1, 48)),
    st.tuples(st.just("signal"), st.sampled_from("xy")),
    st.tuples(st.just("broadcast"), st.sampled_from("vw")),
    st.tuples(st.just("child"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("race"), st.integers(1, 24), st.integers(25, 48), st.booleans()),
    st.tuples(st.just("first"), st.integers(1, 48)),
    st.tuples(st.just("value")),
)
SOME = st.tuples(st.just("gather"), st.lists(SIMPLE, min_size=1, max_size=3))
MORE = st.tuples(st.just("gather"), st.lists(st.one_of(SIMPLE, SOME), min_size=1, max_size=3))
OPERATION = st.one_of(SIMPLE, SOME, MORE)
PROGRAM = st.lists(OPERATION, max_size=6)
CRASHES = st.lists(st.tuples(st.integers(3, 9), st.booleans()), max_size=4)
"""How many reports come between them, and whether the one that they meet is stored. A job that loses its
worker three times without any progress counts as the cause, and fails: they are not as close as that."""


@dataclass
class World:
    """What the outside has seen."""

    ran: Counter[str] = field(default_factory=Counter)
    """Runs of steps, by their keys."""
    undone: list[str] = field(default_factory=list)
    children: Counter[str] = field(default_factory=Counter)


def leaves(program: list[Any]) -> list[Any]:
    """All operations, those within others as well, in the order in which they begin."""
    found: list[Any] = []
    for each in program:
        found += leaves(each[1]) if each[0] == "gather" else [each]
    return found


def numbered(program: list[Any], numbers: Iterator[int]) -> list[Any]:
    """Steps give different things."""
    found: list[Any] = []
    for each in program:
        match each:
            case ("gather", branches):
                found.append(("gather", numbered(branches, numbers)))
            case ("step" | "undoable", *_):
                found.append((*each, next(numbers)))
            case _:
                found.append(each)
    return found


def straight(program: list[Any], signals: Counter[tuple[str, str]]) -> list[Any]:
    """What the program gives, without anything between."""
    found: list[Any] = []
    for each in program:
        match each:
            case ("step" | "undoable", name, _, number):
                found.append(f"{name}{number}")
            case ("signal" | "broadcast" as kind, name):
                found.append(f"{name}{signals[kind, name]}")
                signals[kind, name] += 1
            case ("child", value, ok):
                found.append(value * 2 if ok else "failed")
            case ("race", _, _, swapped):
                found.append("two" if swapped else "one")
            case ("first", _):
                found.append("good")
            case ("gather", branches):
                found.append(straight(branches, signals))
            case (kind, *_):
                found.append(kind)
    return found


def an_app(world: World) -> tuple[Bunqueue, Any]:
    app = Bunqueue("q")

    @app.job(queue="children", max_attempts=1)
    def child(value: int, ok: bool, name: str) -> int:
        world.children[name] += 1
        if not ok:
            raise ValueError("no")
        return value * 2

    async def operate(flow: Flow, each: Any) -> Any:
        match each:
            case ("step" | "undoable", name, fails, number):

                def work(what: str) -> str:
                    world.ran[flow.key] += 1
                    if world.ran[flow.key] <= fails:
                        raise ConnectionError("away")
                    return what

                undo = world.undone.append if each[0] == "undoable" else None
                retry = Retry(HOUR, max_attempts=9)
                return await flow.step(name, work, f"{name}{number}", retry=retry, undo=undo)
            case ("sleep", hours):
                await flow.sleep("night", hours=hours)
            case ("signal", name):
                return await flow.wait_for(name, str)
            case ("broadcast", name):
                return await flow.wait_for(name, str, key="all")
            case ("child", value, ok):
                try:
                    return await flow.run(child, value, ok, f"child-{value}")
                except ChildFailed:
                    return "failed"
            case ("race", soon, late, swapped):
                one, two = (late, soon) if swapped else (soon, late)
                who, _ = await flow.race(one=flow.sleep("one", hours=one), two=flow.sleep("two", hours=two))
                return who
            case ("first", hours):
                bad = flow.run(child, 0, False, "bad")
                who, _ = await flow.first(bad=bad, good=flow.sleep("good", hours=hours))
                return who
            case ("gather", branches):
                return await flow.gather(*(operate(flow, tuple(branch)) for branch in branches))
            case ("value",):
                flow.random()
        return each[0]

    @app.workflow(max_attempts=1)
    async def works(flow: Flow, program: list[Any], fails: bool) -> list[Any]:
        found = [await operate(flow, tuple(each)) for each in program]
        if fails:
            raise ValueError("in the end")
        return found

    return app, works


def mended(program: list[Any], seen: set[Any] | None = None) -> list[Any]:
    """One wait for each signal in a gather: which of several takes which signal is not promised."""
    found: list[Any] = []
    for each in program:
        if each[0] == "gather":
            found.append(("gather", mended(each[1], set() if seen is None else seen)))
        elif seen is None or each[0] not in ("signal", "broadcast"):
            found.append(each)
        elif each not in seen:
            seen.add(each)
            found.append(each)
    return found


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAM, st.booleans(), CRASHES, st.booleans())
def test_crashes_change_nothing(
    program: list[Any], fails: bool, crashes: list[tuple[int, bool]], early: bool
) -> None:
    program, world = numbered(mended(program), count(1)), World()
    signals: Counter[tuple[str, str]] = Counter()
    expected = straight(program, signals)
    app, works = an_app(world)
    with Sandbox() as sandbox:
        handle = works.start(program, fails)
        nth = 0
        for gap, stored in crashes:
            nth += gap
            sandbox.faults.crash_in_report(nth=nth - 2, stored=stored)
        sent = [(what, f"{what[1]}{number}") for what, many in signals.items() for number in range(many)]
        if early:
            for what, data in sent:
                send(app, handle, what, data)
        drain(sandbox, app, handle)
        for what, data in [] if early else sent:
            send(app, handle, what, data)
            drain(sandbox, app, handle)
        state = handle.state()
        assert state == ("failed" if fails else "completed"), (state, handle.history(), handle.job().error)
        if not fails:
            assert handle.result() == expected
        steps = handle.history()
        assert len({step.name for step in steps}) == len(steps)
        assert [step for step in steps if step.is_open] == []
        check_world(world, program, crashes, fails=fails)


def send(app: Bunqueue, handle: Any, what: tuple[str, str], data: str) -> None:
    kind, name = what
    if kind == "signal":
        handle.signal(name, data)
    else:
        app.broadcast(name, "all", data, keep=timedelta(days=300))


def drain(sandbox: Sandbox, app: Bunqueue, handle: Any) -> None:
    """Until it has ended, or time alone brings it no further."""
    over = ("completed", "failed", "stuck", "waiting-signal")
    sandbox.drain_until(lambda: handle.state() in over, app, within=timedelta(days=60))


def check_world(world: World, program: list[Any], crashes: list[Any], *, fails: bool) -> None:
    """What was recorded did not run again: only a crash may repeat the step that it met."""
    flat = leaves(program)
    wanted = {step[2] + 1 for step in flat if step[0] in ("step", "undoable")}
    assert max(world.ran.values(), default=0) <= max(wanted, default=0) + len(crashes)
    children = sum(step[0] in ("child", "first") for step in flat)
    assert children <= world.children.total() <= children + len(crashes)
    once = list(dict.fromkeys(world.undone))
    done = [f"{step[1]}{step[3]}" for step in flat if step[0] == "undoable"] if fails else []
    assert sorted(once) == sorted(done)
    if not any(each[0] == "gather" for each in program):
        assert once == done[::-1]


@pytest.mark.parametrize(
    "world",
    [
        World(ran=Counter({"o:a": 2}), children=Counter({"c": 1})),  # a step ran again without a crash
        World(children=Counter({"c": 2})),  # so did a child
        World(undone=["b"], children=Counter({"c": 1})),  # something was undone that did not fail
    ],
)
def test_the_check_sees_what_must_not_be(world: World) -> None:
    with pytest.raises(AssertionError):
        check_world(world, [("step", "a", 0, 1), ("child", 0, True)], [], fails=False)
