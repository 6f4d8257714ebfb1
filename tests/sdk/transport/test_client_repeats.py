"""Pushes whose reply was lost: repeated with their key and age, where the server knows them again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.fake_server import Command, FakeServer, Peer

from bunqueue import AsyncQueue, ConnectionLost, OptionError, Queue
from bunqueue.client.connection import requests

Adder = Callable[..., Any]


@pytest.fixture(params=["asynchronous", "blocking"])
async def queue(request: pytest.FixtureRequest, fake: FakeServer) -> AsyncIterator[Any]:
    """A queue whose methods are awaited, of either kind."""
    fake.capabilities.append("idempotent-push")
    if request.param == "asynchronous":
        async with AsyncQueue("q", port=fake.port) as queue:
            yield queue
        return
    blocking = Queue("q", port=fake.port)
    yield InThread(blocking)
    await asyncio.to_thread(blocking.close)


class InThread:
    """A blocking queue in a thread, while the puppet goes on in the event loop."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Adder:
        method = getattr(self._queue, name)
        return lambda *args, **options: asyncio.to_thread(method, *args, **options)


def cut_first(fake: FakeServer, **reply: Any) -> None:
    """The first push is read and never answered."""

    async def answer(peer: Peer, command: Command) -> None:
        if len(pushes(fake)) == 1:
            await asyncio.sleep(0.05)  # so that it has an age
            peer.cut()
        else:
            peer.reply(command, **reply)

    fake.answer = answer


def pushes(fake: FakeServer) -> list[Command]:
    return [command for command in fake.commands if command["cmd"] in ("PUSH", "PUSHB")]


async def test_a_push_is_repeated_with_its_key_and_its_age(fake: FakeServer, queue: Any) -> None:
    cut_first(fake, id="job-1")
    before = time.monotonic()
    handle = await queue.add("n", {"x": 1})
    took = (time.monotonic() - before) * 1000
    assert (handle.id, handle.created) == ("job-1", True)
    first, second = pushes(fake)
    assert "idempotencyAge" not in first
    assert requests.MARGIN_MS + 50 <= second["idempotencyAge"] <= requests.MARGIN_MS + took
    assert len(first["idempotencyKey"]) == 24
    for each in (first, second):
        each.pop("idempotencyAge", None)
        del each["reqId"]
    assert first == second


async def test_many_jobs_are_repeated_together(fake: FakeServer, queue: Any) -> None:
    cut_first(fake, ids=["a", "b"], existing=[1])
    handles = await queue.add_bulk([("n", 1), ("n", 2)])
    assert [(handle.id, handle.created) for handle in handles] == [("a", True), ("b", False)]
    first, second = pushes(fake)
    assert first["idempotencyKey"] == second["idempotencyKey"]
    assert second["jobs"] == first["jobs"]


async def test_every_push_has_a_key_of_its_own_unless_it_is_given(fake: FakeServer, queue: Any) -> None:
    await queue.add("n")
    await queue.add("n")
    await queue.add("n", idempotency_key="mine")
    keys = [command["idempotencyKey"] for command in pushes(fake)]
    assert keys[2] == "mine"
    assert len(set(keys)) == 3
    for wrong in ("", "x" * 257, 5):
        with pytest.raises(OptionError, match="idempotency_key"):
            await queue.add("n", idempotency_key=wrong)
    assert len(pushes(fake)) == 3


async def test_a_server_that_does_not_know_keys_is_not_asked_twice(fake: FakeServer, queue: Any) -> None:
    fake.capabilities.remove("idempotent-push")
    cut_first(fake, id="job-1")
    with pytest.raises(ConnectionLost, match=r"PUSH for queue 'q'.*unknown, so it was not repeated"):
        await queue.add("n")
    assert len(pushes(fake)) == 1


async def test_an_older_server_in_its_place_is_not_asked_again(fake: FakeServer) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        fake.capabilities = ["pipelining"]
        peer.cut()

    fake.capabilities.append("idempotent-push")
    fake.answer = answer
    async with AsyncQueue("q", port=fake.port) as queue:
        with pytest.raises(ConnectionLost, match=r"an older server took its place.*unknown"):
            await queue.add("n")
    assert len(pushes(fake)) == 1


async def test_a_server_that_cannot_tell_says_so(fake: FakeServer, queue: Any) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        peer.refuse(command, "Outcome unknown: a push that was first sent 9 ms ago may be forgotten; look")

    fake.answer = answer
    with pytest.raises(ConnectionLost, match=r"PUSH for queue 'q': Outcome unknown: .*look, before you add"):
        await queue.add("n")
