"""Several addresses of one server: the hosts of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.msgpack import decode
from support.fake_server import FakeServer
from support.server import quiet_port
from support.waiting import eventually

from bunqueue import AuthError, ConnectionOptions, ConnectTimeout, Queue
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.pool import Pool
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import core, query


def push() -> core.Push:
    return core.Push(queue="q", name="n")


async def pushed(pool: Pool) -> str:
    return str(decode(await pool.call(push()))["id"])


@pytest.fixture
async def other() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    yield server
    await server.stop()


def endpoint(*ports: int, host: str = "127.0.0.1", **options: Any) -> Endpoint:
    first, *rest = ports
    others = tuple((host, port) for port in rest)
    return Endpoint(port=first, others=others, options=ConnectionOptions(**options))


@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_an_address_without_a_server_costs_no_wait(fake: FakeServer, turn: int) -> None:
    pool = Pool(endpoint(quiet_port(), quiet_port(), fake.port, reconnect_delay=60_000))
    pool._turn = turn
    assert await pushed(pool) == "job-1"
    await pool.close()


async def test_an_unknown_host_is_no_reason_to_give_up(fake: FakeServer) -> None:
    pool = Pool(Endpoint(host="no such host", others=(("127.0.0.1", fake.port),)))
    pool._turn = 0
    assert await pushed(pool) == "job-1"
    await pool.close()


async def test_when_one_dies_the_next_one_is_asked(fake: FakeServer, other: FakeServer) -> None:
    pool = Pool(endpoint(fake.port, other.port, reconnect_delay=60_000))
    pool._turn = 0
    await pool.call(push())
    await fake.stop()
    await pool.call(push())
    assert (fake.names()[-1], other.names()[-1]) == ("PUSH", "PUSH")
    await pool.close()


async def test_a_server_that_says_nothing_is_left(
    fake: FakeServer, other: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue.client.connection.pool.OTHERS_TIMEOUT", 0.1)
    fake.deaf = True
    pool = Pool(endpoint(fake.port, other.port))
    pool._turn = 0
    assert await pushed(pool) == "job-1"
    await pool.close()


async def test_rounds_are_counted_and_all_addresses_are_named() -> None:
    ports = quiet_port(), quiet_port()
    pool = Pool(endpoint(*ports, max_reconnect_attempts=2, reconnect_delay=1))
    with pytest.raises(ConnectTimeout, match=f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"):
        await pool.call(push())
    assert pool._turn >= 4
    await pool.close()


async def test_a_refused_token_is_an_error_when_all_refuse_it(fake: FakeServer, other: FakeServer) -> None:
    async def refuse(peer: Any, command: Any) -> None:
        peer.refuse(command, "Unauthorized")

    fake.answer = other.answer = refuse
    pool = Pool(Endpoint(port=fake.port, others=(("127.0.0.1", other.port),), token="wrong"))
    with pytest.raises(AuthError):
        await pool.call(push())
    await pool.close()


async def test_blocking_calls_go_on_too(fake: FakeServer, other: FakeServer) -> None:
    caller = Caller(endpoint(fake.port, quiet_port(), other.port, reconnect_delay=60_000))

    def ask() -> str:
        return caller.call(query.GetState(id="j"), query.StateReply).state

    fake.answer = other.answer = lambda peer, command: _state(peer, command)
    for _ in range(3):
        assert await asyncio.to_thread(ask) == "waiting"
    await fake.stop()
    assert await asyncio.to_thread(ask) == "waiting"
    await eventually(lambda: "GetState" in other.names(), "the other server is asked")
    await asyncio.to_thread(caller.close)


async def _state(peer: Any, command: Any) -> None:
    peer.reply(command, id="j", state="waiting")


async def test_a_queue_takes_them_in_its_url(fake: FakeServer) -> None:
    queue = Queue("q", url=f"bunqueue://127.0.0.1:{quiet_port()},127.0.0.1:{fake.port}")
    assert (await asyncio.to_thread(queue.add, "n")).id == "job-1"
    await asyncio.to_thread(queue.close)
