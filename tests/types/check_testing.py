"""Types of the test kit: read by mypy and pyright, never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from bunqueue import ActiveJob, Bunqueue, Job, Worker
from bunqueue.testing import Faults, Ran, Sandbox, SandboxError

app = Bunqueue("emails")


@app.job
async def welcome(to: str) -> bool:
    return True


def send(job: ActiveJob) -> None: ...


def looking(bunqueue: Sandbox) -> None:
    assert_type(bunqueue.now, datetime)
    assert_type(bunqueue.now_ms, int)
    assert_type(bunqueue.added("emails"), list[Job])
    assert_type(bunqueue.assert_added("emails", "welcome", {"to": "ada"}, delay=5_000, count=1), Job)
    assert_type(bunqueue.assert_added(welcome), Job)
    assert_type(bunqueue.assert_added(welcome.job("ada")), Job)
    bunqueue.assert_not_added("emails")
    bunqueue.assert_added("emails", dely=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bunqueue.assert_added(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def running(bunqueue: Sandbox) -> None:
    runs = bunqueue.drain({"emails": send}, within=timedelta(hours=1), raising=True)
    assert_type(runs, list[Ran])
    assert_type(runs[0].result, Any)
    assert_type(runs[0].error, BaseException | None)
    assert_type(runs[0].attempt, int)
    bunqueue.drain(app)
    bunqueue.drain(Worker("emails", send))
    bunqueue.advance(timedelta(days=1))
    bunqueue.settle()
    with bunqueue.inline(send):
        welcome.add("ada")
    bunqueue.drain(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def running_coroutines(bunqueue: Sandbox) -> None:
    assert_type(await bunqueue.drain_async(app), list[Ran])
    await bunqueue.advance_async(1_000)
    await bunqueue.settle_async()


def breaking(bunqueue: Sandbox) -> None:
    assert_type(bunqueue.faults, Faults)
    bunqueue.faults.lose_answer("add", nth=2, times=None)
    bunqueue.faults.refuse("ack", "no")
    bunqueue.faults.crash("emails", renewed=True)


def alone() -> None:
    try:
        with Sandbox(start=datetime(2026, 3, 29, tzinfo=UTC)) as bunqueue:
            assert_type(bunqueue, Sandbox)
    except SandboxError as error:
        assert_type(error.code, str)
