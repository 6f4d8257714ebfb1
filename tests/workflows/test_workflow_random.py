"""Random workflows with random crashes, compared with the same program in one straight line.

A program is a list of operations: steps that fail before they succeed, with and without undo, sleeps,
signals, children, and several of these at the same time. Its worker dies at random points, just before or
just after what it says is stored. WORKFLOW_EXAMPLES is the number of programs.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bunqueue import Bunqueue, ChildFailed, Flow, Retry
from bunqueue.testing import Sandbox

EXAMPLES = int(os.environ.get("WORKFLOW_EXAMPLES", "100"))
NAMES = st.sampled_from("abc")
HOUR = timedelta(hours=1)

SIMPLE = st.one_of(
    st.tuples(st.just("step"), NAMES, st.integers(0, 2)),
    st.tuples(st.just("undoable"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("sleep"), st.integers(1, 48)),
    st.tuples(st.just("signal"), st.sampled_from("xy")),
    st.tuples(st.just("child"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("value")),
)
OPERATION = st.one_of(SIMPLE, st.tuples(st.just("gather"), st.lists(SIMPLE, min_size=1, max_size=3)))
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


def straight(program: list[Any], number: list[int], signals: Counter[str]) -> list[Any]:
    """What the program gives, without anything between."""
    found: list[Any] = []
    for each in program:
        match each:
            case ("step" | "undoable", name, _):
                number[0] += 1
                found.append(f"{name}{number[0]}")
            case ("signal", name):
                found.append(f"{name}{signals[name]}")
                signals[name] += 1
            case ("child", value, ok):
                found.append(value * 2 if ok else "failed")
            case ("gather", branches):
                found.append([straight([branch], number, signals)[0] for branch in branches])
            case (kind, *_):
                found.append(kind)
    return found


def undoables(program: list[Any], number: list[int]) -> list[str]:
    """What can be undone, in the order in which it was done."""
    found: list[str] = []
    for each in program:
        if each[0] in ("step", "undoable"):
            number[0] += 1
            found += [f"{each[1]}{number[0]}"] if each[0] == "undoable" else []
        elif each[0] == "gather":
            found += undoables(each[1], number)
    return found


def an_app(world: World) -> tuple[Bunqueue, Any]:
    app = Bunqueue("q")

    @app.job(queue="children", max_attempts=1)
    def child(value: int, ok: bool, name: str) -> int:
        world.children[name] += 1
        if not ok:
            raise ValueError("no")
        return value * 2

    async def operate(flow: Flow, each: Any, number: int) -> Any:
        match each:
            case ("step" | "undoable", name, fails):

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
            case ("child", value, ok):
                try:
                    return await flow.run(child, value, ok, f"child-{number}-{value}")
                except ChildFailed:
                    return "failed"
            case ("value",):
                flow.random()
        return each[0]

    @app.workflow(max_attempts=1)
    async def works(flow: Flow, program: list[Any], fails: bool) -> list[Any]:
        found: list[Any] = []
        number = 0
        for each in program:
            if each[0] == "gather":
                branches = []
                for branch in each[1]:
                    number += branch[0] in ("step", "undoable")
                    branches.append(operate(flow, tuple(branch), number))
                found.append(await flow.gather(*branches))
            else:
                number += each[0] in ("step", "undoable")
                found.append(await operate(flow, tuple(each), number))
        if fails:
            raise ValueError("in the end")
        return found

    return app, works


def mended(program: list[Any]) -> list[Any]:
    """One wait for each signal in a gather: which of several takes which signal is not promised."""
    found: list[Any] = []
    for each in program:
        if each[0] == "gather":
            seen: set[Any] = set()
            branches = [b for b in each[1] if b[0] != "signal" or not (b in seen or seen.add(b))]
            found.append(("gather", branches))
        else:
            found.append(each)
    return found


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAM, st.booleans(), CRASHES, st.booleans())
def test_crashes_change_nothing(
    program: list[Any], fails: bool, crashes: list[tuple[int, bool]], early: bool
) -> None:
    program, world = mended(program), World()
    signals: Counter[str] = Counter()
    expected = straight(program, [0], signals)
    app, works = an_app(world)
    with Sandbox() as sandbox:
        handle = works.start(program, fails)
        nth = 0
        for gap, stored in crashes:
            nth += gap
            sandbox.faults.crash_in_report(nth=nth - 2, stored=stored)
        sent = [(name, f"{name}{number}") for name, count in signals.items() for number in range(count)]
        if early:
            for name, data in sent:
                handle.signal(name, data)
        drain(sandbox, app, handle)
        for name, data in [] if early else sent:
            handle.signal(name, data)
            drain(sandbox, app, handle)
        state = handle.state()
        assert state == ("failed" if fails else "completed"), (state, handle.history(), handle.job().error)
        if not fails:
            assert handle.result() == expected
        steps = handle.history()
        assert len({step.name for step in steps}) == len(steps)
        assert [step for step in steps if step.is_open] == []
        check_world(world, program, crashes, fails=fails)


def drain(sandbox: Sandbox, app: Bunqueue, handle: Any) -> None:
    """Until it has ended, or time alone brings it no further."""
    over = ("completed", "failed", "stuck", "waiting-signal")
    sandbox.drain_until(lambda: handle.state() in over, app, within=timedelta(days=60))


def check_world(world: World, program: list[Any], crashes: list[Any], *, fails: bool) -> None:
    """What was recorded did not run again: only a crash may repeat the step that it met."""
    flat = [step for each in program for step in (each[1] if each[0] == "gather" else [each])]
    wanted = {step[2] + 1 for step in flat if step[0] in ("step", "undoable")}
    assert max(world.ran.values(), default=0) <= max(wanted, default=0) + len(crashes)
    children = sum(step[0] == "child" for step in flat)
    assert children <= world.children.total() <= children + len(crashes)
    once = list(dict.fromkeys(world.undone))
    done = undoables(program, [0]) if fails else []
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
        check_world(world, [("step", "a", 0), ("child", 0, True)], [], fails=False)
