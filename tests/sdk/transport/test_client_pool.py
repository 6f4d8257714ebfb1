"""Connections: matching, limits, timeouts, loss, repetition, sharing; the server is a puppet."""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from contextlib import suppress
from typing import Any

import pytest
from msgspec.msgpack import decode
from sdk.transport.conftest import get_through
from support.fake_server import Command, FakeServer, Peer
from support.waiting import eventually

from bunqueue import (
    AsyncQueue,
    AuthError,
    CommandTimeout,
    ConnectionLost,
    ConnectionOptions,
    ConnectTimeout,
)
from bunqueue.client.connection import pool as module
from bunqueue.client.connection import shared_pools
from bunqueue.client.connection.pool import Pool
from bunqueue.client.connection.shared_pools import lease
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import core, query


def push(number: int = 0) -> core.Push:
    return core.Push(queue="q", name=str(number))


def endpoint(fake: FakeServer, token: str | None = None, **options: Any) -> Endpoint:
    return Endpoint(port=fake.port, token=token, options=ConnectionOptions(**options))


async def test_the_port_of_a_web_server_is_called_that() -> None:
    answered = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.append(asyncio.current_task())
        await reader.read(4)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received.")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    pool = Pool(Endpoint(port=port, options=ConnectionOptions(refused_timeout=50)))
    with pytest.raises(ConnectTimeout) as caught:
        await pool.call(push())
    for word in ("speaks HTTP", "TCP port, 6789 unless set"):
        assert word in str(caught.value)
    for word in ("Frame too large", "is the server running"):
        assert word not in str(caught.value)
    await pool.close()
    web.close()
    await asyncio.gather(*answered)


async def test_a_refused_token_is_told_and_not_tried_again_and_again(fake: FakeServer) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        peer.refuse(command, "Invalid token")

    fake.answer = answer
    pool = Pool(endpoint(fake, token="wrong"))
    results = await asyncio.gather(pool.call(push()), pool.call(push()), return_exceptions=True)
    assert [type(result) for result in results] == [AuthError, AuthError]
    assert "token=..." in str(results[0])
    assert "wrong" not in str(results[0])
    assert fake.names() == ["Auth"]
    with pytest.raises(AuthError):  # the next command makes a new attempt: the server may have been set right
        await pool.call(push())
    assert fake.names() == ["Auth", "Auth"]
    await pool.close()


async def test_replies_find_their_commands_in_any_order(fake: FakeServer) -> None:
    held: list[tuple[Peer, Command]] = []

    async def answer(peer: Peer, command: Command) -> None:
        held.append((peer, command))
        if len(held) == 10:
            for peer_, command_ in reversed(held):
                peer_.reply(command_, id=command_["name"])

    fake.answer = answer
    pool = Pool(endpoint(fake))
    replies = await asyncio.gather(*[pool.call(push(number)) for number in range(10)])
    assert [decode(reply)["id"] for reply in replies] == [str(number) for number in range(10)]
    await pool.close()


async def test_never_more_in_flight_than_allowed_and_all_get_through(fake: FakeServer) -> None:
    waiting = most = 0

    async def answer(peer: Peer, command: Command) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)

        def reply() -> None:
            nonlocal waiting
            waiting -= 1
            peer.reply(command, id="x")

        asyncio.get_running_loop().call_later(0.001, reply)

    fake.answer = answer
    pool = Pool(endpoint(fake, pool_size=2, max_in_flight=5))
    await asyncio.gather(*[pool.call(push()) for _ in range(100)])
    assert most <= 10
    assert len(fake.peers) <= 2
    assert fake.names().count("PUSH") == 100
    await pool.close()


@pytest.mark.parametrize(
    ("options", "depth"), [({"max_in_flight": 3}, 3), ({"pipelining": False}, 1)], ids=["few", "one"]
)
async def test_connections_that_carry_little_are_soon_joined_by_others(
    fake: FakeServer, options: dict[str, Any], depth: int
) -> None:
    held: list[tuple[Peer, Command]] = []
    most: dict[int, int] = {}

    async def answer(peer: Peer, command: Command) -> None:
        held.append((peer, command))
        under_way = sum(other is peer for other, _ in held)
        most[id(peer)] = max(most.get(id(peer), 0), under_way)

    fake.answer = answer
    pool = Pool(endpoint(fake, **options))
    calls = [asyncio.ensure_future(pool.call(push())) for _ in range(20)]
    await eventually(lambda: len(held) == 4 * depth, "four connections carry what they may")
    assert set(most.values()) == {depth}
    fake.answer = fake._echo
    for peer, command in held:
        peer.reply(command, id="x")
    await asyncio.gather(*calls)
    await pool.close()


async def test_a_pool_that_is_told_so_does_not_come_back_by_itself(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake, auto_reconnect=False))
    await pool.call(push())
    (connection,) = pool._connections
    fake.peers[0].cut()
    await eventually(lambda: connection.closed, "it is noticed")
    await asyncio.sleep(0.05)  # long enough to connect
    assert len(fake.peers) == 1
    await pool.call(push())
    assert len(fake.peers) == 2
    await pool.close()


async def test_attempts_to_connect_may_be_limited(fake: FakeServer) -> None:
    options = {"reconnect_delay": 1, "max_reconnect_delay": 1, "max_reconnect_attempts": 3}
    pool = Pool(endpoint(fake, command_timeout=3_600_000, **options))
    await pool.call(push())
    await fake.stop()
    with pytest.raises(ConnectTimeout, match="no connection to"):
        await pool.call(push())
    await pool.close()


async def test_one_connection_is_enough_for_little_load(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake))
    for _ in range(20):
        await pool.call(push())
    assert len(fake.peers) == 1
    await pool.close()


async def test_under_load_more_connections_are_opened(fake: FakeServer) -> None:
    gate = asyncio.Event()

    async def answer(peer: Peer, command: Command) -> None:
        asyncio.get_running_loop().create_task(later(peer, command))

    async def later(peer: Peer, command: Command) -> None:
        await gate.wait()
        peer.reply(command, id="x")

    fake.answer = answer
    pool = Pool(endpoint(fake, pool_size=3))
    calls = [asyncio.ensure_future(pool.call(push())) for _ in range(20)]
    await eventually(lambda: len(fake.peers) == 2, "there is a second connection")
    gate.set()
    await asyncio.gather(*calls)
    assert len(fake.peers) == 2
    await pool.close()


async def test_what_was_never_written_is_sent_over_the_next_connection(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake))
    await pool.call(query.GetState(id="j"))
    (connection,) = pool._connections
    calls = [asyncio.ensure_future(pool.call(push())) for _ in range(2)]
    await asyncio.sleep(0)  # the first is written at once, the other at the end of the turn
    assert len(connection.unsent) == 1
    connection.abort("a test")
    with pytest.raises(ConnectionLost):
        await calls[0]
    assert decode(await calls[1])["id"] == "job-1"
    assert fake.names().count("PUSH") <= 2
    assert len(fake.peers) == 2
    await pool.close()


async def test_an_idle_pool_comes_back_by_itself(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake))
    await pool.call(push())
    fake.peers[0].cut()
    await eventually(lambda: len(fake.peers) == 2, "there is a second connection")
    await pool.close()


async def test_a_server_that_never_was_there_is_not_waited_for_as_long_as_one_that_comes_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WORD", 0.0)
    begun = time.monotonic()
    options = ConnectionOptions(refused_timeout=300, command_timeout=3_600_000)
    queue = AsyncQueue("q", host="localhost", port=1, connection=options)
    with pytest.raises(ConnectTimeout, match=r"no connection to localhost:1 .*bunqueue start") as caught:
        await queue.add("x")
    assert time.monotonic() - begun > 0.2
    assert len(traceback.extract_tb(caught.tb)) <= 4  # here, add, and two more
    assert caplog.text.count("no connection to localhost:1 yet") == 1
    await queue.close()


async def test_a_host_that_cannot_be_one_is_an_error_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncQueue("q", host="a..b") as queue:
        with pytest.raises(ConnectTimeout, match=r"no connection to a\.\.b:6789 \("):
            await asyncio.wait_for(queue.add("x"), 60)
    await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_too_many_timeouts_mean_a_dead_connection(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake, command_timeout=100, max_command_timeouts=2, ping_interval=0))
    await get_through(lambda: pool.call(push()))
    (connection,) = pool._connections
    fake.deaf = True
    for _ in range(2):
        assert not connection.closed
        with pytest.raises(CommandTimeout):
            await pool.call(push())
    fake.deaf = False
    await eventually(lambda: connection.closed, "it is given up")
    assert decode(await get_through(lambda: pool.call(push())))["id"] == "job-1"
    await pool.close()


async def test_unanswered_pings_mean_a_dead_connection(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake, ping_interval=100, max_ping_failures=2, max_command_timeouts=0))
    await get_through(lambda: pool.call(push()))
    fake.deaf = True
    stuck = asyncio.ensure_future(pool.call(core.PullBatch(queue="q", count=1, timeout=5000)))
    with pytest.raises(ConnectionLost, match=r"2 pings in a row got no answer"):
        await asyncio.wait_for(stuck, 60)
    assert fake.names().count("Ping") >= 2
    await pool.close()


async def test_pings_come_only_in_silence(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake, ping_interval=100, max_ping_failures=1_000_000))
    await pool.call(push())
    await eventually(lambda: "Ping" in fake.names(), "there was a ping")
    await pool.call(push())
    assert len(fake.peers) == 1
    await pool.close()


async def test_a_cancelled_command_harms_no_other(fake: FakeServer) -> None:
    pool = Pool(endpoint(fake))
    await pool.call(push())
    first, second = (asyncio.ensure_future(pool.call(push(number))) for number in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert decode(await second)["id"] == "job-1"
    assert decode(await pool.call(push()))["id"] == "job-1"
    await pool.close()


async def test_a_closed_pool_says_so(fake: FakeServer) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        pass

    fake.answer = answer
    pool = Pool(endpoint(fake))
    waiting = asyncio.ensure_future(pool.call(push()))
    await eventually(lambda: "PUSH" in fake.names(), "it was sent")
    await pool.close()
    await pool.close()
    for call in (waiting, pool.call(push())):
        with pytest.raises(ConnectionLost, match=r"this client's connection to .* is closed"):
            await call


async def test_queues_of_one_server_share_connections(fake: FakeServer) -> None:
    async with AsyncQueue("a", port=fake.port) as a, AsyncQueue("b", port=fake.port) as b:
        await a.add("x")
        await b.add("x")
        assert len(fake.peers) == 1
        await a.close()
        await b.add("x")
        assert len(fake.peers) == 1
    pools = shared_pools._pools[asyncio.get_running_loop()]
    assert not pools


async def test_other_options_mean_other_connections(fake: FakeServer) -> None:
    one, two = lease(endpoint(fake)), lease(endpoint(fake, pool_size=2))
    await one.call(push())
    await two.call(push())
    assert len(fake.peers) == 2
    await one.close()
    await one.close()
    with pytest.raises(ConnectionLost):
        await one.call(push())
    await two.call(push())
    await two.close()


def test_a_queue_may_be_used_in_one_event_loop_after_the_other() -> None:
    async def talk() -> str:
        fake = FakeServer()
        await fake.start()
        queue = queues.setdefault("q", AsyncQueue("q", port=0))
        queue._caller.endpoint = endpoint(fake)
        job = await queue.add("x")
        await fake.stop()
        return job.id

    queues: dict[str, AsyncQueue] = {}
    assert [asyncio.run(talk()) for _ in range(2)] == ["job-1", "job-1"]


def test_tokens_do_not_show() -> None:
    assert "secret" not in repr(Endpoint(token="secret"))
    assert "secret" not in repr(AsyncQueue("q", token="secret"))
