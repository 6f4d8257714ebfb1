"""Events for a client over a fake socket: whose they are, and what a client costs that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from test_router_connection import Bench, framed

from bunqueue.server.links import shard_protocol as link_protocol


@pytest.fixture(autouse=True)
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    yield loop
    asyncio._set_running_loop(None)
    loop.close()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def event(number: int) -> bytes:
    return framed({"type": "event", "event": {"eventType": "pushed", "n": number}})


def happens(bench: Bench, shard: int, *numbers: int) -> None:
    """A shard tells the bench's client what happened."""
    body = link_protocol.pack_events([77, bench.client.number], [event(number) for number in numbers])
    bench.hub.deliver_events(shard, body)


def seen(bench: Bench) -> list[Any]:
    return [reply["event"].get("n", reply["event"]) for reply in bench.replies()]


def queue_of(bench: Bench, shard: int) -> str:
    return next(name for name in map(str, range(99)) if bench.hub.shards.routes.of_queue(name) == shard)


def subscribe(bench: Bench, shard: int) -> None:
    bench.send({"cmd": "SubscribeEvents", "queue": queue_of(bench, shard)})


def unsubscribed(bench: Bench, shard: int) -> int:
    kinds = [(conn, kind) for conn, kind, _ in bench.links[shard].sent]
    return kinds.count((bench.client.number, link_protocol.UNSUBSCRIBE))


def test_the_command_goes_to_the_shard_of_the_queue_and_events_come_back(bench: Bench) -> None:
    subscribe(bench, 1)
    assert [command["cmd"] for command in bench.forwarded(1)] == ["SubscribeEvents"]
    assert bench.client.in_flight == {1: 1}, "so that the shard hears of its end"
    happens(bench, 1, 1, 2)
    assert seen(bench) == [1, 2]


def test_no_client_gets_what_it_did_not_ask_for(bench: Bench) -> None:
    happens(bench, 0, 1)
    assert seen(bench) == []
    subscribe(bench, 1)
    happens(bench, 0, 2)
    assert seen(bench) == []


def test_unsubscribe_is_answered_here_and_told_to_the_shard(bench: Bench) -> None:
    bench.send({"cmd": "UnsubscribeEvents"})
    subscribe(bench, 1)
    bench.send({"cmd": "UnsubscribeEvents", "reqId": 5})
    happens(bench, 1, 1)
    assert bench.replies() == [{"ok": True}, {"ok": True, "reqId": 5}]
    assert unsubscribed(bench, 1) == 1


def test_another_queue_takes_the_place_of_the_first_even_in_one_read(bench: Bench) -> None:
    first, second = queue_of(bench, 0), queue_of(bench, 1)
    bench.send({"cmd": "SubscribeEvents", "queue": first}, {"cmd": "SubscribeEvents", "queue": second})
    kinds = [kind for _, kind, _ in bench.links[0].sent]
    assert kinds == [link_protocol.COMMANDS_V2, link_protocol.UNSUBSCRIBE]
    happens(bench, 0, 1)
    happens(bench, 1, 2)
    assert seen(bench) == [2]


def test_what_will_be_refused_changes_nothing(bench: Bench) -> None:
    subscribe(bench, 0)
    name = next(n for n in (f"bad name {i}" for i in range(99)) if bench.hub.shards.routes.of_queue(n) == 1)
    bench.send({"cmd": "SubscribeEvents", "queue": name})
    happens(bench, 0, 1)
    assert seen(bench) == [1]
    bench.hub.shards.links[1] = None
    subscribe(bench, 1)
    assert "Shard unavailable" in bench.errors()[0]
    happens(bench, 0, 2)
    assert seen(bench) == [2]


def test_a_client_that_does_not_read_costs_nothing_more_and_is_told_what_it_missed(bench: Bench) -> None:
    subscribe(bench, 1)
    bench.client.pause_writing()
    for number in range(1000):
        happens(bench, 1, number, number)
    assert not bench.transport.written
    bench.client.resume_writing()
    (lost,) = seen(bench)
    assert (lost["eventType"], lost["queue"], lost["count"]) == ("lost", queue_of(bench, 1), 2000)
    happens(bench, 1, 5)
    assert seen(bench) == [5]
    bench.client.pause_writing()
    bench.client.resume_writing()
    assert seen(bench) == [], "nothing was missed since"


def test_a_client_that_reads_again_is_told_nothing_of_a_subscription_that_ended(bench: Bench) -> None:
    subscribe(bench, 1)
    bench.client.pause_writing()
    happens(bench, 1, 1)
    bench.send({"cmd": "UnsubscribeEvents"})
    bench.client.resume_writing()
    assert bench.replies() == [{"ok": True}]


def test_the_death_of_the_shard_ends_the_connections_that_listen_to_it(bench: Bench) -> None:
    """Events may be missing: who connects anew knows that."""
    other, socket = bench.connect()
    subscribe(bench, 1)
    bench.client.deliver(1, 1, 0, framed({"ok": True}))
    bench.hub.link_down(bench.links[1])  # type: ignore[arg-type]
    assert bench.transport.ended == "eof"
    assert bench.client.number not in bench.hub.clients
    assert other.number in bench.hub.clients
    assert not socket.ended


def test_the_envelope_of_events() -> None:
    frames = [event(1), event(2)]
    conns, body = link_protocol.unpack_events(link_protocol.pack_events({3, 0x7FFF_FFFF}, frames))
    assert (set(conns), body) == ({3, 0x7FFF_FFFF}, b"".join(frames))
    assert msgpack.unpackb(link_protocol.split_frames(body)[1])["event"]["n"] == 2


def test_waits_for_jobs_are_among_the_fifty_and_go_to_the_shard_of_the_id(bench: Bench) -> None:
    job_id = "01890000-0000-7001-8000-000000000001"  # slot 1
    bench.send(*[{"cmd": "WaitJob", "id": job_id}] * 60)
    assert len(bench.forwarded(1)) == 50
    assert bench.client.in_flight.slow == 50
    bench.client.deliver(1, 4, 4, b"")
    assert len(bench.forwarded(1)) == 54


def test_waits_with_timeout_zero_are_not(bench: Bench) -> None:
    job_id = "01890000-0000-7001-8000-000000000001"
    bench.send(*[{"cmd": "WaitJob", "id": job_id, "timeout": 0}] * 60)
    assert len(bench.forwarded(1)) == 60
    assert bench.client.in_flight.slow == 0
