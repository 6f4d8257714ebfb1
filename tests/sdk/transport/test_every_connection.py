"""What a pool and a blocking connection must do alike when a server is slow, away or wrong.

What only one of them does is in `test_client_pool.py` and `test_blocking_pool.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import Raw
from sdk.transport.conftest import get_through
from support.fake_server import Command, FakeServer, Peer
from support.transports import Client, client
from support.waiting import eventually

from bunqueue import (
    AuthError,
    CommandTimeout,
    ConnectionLost,
    ConnectionOptions,
    ConnectTimeout,
    PayloadError,
    ShardUnavailable,
)
from bunqueue.client.connection import pool
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import core, dlq, query
from bunqueue.protocol.commands.server import NEWEST

Make = Callable[..., Client]


@pytest.fixture(params=[False, True], ids=["pool", "blocking"])
async def make(request: pytest.FixtureRequest, fake: FakeServer, short_way: None) -> AsyncIterator[Make]:
    """Makes clients of the puppet with a token and connection options; they are closed after the test."""
    made: list[Client] = []

    def make(token: str | None = None, port: int | None = None, **options: Any) -> Client:
        endpoint = Endpoint(port=port or fake.port, token=token, options=ConnectionOptions(**options))
        made.append(client(endpoint, blocking=request.param))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def push(way: Client, **fields: Any) -> str:
    return (await way.call(core.Push(queue="q", **fields), core.PushReply)).id


async def state(way: Client) -> str:
    return (await way.call(query.GetState(id="j"), query.StateReply)).state


async def cut(peer: Peer, command: Command) -> None:
    """An answer: none, and the end."""
    peer.cut()


async def test_the_greeting_comes_first_and_once(fake: FakeServer, make: Make) -> None:
    way = make(token="secret")
    for _ in range(3):
        assert await push(way) == "job-1"
    assert fake.names() == ["Auth", "Hello", *["PUSH"] * 3]
    auth, hello = fake.commands[:2]
    assert (auth["token"], hello["protocolVersion"]) == ("secret", NEWEST)
    assert hello["capabilities"] == ["pipelining", "idempotent-push"]


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        ("Invalid token", r"refuses this client: Invalid token; give the token"),
        ("token must be a string", r"refuses the token: token must be a string"),
    ],
)
async def test_a_refused_token_is_an_error_at_once(
    fake: FakeServer, make: Make, refusal: str, told: str
) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        peer.refuse(command, refusal)

    fake.answer = answer
    with pytest.raises(AuthError, match=told) as caught:
        await asyncio.wait_for(push(make(token="secret")), 60)
    assert "secret" not in str(caught.value)


async def test_a_server_that_is_not_there_is_an_error_that_says_what_to_do(make: Make) -> None:
    with pytest.raises(ConnectTimeout, match=r"no connection to 127.0.0.1:1 \(.*bunqueue start"):
        await push(make(port=1, refused_timeout=50))


async def test_a_server_that_restarts_is_waited_for(fake: FakeServer, make: Make) -> None:
    """Longer than one that never was there, and for as long as it takes."""
    way = make(refused_timeout=1, reconnect_delay=1, max_reconnect_delay=1)
    await push(way)
    await fake.stop()
    call = asyncio.ensure_future(push(way))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(call), 0.1)  # a hundred times the bound for one that never was
    await fake.start()
    assert await asyncio.wait_for(call, 60) == "job-1"


async def test_a_written_push_whose_connection_is_lost_is_not_repeated(fake: FakeServer, make: Make) -> None:
    fake.answer = cut
    with pytest.raises(
        ConnectionLost, match=r"PUSH for queue 'q'.*unknown, so it was not repeated"
    ) as caught:
        await push(make())
    assert caught.value.address == f"127.0.0.1:{fake.port}"
    assert fake.names().count("PUSH") == 1


async def test_what_may_be_repeated_is_repeated_over_a_new_connection(fake: FakeServer, make: Make) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        if len(fake.peers) == 1:
            peer.cut()
        else:
            peer.reply(command, id="j", state="waiting")

    fake.answer = answer
    assert await state(make()) == "waiting"
    assert fake.names().count("GetState") == 2


@pytest.mark.parametrize(
    ("command", "reply", "advice"),
    [
        (core.Push(queue="q"), core.PushReply, "look before you do it again$"),
        (
            core.Push(queue="q", idempotency_key="k"),
            core.PushReply,
            "it was sent 3 times; whether it was carried out is",
        ),
        (dlq.RetryDlq(queue="q"), dlq.RetriedReply, "it was sent 3 times"),
        (query.GetState(id="j"), query.StateReply, "it was sent 3 times"),
        (
            core.PullBatch(queue="q", count=1),
            core.PullBatchReply,
            "the worker sorts it out over the next one$",
        ),
        (core.AckBatch(ids=["1"]), core.AckBatchReply, "the worker sorts it out over the next one$"),
    ],
    ids=["push", "push with key", "retry", "read", "pull", "ack"],
)
async def test_advice_fits_what_lost_the_connection(
    fake: FakeServer, make: Make, command: Any, reply: Any, advice: str
) -> None:
    fake.answer = cut
    fake.capabilities.append("idempotent-push")
    with pytest.raises(ConnectionLost, match=advice):
        await make().call(command, reply)


async def test_a_command_without_an_answer_times_out(fake: FakeServer, make: Make) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        pass

    way = make(command_timeout=100)
    for call, text in (
        (push, r"PUSH for queue 'q': no answer from .* is unknown"),
        (state, "no answer from"),
    ):
        fake.answer = fake._echo
        await get_through(lambda: push(way))  # now it is connected
        fake.answer = answer
        with pytest.raises(CommandTimeout, match=text) as caught:
            await call(way)
    assert "unknown" not in str(caught.value)


async def test_a_late_reply_is_not_taken_for_the_next_one(fake: FakeServer, make: Make) -> None:
    held: list[tuple[Peer, Command]] = []

    async def answer(peer: Peer, command: Command) -> None:
        held.append((peer, command))

    way = make(command_timeout=100)
    await get_through(lambda: push(way))  # now it is connected
    fake.answer = answer
    with pytest.raises(CommandTimeout):
        await push(way)
    await eventually(lambda: held, "it was read")
    fake.answer = fake._echo
    peer, command = held[0]
    peer.reply(command, id="late")
    assert await get_through(lambda: push(way)) == "job-1"


async def test_a_long_poll_has_its_own_time_on_top(fake: FakeServer, make: Make) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        asyncio.get_running_loop().call_later(0.2, lambda: peer.reply(command, jobs=[]))

    fake.answer = answer
    poll = core.PullBatch(queue="q", count=1, timeout=60_000)
    reply = await make(command_timeout=100).call(poll, core.PullBatchReply)
    assert bytes(reply.jobs) == b"\x90"


async def test_a_server_that_accepts_and_says_nothing_is_a_clear_error(fake: FakeServer, make: Make) -> None:
    fake.deaf = True
    with pytest.raises(ConnectTimeout, match=r"no answer within 0.03 s"):
        await push(make(connect_timeout=30, max_reconnect_attempts=1))


async def test_an_unavailable_shard_is_asked_again(fake: FakeServer, make: Make) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        if fake.names().count("PUSH") < 4:
            peer.refuse(command, "Shard unavailable: restarting")
        else:
            peer.reply(command, id="x")

    fake.answer = answer
    assert await push(make()) == "x"


async def test_a_shard_that_stays_away_is_an_error(
    fake: FakeServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After a short pause comes one that would end too late: the second answer has a minute to arrive.
    pauses = iter((0.01, 3_600.0, 3_600.0, 3_600.0))
    monkeypatch.setattr(pool.random, "uniform", lambda _low, _high: next(pauses) / pool.SHARD_DELAY)

    async def answer(peer: Peer, command: Command) -> None:
        peer.refuse(command, "Shard unavailable")

    fake.answer = answer
    with pytest.raises(ShardUnavailable, match=r"PUSH for queue 'q': Shard unavailable") as caught:
        await push(make(command_timeout=60_000))
    assert caught.value.server_code == "SHARD_UNAVAILABLE"
    assert fake.names().count("PUSH") > 1


async def test_last_words_of_a_server_are_passed_on(fake: FakeServer, make: Make) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        payload = b"\x82\xa2ok\xc2\xa5error\xabtoo noisy!!"
        peer.writer.write(len(payload).to_bytes(4, "big") + payload)
        await peer.writer.drain()
        peer.writer.close()

    fake.answer = answer
    with pytest.raises(ConnectionLost, match=r"the server says: too noisy!!"):
        await push(make())


@pytest.mark.parametrize("nonsense", [b"\0\0\0\1\xc1", b"\xff\xff\xff\xff"], ids=["payload", "length"])
async def test_nonsense_ends_the_connection_and_not_the_client(
    fake: FakeServer, make: Make, nonsense: bytes
) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        if len(fake.peers) == 1:
            peer.writer.write(nonsense)
        else:
            peer.reply(command, id="j", state="waiting")

    fake.answer = answer
    assert await state(make()) == "waiting"
    assert len(fake.peers) == 2


async def test_replies_may_be_large_and_strangers_among_them_are_passed_over(
    fake: FakeServer, make: Make
) -> None:
    async def answer(peer: Peer, command: Command) -> None:
        peer.reply({"reqId": 0}, id="nobody's")
        peer.reply(command, id="x" * 300_000)

    fake.answer = answer
    way = make()
    for _ in range(2):
        assert len(await push(way)) == 300_000


async def test_what_is_too_large_is_not_sent(
    fake: FakeServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue.client.connection.requests.MAX_FRAME", 1000)
    with pytest.raises(PayloadError, match=r"PUSH for queue 'q' has .* a frame holds 1000"):
        await push(make(), data=Raw(b"\xc5\x07\xd0" + b"x" * 2000))
    assert "PUSH" not in fake.names()


async def test_closing_does_not_leave_a_connection_behind(fake: FakeServer, make: Make) -> None:
    way = make()
    await push(way)
    await way.close()
    await eventually(lambda: fake.peers[0].reader.at_eof(), "the connection is closed")
    with pytest.raises(ConnectionLost, match=r"this client's connection to .* is closed; open a new one"):
        await push(way)
