"""Circuit breakers as users of the SDK, of apps and of the test kit have them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from bunqueue import (
    ActiveJob,
    Admin,
    AsyncQueue,
    AsyncQueueEvents,
    Breaker,
    Bunqueue,
    NotFound,
    OptionError,
    Queue,
    Worker,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import Sandbox

PAUSE = timedelta(minutes=1)


@pytest.fixture
def queue(where: EndpointOptions) -> Iterator[Queue]:
    with Queue("breakers", **where) as found:
        yield found


def broken(job: ActiveJob) -> None:
    raise ConnectionError("503")


def test_all_that_can_be_done_to_one(queue: Queue, where: EndpointOptions) -> None:
    assert queue.breakers() == []
    with pytest.raises(NotFound):
        queue.trip_breaker()
    made = queue.set_breaker(Breaker(failures=2, pause=PAUSE, rate=0.5, errors=[ConnectionError]), job="call")
    assert (made.queue, made.name, made.state, made.until) == ("breakers", "call", "closed", None)
    assert made.config == {
        "failures": 2,
        "rate": 0.5,
        "window": 60_000,
        "pause": 60_000,
        "maxPause": 600_000,
        "trials": 1,
        "errors": ["ConnectionError"],
    }
    opened = queue.trip_breaker(job="call", pause=timedelta(minutes=5), reason="maintenance")
    assert (opened.state, opened.error, opened.opened) == ("open", "maintenance", 1)
    assert opened.until is not None
    waiting = queue.add("call", 1)
    assert queue.pull() is None
    assert [reason.kind for reason in waiting.why_waiting() if reason.kind != "no-worker"] == ["breaker"]
    changed = queue.set_breaker(job="call")  # as it is by itself; what is open stays open
    assert (changed.state, changed.config["rate"], changed.config["errors"]) == ("open", None, [])
    with Admin(**where) as admin:
        assert [(each.queue, each.name, each.state) for each in admin.list_breakers()] == [
            ("breakers", "call", "open")
        ]
    assert queue.reset_breaker(job="call").state == "closed"
    taken = queue.pull()
    assert taken is not None
    assert taken.job.id == waiting.id
    queue.clear_breaker(job="call")
    queue.clear_breaker(job="call")
    assert queue.breakers() == []


async def test_a_worker_rests_and_tries_again(where: EndpointOptions) -> None:
    started: list[Any] = []

    async def call(job: ActiveJob) -> str:
        started.append(job.data)
        if len(started) < 3:
            raise ConnectionError("503")
        return "done"

    async with (
        AsyncQueue("resting", default_job_options={"max_attempts": 1}, **where) as queue,
        AsyncQueueEvents("resting", types="breaker", **where) as events,
    ):
        await queue.set_breaker(Breaker(failures=2, pause=150))
        handles = await queue.add_bulk([("call", n) for n in range(4)])
        async with Worker("resting", call, concurrency=1, **where):
            assert await handles[3].result() == "done"
        assert started == [0, 1, 2, 3]
        assert (await queue.breakers())[0].state == "closed"
        first, second = await events.next(60_000), await events.next(60_000)
        assert first is not None
        assert second is not None
        assert (first.type, first.status, first.reason) == ("breaker", "open", "ConnectionError: 503")
        assert (second.status, second.name, second.job_id) == ("closed", None, "")


async def test_an_app_declares_them(where: EndpointOptions) -> None:
    app = Bunqueue("declared", breaker=Breaker(failures=100), **where)

    @app.job(max_attempts=1, breaker=Breaker(failures=1, pause=PAUSE), aliases=["old"])
    def call() -> None:
        raise ConnectionError("503")

    @app.job
    def other() -> str:
        return "runs"

    async with app:
        await (await call.add_async()).wait()
        held = await call.add_async()
        assert await (await other.add_async()).result() == "runs"
        assert await held.state() == "waiting"
        found = {each.name: each.state for each in await app.async_queue.breakers()}
        assert found == {None: "closed", "call": "open", "old": "closed"}


@pytest.mark.parametrize(
    ("breaker", "said"),
    [
        (Breaker(failures=0), "failures must be at least 1, not 0"),
        (Breaker(rate=1.5), "rate must be at most 1, not 1.5"),
        (Breaker(pause=0), "pause must be at least 1, not 0"),
        (Breaker(window=timedelta(days=2)), "window must be at most 86,?400,?000, not 172800000"),
        (Breaker(errors=["a b"]), "errors: 'a b' is no class of errors"),
        ({"failures": 3}, "breaker: {'failures': 3} is not allowed; give a bunqueue.Breaker"),
    ],
)
def test_what_is_refused(queue: Queue, breaker: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        queue.set_breaker(breaker)
    with pytest.raises(OptionError, match=said):
        Bunqueue("refused", breaker=breaker)
    with pytest.raises(OptionError, match=said):
        Bunqueue("refused").job(breaker=breaker)(lambda: None)


def test_in_the_test_kit_no_time_passes(bunqueue: Sandbox) -> None:
    queue = Queue("kit")
    queue.set_breaker(Breaker(failures=1, pause=PAUSE))
    queue.add("call", max_attempts=1)
    assert len(bunqueue.drain(broken)) == 1
    job = queue.add("call", max_attempts=1)
    began = bunqueue.now_ms
    assert bunqueue.drain(broken) == []
    assert [(run.id, run.at_ms - began) for run in bunqueue.drain(broken, within=2 * PAUSE)] == [
        (job.id, 60_000)
    ]
