"""Which data a signal may have, and which waits are in the code: nothing wrong reaches a workflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel
from support.promises import promises

from bunqueue import BlockingFlow, Bunqueue, CommandFailed, Flow, NotFound, OptionError, ResultError
from bunqueue.client.models.workflows import Delivery
from bunqueue.testing import Sandbox

DAY = timedelta(days=1)


@dataclass
class Approval:
    by: str
    cents: int = 0


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


class Model(BaseModel):
    by: str
    number: Annotated[int, AfterValidator(_even)] = 0


def waiting(app: Bunqueue, kind: Any, **options: Any) -> Any:
    @app.workflow(max_attempts=1, **options)
    async def order(flow: Flow) -> str:
        return repr(await flow.wait_for("approval", kind))

    return order


@promises("Data of the wrong type is refused")
def test_what_does_not_fit_is_refused_where_it_is_sent(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    cases: list[tuple[Any, Any, Any, tuple[str, str, str] | None]] = [
        (bool, True, "yes", ("data", "'yes'", "true or false")),
        (int, 5, 5.5, ("data", "5.5", "an integer")),
        (int, 5, True, ("data", "true", "an integer")),
        (str, "x", None, ("data", "null", "a text")),
        (Approval, {"by": "ada"}, {"cents": 1}, ("data.by", "nothing", "a text")),
        (Approval, Approval("ada", 3), {"by": "ada", "cents": "3"}, ("data.cents", "'3'", "an integer")),
        (list[Approval], [{"by": "ada"}], [{"by": "a"}, {"by": 1}], ("data[1].by", "1", "a text")),
        (bool | None, None, 1, ("data", "1", "true or false or null")),
        (UUID, "b5a1dd0c-1f3c-4b0e-9d3a-0d6a0c3d5c11", "b5", ("data", "'b5'", "a uuid as text")),
        (Decimal, "1.50", [], ("data", "a list", "a decimal as text or a number")),
        (Decimal, 2, "x", ("data", "'x'", "a decimal as text or a number")),
        (datetime, datetime(2026, 1, 1), 5, ("data", "5", "a text")),
        (dict[str, int], {"a": 1}, {"a": "1"}, ("data.a", "'1'", "an integer")),
        (
            Model,
            {"by": "ada", "number": 2},
            {"by": "ada", "number": "x"},
            ("data.number", "'x'", "an integer"),
        ),
        (Any, "anything", None, None),
    ]
    for kind, good, bad, told in cases:
        handle = waiting(app, kind).start()
        sandbox.drain(app)
        if told is not None:
            with pytest.raises(CommandFailed) as caught:
                handle.signal("approval", bad)
            error = caught.value
            assert (error.server_code, error.field, error.value, error.bound) == ("SIGNAL_UNFIT", *told), kind
        assert handle.info().signals == []
        assert handle.signal("approval", good) is True, kind
        sandbox.drain(app)
        assert handle.state() == "completed", kind


@promises(
    "A signal that came before its type was known, or does not fit for other reasons, is set aside",
    "The wait continues for the rest",
)
@pytest.mark.parametrize("plain", [False, True])
def test_what_does_not_fit_is_set_aside(sandbox: Sandbox, plain: bool) -> None:
    app = Bunqueue("q")
    if plain:

        @app.workflow(max_attempts=1)
        def in_thread(flow: BlockingFlow) -> int:
            return flow.wait_for("approval", Model).number

        order: Any = in_thread
    else:

        @app.workflow(max_attempts=1)
        async def in_loop(flow: Flow) -> int:
            return (await flow.wait_for("approval", Model)).number

        order = in_loop
    handle = order.start()
    assert handle.signal("approval", {"number": 8}) is False, "nobody says yet what it has to be"
    assert handle.signal("approval", {"by": "ada", "number": 3}) is False
    sandbox.drain(app)
    assert handle.signal("approval", {"by": "bob", "number": 5}) is True, "no schema says that it is odd"
    sandbox.drain(app)
    assert (handle.state(), handle.job().attempts) == ("waiting-signal", 0)
    early, odd, late = handle.info().signals
    assert (early.data, odd.data, late.data) == (
        {"number": 8},
        *({"by": by, "number": n} for by, n in (("ada", 3), ("bob", 5))),
    )
    assert early.problem == "the data of signal approval is nothing at by, and a text is expected"
    assert "'approval' is not of the type" in str(odd.problem)
    assert "odd" in str(late.problem)
    handle.drop_signal(odd.number)
    with pytest.raises(NotFound, match="keeps no signal of the number"):
        handle.drop_signal(odd.number)
    assert [signal.number for signal in handle.info().signals] == [early.number, late.number]
    handle.signal("approval", {"by": "ada", "number": 4})
    sandbox.drain(app)
    assert handle.result() == 4


def test_a_wait_that_goes_on_still_ends_in_time(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> Any:
        return await flow.wait_for("approval", Model, timeout=DAY, default="nobody")

    handle = order.start()
    sandbox.drain(app)
    handle.signal("approval", {"by": "ada", "number": 1})
    sandbox.drain(app)
    assert handle.state() == "waiting-signal"
    sandbox.drain(app, within=2 * DAY)
    assert handle.result() == "nobody"


def test_signals_that_are_set_aside_are_bounded(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    handle = waiting(app, bool).start()
    for number in range(130):
        handle.signal("approval", number)
    sandbox.drain(app)
    while (signals := handle.info().signals) and signals[0].problem is None:
        sandbox.advance(timedelta(seconds=20))
        sandbox.drain(app)
    handle.signal("approval", True)
    sandbox.drain(app)
    assert handle.result() == "True"


@promises(
    "A program may declare the types of its signals",
    "They hold before anybody waits, and at once after a deploy",
)
def test_what_is_declared_holds_before_anybody_waits(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    order = waiting(app, Any, signals={"approval": Approval, "stop": bool})
    sandbox.drain(app)
    handle = order.start()
    for name, data in (("approval", 5), ("stop", "no")):
        with pytest.raises(CommandFailed, match="is expected"):
            handle.signal(name, data)
    assert handle.signal("approval", {"by": "ada"}) is False
    sandbox.drain(app)
    assert handle.result() == "Approval(by='ada', cents=0)", (
        "as it was declared, though the wait does not say"
    )


def test_a_wait_cannot_contradict_what_is_declared(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    order = waiting(app, int, signals={"approval": bool})
    handle = order.start()
    (run,) = sandbox.drain(app)
    assert isinstance(run.error, OptionError)
    assert "is not what the workflow declares for signal 'approval'" in str(handle.job().error)
    with pytest.raises(TypeError, match="its signal 'approval' has the type Sandbox"):
        waiting(Bunqueue("q"), Any, signals={"approval": Sandbox})
    with pytest.raises(OptionError, match="give a dict of types"):
        waiting(Bunqueue("q"), Any, signals=["approval"])


@promises("A type that only a wait has given holds until")
@pytest.mark.parametrize("declared", [False, True])
def test_a_deploy_may_change_the_type(sandbox: Sandbox, declared: bool) -> None:
    """The workflow waits meanwhile, so what its wait said is not held against the new type."""

    def deploy(kind: Any) -> tuple[Bunqueue, Any]:
        app = Bunqueue("q")
        return app, waiting(app, kind, **({"signals": {"approval": kind}} if declared else {}))

    old, order = deploy(bool)
    handle = order.start()
    sandbox.drain(old)
    sandbox.advance(timedelta(minutes=1))
    new, _ = deploy(Approval)
    sandbox.drain(new)
    if declared:
        with pytest.raises(CommandFailed, match="an object with by is expected"):
            handle.signal("approval", True)
    else:
        assert handle.signal("approval", True) is True
        sandbox.drain(new)
        assert "is not of the type" in str(handle.info().signals[0].problem)
        with pytest.raises(CommandFailed, match="an object with by is expected"):
            handle.signal("approval", True)
    assert handle.signal("approval", {"by": "ada"}) is True
    sandbox.drain(new)
    assert handle.result() == "Approval(by='ada', cents=0)"


@promises("A broadcast skips waits")
def test_a_broadcast_goes_past_what_it_does_not_fit(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def number(flow: Flow) -> int:
        return await flow.wait_for("paid", int, key="a")

    @app.workflow
    async def even(flow: Flow) -> int:
        return (await flow.wait_for("paid", Model, key="a")).number

    @app.workflow
    async def text(flow: Flow) -> str:
        return await flow.wait_for("paid", str, key="a")

    handles = [each.start() for each in (number, even, text)]
    sandbox.drain(app)
    assert app.broadcast("paid", "a", 7) == 1
    sandbox.drain(app)
    assert handles[0].result() == 7
    assert app.broadcast("paid", "a", {"by": "ada", "number": 3}) == 1
    sandbox.drain(app)
    (aside,) = handles[1].info().signals
    assert ("odd" in str(aside.problem), aside.data) == (True, {"by": "ada", "number": 3})
    late = text.start()
    assert app.broadcast("paid", "a", "x") == 1
    sandbox.drain(app)
    assert [each.result() for each in (handles[2], late)] == ["x", "x"], "the late one passed over two others"
    assert late.info().signals == []
    assert app.broadcast("paid", "a", {"by": "ada", "number": 4}) == 1
    sandbox.drain(app)
    assert handles[1].result() == 4


@promises("If nobody waits for the name of a signal, its sender gets the names that are waited for")
def test_a_name_that_nobody_waits_for(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> list[Any]:
        return await flow.gather(flow.wait_for("approval", bool), flow.wait_for("paid", int, key="k"))

    handle = order.start()
    assert handle.send_signal("aproval") == Delivery(False, 1), "it has not begun"
    sandbox.drain(app)
    assert handle.send_signal("payd") == Delivery(False, 2, ["approval", "paid"])
    waits = handle.info().waits
    assert [(wait.signal, wait.key, wait.schema) for wait in waits] == [
        ("approval", None, {"type": "boolean"}),
        ("paid", "k", {"type": "integer"}),
    ]
    assert handle.send_signal("approval", True) == Delivery(True, 2)
    assert handle.send_signal("approval", True) == Delivery(False, 3, ["paid"])


def test_large_data_that_was_left_out_is_not_taken_for_none(sandbox: Sandbox) -> None:
    handle = waiting(Bunqueue("q"), bool).start()
    handle.signal("other", "x" * 5_000)
    (kept,) = handle.info().signals
    with pytest.raises(ResultError, match="was left out"):
        print(kept.data)


# -- waits that are not in the code any more


def deployed(body: Callable[[Flow], Any], **options: Any) -> tuple[Bunqueue, Any]:
    app = Bunqueue("q")

    @app.workflow(name="order", **options)
    async def order(flow: Flow) -> Any:
        return await body(flow)

    return app, order


@promises("A wait that is no longer in the code takes nothing", "If it has taken a signal that was not used")
@pytest.mark.parametrize("seen", [True, False], ids=["the new code has run", "it has not"])
@pytest.mark.parametrize("how", ["renamed", "beside a step", "in a race", "by key"])
def test_a_wait_with_another_name_gets_the_signal(sandbox: Sandbox, how: str, seen: bool) -> None:
    def code(name: str) -> Callable[[Flow], Any]:
        async def body(flow: Flow) -> Any:
            more: dict[str, Any] = {"key": "k"} if how == "by key" else {}
            wait = flow.wait_for("approval", str, name=name, **more)
            if how == "beside a step":
                return (await flow.gather(wait, flow.step("work", lambda: 1)))[0]
            return await flow.race(wait, flow.sleep("late", days=9)) if how == "in a race" else await wait

        return body

    old, order = deployed(code("first"))
    handle = order.start()
    sandbox.drain(old)
    sandbox.advance(timedelta(seconds=1))
    new, _ = deployed(code("second"))
    if seen:
        handle.retry_from("work" if how == "beside a step" else "first")
        if how == "beside a step":
            sandbox.drain(new)
    if how == "by key":
        old.broadcast("approval", "k", "yes")
    else:
        handle.signal("approval", "yes")
    sandbox.drain(new, within=timedelta(seconds=1))
    assert handle.state() == "completed", [(step.name, step.status) for step in handle.history()]
    assert handle.result() == "yes"


def test_a_signal_that_was_used_is_not_given_to_another_wait(sandbox: Sandbox) -> None:
    """The old code had gone on with it, so it is over; that the wait is not in the code changes nothing."""

    async def before(flow: Flow) -> str:
        first = await flow.wait_for("approval", str, name="first")
        await flow.step("ship", lambda: first)
        return await flow.wait_for("approval", str, name="second")

    async def after(flow: Flow) -> str:
        await flow.step("ship", lambda: "?")
        return await flow.wait_for("approval", str, name="third")

    old, order = deployed(before)
    handle = order.start()
    sandbox.drain(old)
    handle.signal("approval", "one")
    sandbox.drain(old)
    new, _ = deployed(after)
    handle.retry_from("second")
    sandbox.drain(new)
    assert handle.state() == "waiting-signal"
    handle.signal("approval", "two")
    sandbox.drain(new)
    assert handle.result() == "two"


def test_a_wait_that_comes_back_is_a_new_one(sandbox: Sandbox) -> None:
    """Old and new code may run a workflow in turns, while both are there."""

    def code(name: str) -> Callable[[Flow], Any]:
        async def body(flow: Flow) -> Any:
            return await flow.race(flow.wait_for("approval", str, name=name), flow.wait_for("poke", int))

        return body

    apps = [deployed(code(name)) for name in ("first", "second")]
    handle = apps[0][1].start()
    for app, _ in (*apps, *apps):
        sandbox.drain(app)
        handle.retry_from("poke") if handle.state() == "waiting-signal" else None
    sandbox.drain(apps[0][0])
    open_ = [wait.step for wait in handle.info().waits if wait.signal == "approval"]
    assert len(open_) == 1, [(step.name, step.status) for step in handle.history()]
    assert handle.signal("approval", "yes") is True
    sandbox.drain(apps[0][0])
    assert handle.result() == "yes"
