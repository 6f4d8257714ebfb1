"""The short way of blocking calls: one connection a thread, and the pool for whatever is unusual."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from msgspec import Raw
from support.fake_server import Command, FakeServer, Peer
from support.waiting import eventually

from bunqueue import (
    ConnectionLost,
    ConnectionOptions,
    Queue,
)
from bunqueue.client.connection import blocking_pool as module
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import core, query

T = TypeVar("T")


def run(call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """Block in a thread, while the puppet goes on in this event loop."""
    return asyncio.ensure_future(asyncio.to_thread(call, *arguments))


def push(size: int = 0) -> core.Push:
    return core.Push(queue="q", name="n", data=Raw(b"\xc6" + size.to_bytes(4, "big") + b"x" * size))


class Client(Caller):
    """With what the tests ask."""

    def push(self) -> str:
        return self.call(push(), core.PushReply).id

    def state(self) -> str:
        return self.call(query.GetState(id="j"), query.StateReply).state


@pytest.fixture
async def make(fake: FakeServer, short_way: None) -> AsyncIterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(token: str | None = None, **options: Any) -> Client:
        client = Client(Endpoint(port=fake.port, token=token, options=ConnectionOptions(**options)))
        made.append(client)
        return client

    yield make
    for client in made:
        await run(client.close)


async def test_one_connection_serves_one_call_after_the_other(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    client = make(token="secret")
    for _ in range(5):
        assert await run(client.push) == "job-1"
    assert fake.names() == ["Auth", "Hello", *["PUSH"] * 5]
    assert len(fake.peers) == 1
    assert not client._caller.is_open  # nothing went the long way


async def test_queues_of_one_server_share_lines_until_the_last_is_closed(
    fake: FakeServer, short_way: None
) -> None:
    one, two = Queue("a", port=fake.port), Queue("b", port=fake.port)
    await run(one.add, "n")
    await run(two.add, "n")
    await run(one.close)
    await run(one.close)
    await run(two.add, "n")
    assert len(fake.peers) == 1
    await run(two.close)
    await eventually(lambda: fake.peers[0].reader.at_eof(), "the connection is closed")
    assert fake.port not in {endpoint.port for endpoint in module._shared}
    with pytest.raises(ConnectionLost, match="is closed; open a new one"):
        await run(two.add, "n")


async def test_threads_have_lines_of_their_own_and_share_the_pool_when_there_are_no_more(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    held: list[tuple[Peer, Command]] = []

    async def answer(peer: Peer, command: Command) -> None:
        held.append((peer, command))

    fake.answer = answer
    client = make(pool_size=2)
    calls = [run(client.push) for _ in range(5)]
    await eventually(lambda: len(held) == 5, "all have been sent")
    assert len({id(peer) for peer, _ in held}) == 3
    for peer, command in held:
        peer.reply(command, id="x")
    assert await asyncio.gather(*calls) == ["x"] * 5


async def test_what_waits_at_the_server_takes_the_long_way(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    client = make()
    fake.answer = lambda peer, command: _reply(peer, command, jobs=[], tokens=[])
    await run(client.call, core.PullBatch(queue="q", count=1), core.PullBatchReply)
    assert not client._caller.is_open
    await run(client.call, core.PullBatch(queue="q", count=1, timeout=10), core.PullBatchReply)
    assert client._caller.is_open


async def _reply(peer: Peer, command: Command, **fields: Any) -> None:
    peer.reply(command, **fields)


async def test_a_connection_that_was_lost_while_idle_costs_nothing(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    client = make()
    await run(client.push)
    fake.peers[0].cut()
    assert await run(client.push) == "job-1"
    assert (len(fake.peers), fake.names().count("PUSH")) == (2, 2)
    assert not client._caller.is_open


async def test_nonsense_over_every_line_is_left_to_the_pool(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    nonsense = [b"\0\0\0\1\xc1", b"\xff\xff\xff\xff"]

    async def answer(peer: Peer, command: Command) -> None:
        if nonsense:
            peer.writer.write(nonsense.pop())
        else:
            peer.reply(command, id="j", state="waiting")

    fake.answer = answer
    client = make(pool_size=1)
    assert await run(client.state) == "waiting"
    assert len(fake.peers) == 3  # a line, and two of the pool


async def test_a_line_that_was_silent_for_long_is_not_trusted(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    client = make(ping_interval=50)
    await run(client.push)
    await asyncio.sleep(0.06)  # the interval
    await run(client.push)
    assert len(fake.peers) == 2


async def test_a_call_that_is_interrupted_leaves_no_reply_behind(
    fake: FakeServer, make: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bunqueue.client.connection.blocking_connection import BlockingConnection

    client = make()
    await run(client.push)

    def interrupted(line: BlockingConnection, size: int) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BlockingConnection, "_more", interrupted)
        with pytest.raises(KeyboardInterrupt):  # here: futures and tasks make of it what they want
            client.push()
    assert await run(client.push) == "job-1"
    assert len(fake.peers) == 2


async def test_closing_does_not_cut_off_a_call_under_way(fake: FakeServer) -> None:
    held: list[tuple[Peer, Command]] = []

    async def answer(peer: Peer, command: Command) -> None:
        held.append((peer, command))

    fake.answer = answer
    client = Client(Endpoint(port=fake.port))
    call = run(client.push)
    await eventually(lambda: held, "it was sent")
    await run(client.close)
    held[0][0].reply(held[0][1], id="x")
    assert await call == "x"
    await eventually(lambda: fake.peers[0].reader.at_eof(), "the connection is closed")


def test_no_thread_is_started_for_what_goes_the_short_way(short_way: None) -> None:
    ready, stop = threading.Event(), threading.Event()
    fake = FakeServer()

    async def serve() -> None:
        await fake.start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await fake.stop()

    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    assert ready.wait(60)
    before = set(threading.enumerate())
    with Queue("q", port=fake.port) as queue:
        queue.add("n")
        assert set(threading.enumerate()) == before
    stop.set()
    server.join(60)
    assert not server.is_alive()
