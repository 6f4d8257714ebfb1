"""The short way of blocking calls: one connection a thread, and the pool for whatever is unusual."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from msgspec import Raw
from support.fake_server import Command, FakeServer, Peer
from support.waiting import eventually, wait_until

from bunqueue import (
    AuthError,
    CommandTimeout,
    ConnectionLost,
    ConnectionOptions,
    ConnectTimeout,
    PayloadError,
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
async def make(fake: FakeServer) -> AsyncIterator[Callable[..., Client]]:
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


async def test_queues_of_one_server_share_lines_until_the_last_is_closed(fake: FakeServer) -> None:
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


async def test_a_server_that_restarts_is_waited_for(fake: FakeServer, make: Callable[..., Client]) -> None:
    """Longer than for one that never was there, though the pool has never seen it."""
    client = make(refused_timeout=1)
    await run(client.push)
    await fake.stop()
    call = run(client.push)
    await eventually(lambda: client._caller.is_open, "it goes the long way")
    await asyncio.sleep(0.05)  # longer than one waits for a server that never was there
    assert not call.done()
    await fake.start()
    assert await asyncio.wait_for(call, 10) == "job-1"


async def test_a_written_push_whose_connection_is_lost_is_not_repeated(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    fake.answer = _cut
    client = make()
    with pytest.raises(ConnectionLost, match=r"PUSH for queue 'q'.*unknown, so it was not repeated"):
        await run(client.push)
    assert fake.names().count("PUSH") == 1


async def _cut(peer: Peer, command: Command) -> None:
    peer.cut()


async def test_what_may_be_repeated_is_repeated(fake: FakeServer, make: Callable[..., Client]) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        if len(fake.peers) == 1:
            peer.cut()
        else:
            peer.reply(command, id="j", state="waiting")

    fake.answer = answer
    assert await run(make().state) == "waiting"
    assert fake.names().count("GetState") == 2


async def test_a_late_reply_is_not_taken_for_the_next_one(
    fake: FakeServer, make: Callable[..., Client]
) -> None:
    held: list[tuple[Peer, Command]] = []

    async def answer(peer: Peer, command: Command) -> None:
        held.append((peer, command))

    fake.answer = answer
    client = make(command_timeout=100)
    with pytest.raises(CommandTimeout, match=r"PUSH for queue 'q': no answer .* is unknown"):
        await run(client.push)
    peer, command = held[0]
    peer.reply(command, id="late")
    fake.answer = fake._echo
    assert await run(client.push) == "job-1"
    assert len(fake.peers) == 2


async def test_an_unavailable_shard_is_asked_again(fake: FakeServer, make: Callable[..., Client]) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        if fake.names().count("PUSH") < 4:
            peer.refuse(command, "Shard unavailable: restarting")
        else:
            peer.reply(command, id="x")

    fake.answer = answer
    assert await run(make().push) == "x"


async def test_a_refused_token_is_told(fake: FakeServer, make: Callable[..., Client]) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        peer.refuse(command, "Invalid token")

    fake.answer = answer
    with pytest.raises(AuthError, match=r"refuses this client: Invalid token; give the token"):
        await run(make(token="wrong").push)


async def test_a_server_that_is_not_there_is_told() -> None:
    client = Client(Endpoint(port=1, options=ConnectionOptions(refused_timeout=50)))
    with pytest.raises(ConnectTimeout, match=r"no connection to 127.0.0.1:1 \(.*bunqueue start"):
        await run(client.push)
    await run(client.close)


async def test_last_words_of_a_server_are_passed_on(fake: FakeServer, make: Callable[..., Client]) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        payload = b"\x82\xa2ok\xc2\xa5error\xabtoo noisy!!"
        peer.writer.write(len(payload).to_bytes(4, "big") + payload)
        peer.writer.close()

    fake.answer = answer
    with pytest.raises(ConnectionLost, match=r"the server says: too noisy!!"):
        await run(make().push)


async def test_nonsense_ends_the_connection_and_not_the_client(
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


async def test_replies_may_be_large_and_come_in_pieces(fake: FakeServer, make: Callable[..., Client]) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        peer.reply(command, id="x" * 300_000)
        peer.reply({"reqId": 0}, id="a stray one")

    fake.answer = answer
    client = make()
    for _ in range(2):
        assert len(await run(client.push)) == 300_000


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


async def test_what_is_too_large_is_not_sent(
    fake: FakeServer, make: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue.client.connection.requests.MAX_FRAME", 1000)
    with pytest.raises(PayloadError, match="a frame holds 1000"):
        await run(make().call, push(2000), core.PushReply)
    assert not fake.commands


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


def test_no_thread_is_started_for_what_goes_the_short_way() -> None:
    ready, stop = threading.Event(), threading.Event()
    fake = FakeServer()

    async def serve() -> None:
        await fake.start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await fake.stop()

    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    ready.wait(10)
    before = set(threading.enumerate())
    with Queue("q", port=fake.port) as queue:
        queue.add("n")
        assert set(threading.enumerate()) == before
    stop.set()
    server.join(10)
    wait_until(lambda: not server.is_alive(), "the server has stopped")
