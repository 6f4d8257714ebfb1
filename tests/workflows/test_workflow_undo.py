"""What is promised of undo, of long lives and of versions, in a sandbox."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from support.promises import promises

from bunqueue import Bunqueue, Flow, Queue, Retry, Undo, Unrecoverable
from bunqueue.testing import Sandbox

DAY = timedelta(days=1)


@promises(
    "When a workflow fails for good or is cancelled, the `undo` of each finished step runs",
    "The job has ended, as failed or cancelled, when everything is undone",
)
@pytest.mark.parametrize("how", ["fails", "cancelled"])
def test_finished_steps_are_undone_in_reverse(sandbox: Sandbox, how: str) -> None:
    app = Bunqueue("q")
    done: list[str] = []
    states: list[str] = []

    def undo(what: str) -> None:
        done.append(f"undo {what}")
        states.append(handle.state())

    @app.workflow(max_attempts=2, backoff=1_000)
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=undo)
        await flow.step("plain", lambda: "p")
        await flow.step("b", lambda: "b", undo=undo)
        await flow.wait_for("go")
        raise ValueError("no")

    handle = order.start()
    sandbox.drain(app)
    if how == "cancelled":
        handle.cancel("changed my mind")
    else:
        handle.signal("go")
    sandbox.drain(app, within=DAY)
    assert done == ["undo b", "undo a"]
    assert states == ["active", "active"]
    assert handle.state() == {"fails": "failed", "cancelled": "cancelled"}[how]
    expected = {"fails": "ValueError: no", "cancelled": "changed my mind"}[how]
    assert expected in str(handle.job().error)
    statuses = {step.name: step.status for step in handle.history()}
    assert statuses["undo:a"] == statuses["undo:b"] == "completed"


@promises("Each is a durable step with its own retries")
def test_undo_steps_are_tried_again_and_survive_crashes(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    def undo(what: str) -> None:
        done.append(what)
        if len(done) < 3:
            raise ConnectionError("away")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=Undo(undo, retry=Retry(timedelta(hours=1), max_attempts=3)))
        await flow.step("b", lambda: "b", undo=lambda what: done.append(what) if "b" not in done else 1 / 0)
        raise ValueError("no")

    handle = order.start()
    sandbox.faults.crash_in_step("undo:b", stored=True)
    sandbox.drain(app, within=DAY)
    assert done == ["b", "a", "a"]
    assert handle.state() == "failed"


@promises("A step with `undo` that was cut off is run to its end first")
def test_a_step_that_was_cut_off_is_run_to_its_end(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    @app.workflow
    async def order(flow: Flow) -> None:
        def pay() -> str:
            done.append(flow.key)
            return f"charge {len(done)}"

        await flow.step("charge", pay, undo=done.append)

    handle = order.options(job_id="o").start()
    sandbox.faults.crash_in_step("charge")
    Queue("q").pause()
    sandbox.drain(app)
    Queue("q").resume()
    with pytest.raises(Exception, match="drain: 1 jobs have run"):
        sandbox.drain(app, limit=1)
    handle.cancel()
    sandbox.drain(app)
    assert done == ["o:charge", "o:charge", "charge 2"]
    assert handle.state() == "cancelled"


@promises("If an undo step fails for good, the workflow is `stuck`")
@pytest.mark.parametrize("how", ["retry", "skip", "edit"])
def test_a_stuck_undo_is_for_an_operator(sandbox: Sandbox, how: str) -> None:
    app = Bunqueue("q")
    done: list[str] = []
    works: list[bool] = []

    def undo(what: str) -> None:
        if not works and what != "edited":
            raise Unrecoverable("cannot")
        done.append(what)

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=done.append)
        await flow.step("b", lambda: "b", undo=undo)
        raise ValueError("no")

    handle = order.start()
    sandbox.drain(app, within=DAY)
    assert handle.state() == "stuck"
    assert "b" in str(handle.job().error)
    assert "cannot" in str(handle.job().error)
    if how == "retry":
        works.append(True)
        handle.resume_undo()
    elif how == "skip":
        handle.skip_undo("b")
    else:
        handle.edit_undo("b", "edited")
    sandbox.drain(app, within=DAY)
    assert handle.state() == "failed"
    assert handle.job().error == "ValueError: no"
    assert done == {"retry": ["b", "a"], "skip": ["a"], "edit": ["edited", "a"]}[how]


@promises("A retry after an undo runs the undone steps again", "Other finished steps keep their results")
def test_a_retry_after_an_undo(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    ran: list[str] = []
    fails = [True]

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> str:
        def note() -> str:
            ran.append(flow.key.split(":", 1)[1])
            return "x"

        await flow.step("kept", note)
        await flow.step("undone", note, undo=lambda what: None)
        if fails:
            raise ValueError("no")
        return "done"

    handle = order.start()
    sandbox.drain(app, within=DAY)
    fails.clear()
    handle.retry()
    sandbox.drain(app, within=DAY)
    assert handle.result() == "done"
    assert ran == ["kept", "undone", "undone:1"]


@promises("To find the functions that undo, the code runs again", "Nothing after that step runs")
@pytest.mark.parametrize("how", ["times out", "fails", "cancelled"])
def test_code_behind_the_last_step_does_not_run_to_undo(sandbox: Sandbox, how: str) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    @app.workflow(max_attempts=1, timeout=60_000)
    async def order(flow: Flow) -> None:
        await flow.step("reserve", lambda: "r", undo=done.append)
        done.append("between")
        await flow.step("charge", lambda: "c", undo=done.append)
        done.append("behind")
        if how == "times out":
            sandbox.advance(timedelta(minutes=2))
            await asyncio.sleep(3_600)  # ended at once, as the time is over
        elif how == "cancelled":
            await flow.wait_for("go")
        raise ValueError("no")

    handle = order.start()
    sandbox.drain(app)
    if how == "cancelled":
        handle.cancel()
        sandbox.drain(app)
    assert done == ["between", "behind", "between", "c", "r"]
    assert handle.state() == ("cancelled" if how == "cancelled" else "failed")


@promises("The `timeout` of the workflow does not hold for its undo")
def test_an_undo_may_take_longer_than_the_workflow(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    async def refund(charge: str) -> None:
        sandbox.advance(timedelta(minutes=2))
        await asyncio.sleep(0)  # here it would be cancelled
        done.append(charge)

    @app.workflow(max_attempts=1, timeout=60_000)
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=refund)
        await flow.step("b", lambda: "b", undo=refund)
        raise ValueError("no")

    handle = order.start()
    sandbox.drain(app)
    assert (done, handle.state()) == (["b", "a"], "failed")


@promises("A step that has failed is not run again")
def test_a_step_that_failed_is_not_run_again_to_undo_it(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    @app.workflow(max_attempts=2, backoff=1_000)
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=done.append)
        await flow.step("b", lambda: done.append("bad") or 1 / 0, undo=done.append, retry=2)

    handle = order.start()
    sandbox.drain(app, within=DAY)
    assert done == ["bad"] * 4 + ["a"]
    assert (handle.state(), "division by zero" in str(handle.job().error)) == ("failed", True)


@pytest.mark.parametrize("how", ["edit", "skip", "retry"])
def test_a_step_that_was_cut_off_and_does_not_end_is_for_an_operator(sandbox: Sandbox, how: str) -> None:
    """What else was done is undone. Whether the step has done something is unknown, so it is not dropped."""
    app = Bunqueue("q")
    done: list[str] = []
    calls = count(1)

    async def pay() -> str:
        if next(calls) == 2:
            await asyncio.Event().wait()
        return "paid"

    @app.workflow(max_attempts=1, timeout=3_000)
    async def order(flow: Flow) -> None:
        await flow.step("a", lambda: "a", undo=done.append)
        await flow.step("charge", pay, undo=done.append)

    handle = order.start()
    sandbox.faults.crash_in_step("charge")
    Queue("q").pause()
    sandbox.drain(app)
    Queue("q").resume()
    with pytest.raises(Exception, match="drain: 1 jobs have run"):
        sandbox.drain(app, limit=1)
    handle.cancel()
    sandbox.drain(app)
    assert (handle.state(), done) == ("stuck", ["a"])
    assert "step 'charge' was cut off" in str(handle.job().error)
    if how == "edit":
        handle.edit_undo("charge", "charge 7")
    elif how == "skip":
        handle.skip_undo("charge")
    else:
        handle.resume_undo()
    sandbox.drain(app)
    assert handle.state() == "cancelled"
    assert done == ["a", *{"edit": ["charge 7"], "skip": [], "retry": ["paid"]}[how]]


def test_a_completed_workflow_can_be_undone(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    @app.workflow
    async def order(flow: Flow) -> str:
        return await flow.step("a", lambda: "a", undo=done.append)

    handle = order.start()
    sandbox.drain(app)
    handle.undo()
    sandbox.drain(app)
    assert done == ["a"]
    assert handle.state() == "failed"
    assert "undone by request" in str(handle.job().error)


def test_an_undo_that_the_code_no_longer_has_is_stuck(sandbox: Sandbox) -> None:
    def deploy(undo: Any) -> Bunqueue:
        app = Bunqueue("q")

        @app.workflow(max_attempts=1)
        async def order(flow: Flow) -> None:
            await flow.step("a", lambda: "a", undo=undo)
            await flow.sleep(days=1)
            raise ValueError("no")

        return app

    handle = Queue("q").workflow(Queue("q").add("order", {}, workflow=True, max_attempts=1).id)
    sandbox.drain(deploy(lambda what: None))
    sandbox.drain(deploy(None), within=2 * DAY)
    assert handle.state() == "stuck"
    assert "the code has no step 'a' with an undo" in str(handle.job().error)


def test_branches_that_lost_are_undone_too(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        async def loses() -> None:
            await flow.step("lost", lambda: "lost", undo=done.append)
            await flow.sleep("long", days=1)

        await flow.race(loses(), flow.sleep("short", hours=1))
        await flow.step("after", lambda: "after", undo=done.append)
        raise ValueError("no")

    handle = order.start()
    sandbox.drain(app, within=2 * DAY)
    assert done == ["after", "lost"]
    assert handle.state() == "failed"


# -- long lives, and new code


@promises("`flow.continue_as_new(...)` starts the function again", "The id stays, and so do kept signals")
def test_continue_as_new(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def poll(flow: Flow, page: int, found: list[str]) -> list[str]:
        found.append(await flow.step("read", lambda: f"{flow.key.split(':', 1)[1]}={page}"))
        if page == 3:
            return [*found, str(await flow.wait_for("last"))]
        await flow.sleep(days=1)
        flow.continue_as_new(page + 1, found)

    handle = poll.start(1, [])
    handle.signal("last", "kept")
    sandbox.drain(app, within=5 * DAY)
    assert handle.result() == ["read=1", "read:1=2", "read:2=3", "kept"]
    assert [step.name for step in handle.history()] == ["read", "last"]


@promises('`flow.patched("name")` is true for workflows that had not passed this line yet')
def test_patched(sandbox: Sandbox) -> None:
    def deploy(new: bool) -> Bunqueue:
        app = Bunqueue("q")

        @app.workflow
        async def order(flow: Flow) -> str:
            if new and flow.patched("greeting"):
                way = await flow.step("new", lambda: "new")
            else:
                way = await flow.step("old", lambda: "old")
            await flow.sleep(days=1)
            return way

        return app

    old = Queue("q").add("order", {}, workflow=True)
    sandbox.drain(deploy(new=False))
    young = Queue("q").add("order", {}, workflow=True)
    sandbox.drain(deploy(new=True), within=3 * DAY)
    assert (old.result(), young.result()) == ("old", "new")


@promises("A workflow whose name no worker knows waits for one that does")
def test_unknown_code_waits(sandbox: Sandbox) -> None:
    app, other = Bunqueue("q"), Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> str:
        return "done"

    @other.workflow
    async def another(flow: Flow) -> str:
        return "another"

    handle = order.start()
    sandbox.drain(other)
    assert handle.state() == "delayed"
    assert handle.job().attempts == 0
    sandbox.drain(app, within=DAY)
    assert handle.result() == "done"


def test_state_and_progress(sandbox: Sandbox) -> None:
    app = Bunqueue("q")

    @app.workflow
    async def order(flow: Flow) -> None:
        flow.state = {"page": 1}
        flow.state = {"page": 2}
        await flow.progress(50, "half")
        await flow.step("a", lambda: 1)
        await flow.wait_for("go")
        flow.state = {"page": 3}

    handle = order.start()
    assert handle.query() is None
    sandbox.drain(app)
    assert handle.query() == {"page": 2}
    assert handle.job().progress == 50
    handle.signal("go")
    sandbox.drain(app)
    assert handle.query() == {"page": 3}
    assert handle.state() == "completed"


@promises("Unfinished children are cancelled when the undo of their parent begins, and undo their own steps")
def test_children_undo_their_steps_beside_those_of_their_parent(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    done: list[str] = []

    @app.workflow
    async def child(flow: Flow) -> None:
        await flow.step("of child", lambda: "child", undo=done.append)
        await flow.wait_for("never")

    @app.workflow
    async def ended(flow: Flow) -> None:
        await flow.step("of the one that has ended", lambda: "ended", undo=done.append)

    @app.workflow(max_attempts=1)
    async def parent(flow: Flow) -> None:
        await flow.step("of parent", lambda: "parent", undo=done.append)
        await flow.run(ended)
        await flow.gather(flow.run(child, child_id="child"), flow.wait_for("go"))

    handle = parent.start()
    sandbox.drain(app)
    handle.cancel("changed my mind")
    sandbox.drain(app, within=DAY)
    assert sorted(done) == ["child", "parent"]
    assert (handle.state(), child.handle("child").state()) == ("cancelled", "cancelled")
