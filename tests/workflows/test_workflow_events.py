"""What listeners hear of a workflow: steps, waits, signals, children, undo, and that it is stuck."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import pytest

from bunqueue import AsyncQueueEvents, Bunqueue, Flow, Retry, Undo
from bunqueue.client.connection.endpoint_options import EndpointOptions

PATIENCE = 60_000
OF_WORKFLOWS: Final = ("step", "signalled", "suspended", "undoing", "continued", "failed", "completed")


@pytest.fixture
def queue() -> str:
    return f"orders-{uuid4()}"


async def heard(events: AsyncQueueEvents, last: str) -> list[Any]:
    """What comes up to the event of this type that ends the workflow."""
    found: list[Any] = []
    async for event in events:
        found.append((event.type, *filter(None, (event.step, event.status, event.reason))))
        if event.type == last and (last != "failed" or event.terminal):
            return found
    raise AssertionError("the stream has ended")


async def test_steps_waits_and_signals(where: EndpointOptions, queue: str) -> None:
    app = Bunqueue(queue, **where)

    @app.job(queue=f"{queue}-parts")
    def pack() -> None:
        """Nothing."""

    @app.workflow
    async def order(flow: Flow) -> str:
        await flow.step("charge", lambda: "c")
        await flow.run(pack)
        await flow.wait_for("early")
        await flow.wait_for("late")
        return "done"

    async with AsyncQueueEvents(queue, types=OF_WORKFLOWS, **where) as events, app:
        handle = await order.start_async()
        found = []
        await handle.signal("early")
        async for event in events:
            assert event.job_id == handle.id
            found.append((event.type, *filter(None, (event.step, event.status))))
            if event.type == "suspended" and ("step", "early", "completed") in found:
                break
        await handle.signal("late")
        found += await heard(events, "completed")
    steps = [each for each in found if each[0] not in ("signalled", "suspended")]
    assert steps == [
        ("step", "charge", "completed"),
        ("step", "pack", "completed"),
        ("step", "early", "completed"),
        ("step", "late", "completed"),
        ("completed",),
    ]
    waits = found.index(("suspended",), found.index(("step", "early", "completed")))
    assert waits < found.index(("step", "late", "completed"))
    assert ("signalled", "late", "taken") in found
    assert any(each[:2] == ("signalled", "early") for each in found)


async def test_undo_and_that_it_is_stuck(where: EndpointOptions, queue: str) -> None:
    app = Bunqueue(queue, **where)
    broken = True

    async def refund(charge: str) -> None:
        if broken:
            raise ConnectionError("503")

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.step("charge", lambda: "c", undo=Undo(refund, retry=Retry(10, max_attempts=1)))
        raise ValueError("no")

    async with AsyncQueueEvents(queue, types=OF_WORKFLOWS, **where) as events, app:
        handle = await order.start_async()
        assert await heard(events, "failed") == [
            ("step", "charge", "completed"),
            ("failed",),
            ("undoing", "max_attempts_exceeded"),
            ("step", "undo:charge", "failed"),
            ("failed", "stuck"),
        ]
        assert await handle.state() == "stuck"
        broken = False
        await handle.resume_undo()
        assert await heard(events, "failed") == [("step", "undo:charge", "completed"), ("failed",)]
        assert "ValueError: no" in ((await handle.job()).error or "")


async def test_what_was_cancelled_has_ended_as_cancelled_when_it_is_undone(
    where: EndpointOptions, queue: str
) -> None:
    app = Bunqueue(queue, **where)

    @app.workflow
    async def order(flow: Flow) -> None:
        await flow.step("charge", lambda: "c", undo=lambda charge: None)
        await flow.wait_for("never")

    async with AsyncQueueEvents(queue, types=OF_WORKFLOWS, **where) as events, app:
        handle = await order.start_async()
        async for event in events:
            if event.type == "suspended":
                break
        await handle.cancel("changed my mind")
        assert await heard(events, "failed") == [
            ("failed", "cancelled"),
            ("undoing", "cancelled"),
            ("step", "never", "cancelled"),
            ("step", "undo:charge", "completed"),
            ("failed", "cancelled"),
        ]
