"""One client over a fake socket: what goes to which shard, what is answered, when reading pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.monitoring import ShardFigures
from bunqueue.protocol.framing import MAX_FRAME
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings
from router.clients import connection as module
from router.clients import memory_bounds
from router.clients.connection import ClientConnection
from router.clients.hub import Hub
from router.clients.in_flight import MAX_AHEAD, MAX_BYTES_AHEAD
from router.clients.memory_bounds import PROGRESS, SILENT_SWEEPS, SLOW_SWEEPS


class FakeTransport:
    """What a connection needs of a transport; keeps what was written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.ended = ""
        self.unread = 0

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written += data

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.ended in ("close", "abort")

    def write_eof(self) -> None:
        self.ended = "eof"

    def abort(self) -> None:
        self.ended = "abort"

    def close(self) -> None:
        self.ended = "close"


class FakeLink:
    """A shard that takes everything."""

    epoch, is_local = 0, True

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.full = False
        self.sent: list[tuple[int, int, bytes]] = []
        self.held_back: list[ClientConnection] = []
        self.asker = 0  # of the last gathered command

    def send(self, conn: int, kind: int, frames: list[bytes]) -> None:
        self.sent.append((conn, kind, b"".join(frames)))

    def control(self, kind: int, conn: int = 0, body: bytes = b"") -> None:
        if kind == link_protocol.ASKER:
            self.asker = int.from_bytes(body)
        else:
            self.sent.append((conn, kind, body))

    def throttle(self, client: ClientConnection) -> None:
        self.held_back.append(client)


class Bench:
    """A hub with fake shards, and one client."""

    def __init__(self, shards: int = 2, **settings: Any) -> None:
        self.hub = Hub(Settings(shards=shards, data_dir=":memory:", **settings))
        self.links = [FakeLink(shard) for shard in range(shards)]
        self.hub.shards.links[:] = self.links  # type: ignore[assignment]
        self.client, self.transport = self.connect()

    def connect(self) -> tuple[ClientConnection, FakeTransport]:
        client, transport = ClientConnection(self.hub), FakeTransport()
        client.connection_made(transport)  # type: ignore[arg-type]
        return client, transport

    def send(self, *commands: dict[str, Any]) -> None:
        self.client.data_received(b"".join(map(framed, commands)))

    def settle(self) -> None:
        """Let everybody have his turns."""
        while self.hub.turns.busy:
            turn(asyncio.get_running_loop())

    def replies(self) -> list[Any]:
        """What the client was sent since it was last asked."""
        self.settle()
        frames = link_protocol.split_frames(bytes(self.transport.written))
        self.transport.written.clear()
        return [msgpack.unpackb(frame) for frame in frames]

    def errors(self) -> list[str]:
        return [reply["error"] for reply in self.replies()]

    def forwarded(self, shard: int) -> list[Any]:
        self.settle()
        return [
            msgpack.unpackb(frame)
            for _, _, body in self.links[shard].sent
            for frame in link_protocol.split_frames(body)
        ]


def framed(command: object) -> bytes:
    payload = msgpack.packb(command)
    return len(payload).to_bytes(4, "big") + payload


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(autouse=True)
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs only when a test says so."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    yield loop
    asyncio._set_running_loop(None)
    loop.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop do once what is due."""
    asyncio._set_running_loop(None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    asyncio._set_running_loop(loop)


def push(number: int, queue: str = "") -> dict[str, Any]:
    return {"cmd": "PUSH", "queue": queue or f"q{number % 5}", "data": number, "reqId": number}


SLOW = {"cmd": "PULL", "queue": "q", "timeout": 1000}


# Routing


def test_one_read_gives_one_envelope_a_shard_with_the_frames_as_they_came(bench: Bench) -> None:
    commands = [push(number) for number in range(20)]
    bench.send(*commands)
    assert all(len(link.sent) == 1 for link in bench.links)
    for link in bench.links:
        conn, kind, body = link.sent[0]
        mine = [c for c in commands if bench.hub.shards.routes.of_queue(c["queue"]) == link.shard]
        assert (conn, kind) == (bench.client.number, link_protocol.COMMANDS_V2)
        assert body == b"".join(map(framed, mine))
        assert bench.client.in_flight[link.shard] == len(mine)


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(0, 40))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int], padding: int) -> None:
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    bench = Bench()
    commands = [{**push(number), "pad": "x" * padding * number} for number in range(30)]
    commands[7] = {"cmd": "Nope"}
    data = b"".join(map(framed, commands))
    for cut in cuts:
        if data:
            bench.client.data_received(data[:cut])
        data = data[cut:]
    if data:
        bench.client.data_received(data)
    got = sorted(bench.forwarded(0) + bench.forwarded(1), key=lambda command: command["data"])
    assert got == [c for c in commands if c["cmd"] == "PUSH"]
    assert bench.errors() == ["Unknown command: Nope"]
    asyncio._set_running_loop(None)
    loop.close()


def test_a_large_frame_in_many_pieces_arrives_whole(bench: Bench) -> None:
    command = {"cmd": "PUSH", "queue": "q", "data": "x" * 3_000_000}
    data = framed(command) + framed(push(1))
    for start in range(0, len(data), 250_000):
        bench.client.data_received(data[start : start + 250_000])
    assert sorted(map(len, bench.forwarded(0) + bench.forwarded(1))) == [3, 4]


def test_replies_go_to_the_client_unchanged(bench: Bench) -> None:
    bench.send(push(0), push(0))
    shard = bench.hub.shards.routes.of_queue("q0")
    bench.client.deliver(shard, 2, 0, b"any bytes")
    assert bytes(bench.transport.written) == b"any bytes"
    assert bench.client.in_flight[shard] == 0


def test_a_shard_that_is_down_is_said_to_be(bench: Bench) -> None:
    bench.hub.shards.links[0] = None
    bench.send(*(push(number) for number in range(5)))
    replies = bench.replies()
    assert {reply["error"] for reply in replies} == {"Shard unavailable: shard 0 is restarting, try again"}
    assert len(replies) + len(bench.forwarded(1)) == 5
    assert {reply["reqId"] for reply in replies} | {c["reqId"] for c in bench.forwarded(1)} == set(range(5))


def test_hello_changes_the_shape_of_what_comes_after_it(bench: Bench) -> None:
    bench.send(push(0), {"cmd": "Hello", "protocolVersion": 7}, push(0))
    link = bench.links[bench.hub.shards.routes.of_queue("q0")]
    assert [kind for _, kind, _ in link.sent] == [link_protocol.COMMANDS_V2, link_protocol.COMMANDS_V3]
    assert bench.replies()[0]["protocolVersion"] == 3


@pytest.mark.parametrize(("declared", "agreed"), [(None, 2), (-1, 2), (2, 2), (3, 3), (3.0, 3), (99, 3)])
def test_hello_agrees_on_a_version_both_know(bench: Bench, declared: object, agreed: int) -> None:
    bench.send({"cmd": "Hello", "protocolVersion": declared, "reqId": "h"})
    (reply,) = bench.replies()
    assert (reply["ok"], reply["protocolVersion"], reply["server"], reply["reqId"]) == (
        True,
        agreed,
        "bunqueue",
        "h",
    )
    assert reply["capabilities"] == ["pipelining", "separate-job-name"][: agreed - 1]
    assert bench.client.kind == agreed


def test_without_hello_the_setting_decides() -> None:
    bench = Bench(default_protocol=3)
    bench.send(push(0))
    assert {kind for link in bench.links for _, kind, _ in link.sent} == {3}


# What is refused


def test_before_auth_there_is_nothing_but_auth() -> None:
    bench = Bench(auth_token=("secret",))
    commands = [{"cmd": "Ping"}, push(0), {"cmd": "Hello"}, {"cmd": "Nope"}, {"reqId": 5}, [1]]
    bench.send(*commands)
    replies = bench.replies()
    assert [reply["error"] for reply in replies] == ["Not authenticated"] * 6
    assert replies[4]["reqId"] == 5
    bench.send({"cmd": "Auth", "token": "wrong"}, {"cmd": "Ping"}, {"cmd": "Auth"})
    assert bench.errors() == ["Invalid token", "Not authenticated", "token is required"]
    bench.send({"cmd": "Auth", "token": "secret", "reqId": 1}, {"cmd": "Ping"})
    assert [reply["ok"] for reply in bench.replies()] == [True, True]
    bench.send({"cmd": "Nope"})
    assert bench.errors() == ["Unknown command: Nope"]


def test_auth_on_an_open_server_changes_nothing(bench: Bench) -> None:
    bench.send({"cmd": "Auth", "token": "x"}, push(0))
    assert bench.errors() == ["Invalid token"]
    assert len(bench.forwarded(0) + bench.forwarded(1)) == 1


def test_over_the_rate_limit_the_connection_stays() -> None:
    bench = Bench(rate_limit=3)
    bench.send(push(0), {"cmd": "Nope"}, push(1), {**push(2), "reqId": "over"}, [1])
    replies = bench.replies()
    assert [reply["error"] for reply in replies] == ["Unknown command: Nope", *["Rate limit exceeded"] * 2]
    assert replies[1]["reqId"] == "over"
    assert len(bench.forwarded(0) + bench.forwarded(1)) == 2


def test_a_frame_too_large_ends_the_connection_after_what_came_before() -> None:
    bench = Bench()
    bench.client.data_received(framed({"cmd": "Ping"}) + framed(push(0)) + (MAX_FRAME + 1).to_bytes(4, "big"))
    first, second = bench.replies()
    assert first["ok"]
    assert second["error"] == f"Frame too large: {MAX_FRAME + 1} bytes (max {MAX_FRAME})"
    assert bench.transport.ended == "eof"
    link = bench.links[bench.hub.shards.routes.of_queue("q0")]
    assert [kind for _, kind, _ in link.sent] == [link_protocol.COMMANDS_V2, link_protocol.CLOSED]
    bench.client.data_received(framed(push(0)))
    assert len(link.sent) == 2
    assert not bench.hub.clients


def test_the_largest_frame_is_let_in(bench: Bench) -> None:
    bench.client.data_received(MAX_FRAME.to_bytes(4, "big"))
    assert not bench.transport.ended


def test_much_to_answer_is_answered_in_turns(bench: Bench, loop: asyncio.AbstractEventLoop) -> None:
    many = 10_000
    bench.client.data_received(b"\0\0\0\0" * many + framed(push(0)))
    first = len(link_protocol.split_frames(bytes(bench.transport.written)))
    assert 0 < first < many
    assert not bench.transport.reading
    assert not bench.links[0].sent + bench.links[1].sent
    bench.client.data_received(framed(push(1)))
    assert len(bench.replies()) == many
    assert len(bench.forwarded(0) + bench.forwarded(1)) == 2
    assert bench.client.incoming.rest is None
    assert bench.transport.reading


def test_all_in_line_have_one_slice_in_a_turn_and_who_is_not_is_heard_at_once(
    bench: Bench, loop: asyncio.AbstractEventLoop
) -> None:
    """Slices are of no length here, so a client has one piece in its turn, and one client has a turn."""
    noisy = [bench.connect() for _ in range(20)]
    for client, _ in noisy:
        client.data_received(framed({"cmd": "Ping"}) * 2000)
    written = [len(transport.written) for _, transport in noisy]
    order = []
    while bench.hub.turns.busy:
        turn(loop)
        now = [len(transport.written) for _, transport in noisy]
        came = [place for place, (old, new) in enumerate(zip(written, now, strict=True)) if new > old]
        order += came
        written = now
        bench.send({"cmd": "Ping", "reqId": "quick"})
        assert bench.transport.written, "somebody who asks one thing waits for those in line"
        bench.transport.written.clear()
    assert all(len(link_protocol.split_frames(bytes(to.written))) == 2000 for _, to in noisy)
    assert order[:20] == list(range(20)), "each has a turn before one has another"


def test_no_more_is_sent_to_a_shard_than_it_answers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are counted, and bytes: half of them are answered before more is sent."""
    monkeypatch.setattr(module, "SLICE_S", 0.0)  # else a turn has more commands on a faster machine
    shard = bench.hub.shards.routes.of_queue("q")
    for count, pad in ((10 * MAX_AHEAD, 0), (100, MAX_BYTES_AHEAD // 20)):
        bench.send(
            *[{"cmd": "Count", "queue": "q", "reqId": number, "pad": "x" * pad} for number in range(count)]
        )
        sent = answered = 0
        while answered < count:
            bench.settle()
            sent += len(bench.forwarded(shard))
            bench.links[shard].sent.clear()
            ahead = sent - answered
            assert 0 < ahead == bench.client.in_flight[shard]
            # Beyond MAX_AHEAD comes what one turn routes, which is more on a fast machine.
            assert ahead <= (3 * MAX_AHEAD if not pad else 3 * 20)
            some = max(1, ahead // 2)
            bench.client.deliver(shard, some, 0, b"")
            answered += some
        assert sent == count
        assert bench.transport.reading


# Slow commands


def test_what_follows_fifty_long_polls_waits_for_one_to_be_answered(bench: Bench) -> None:
    shard = bench.hub.shards.routes.of_queue("q")
    bench.send(*[SLOW] * 50, {"cmd": "Ping", "reqId": 1}, *[SLOW] * 2)
    bench.send({"cmd": "Ping", "reqId": 2})
    assert not bench.replies()
    assert len(bench.forwarded(shard)) == 50
    bench.client.deliver(shard, 1, 1, b"")
    assert [reply["reqId"] for reply in bench.replies()] == [1]
    assert len(bench.forwarded(shard)) == 51
    bench.client.deliver(shard, 2, 2, b"")
    assert [reply["reqId"] for reply in bench.replies()] == [2]
    assert bench.client.in_flight.slow == 49
    assert bench.client.in_flight[shard] == 49


def test_reading_pauses_when_much_waits_behind_long_polls(bench: Bench) -> None:
    shard = bench.hub.shards.routes.of_queue("q")
    bench.send(*[SLOW] * 50)
    bench.client.data_received(framed({**push(0), "pad": "x" * module.MAX_DEFERRED}))
    assert not bench.transport.reading
    bench.client.deliver(shard, 1, 1, b"")
    bench.settle()
    assert bench.transport.reading
    assert len(bench.forwarded(bench.hub.shards.routes.of_queue("q0"))) >= 1


def test_polls_without_a_timeout_and_other_commands_do_not_count(bench: Bench) -> None:
    bench.send(*[{"cmd": "PULL", "queue": "q"}] * 100, *[push(0)] * 100, {"cmd": "Ping"})
    assert bench.replies()
    assert bench.client.in_flight.slow == 0


def test_polls_of_a_shard_that_is_down_do_not_count(bench: Bench) -> None:
    bench.hub.shards.links[:] = [None, None]
    bench.send(*[SLOW] * 120)
    assert len(bench.errors()) == 120
    assert bench.client.in_flight.slow == 0


def test_gathered_commands_count_until_all_shards_have_answered(bench: Bench) -> None:
    bench.send(*[{"cmd": "Stats", "reqId": number} for number in range(60)])
    bench.settle()
    assert bench.client.in_flight.slow == 50
    for ticket, _, _ in list(bench.links[0].sent):
        for shard in range(2):
            bench.hub.tickets.answer(ticket, shard, framed({"ok": True, "stats": {"waiting": 1}}))
    assert len(bench.replies()) == 50
    assert bench.client.in_flight.slow == 10


# Gathered commands


def test_tickets_are_used_again(bench: Bench) -> None:
    for number in range(10):
        bench.send({"cmd": "Stats", "reqId": number})
        ticket, kind, body = bench.links[0].sent.pop()
        assert ticket == link_protocol.TICKET
        assert kind == 2
        assert body == framed({"cmd": "Stats"})
        for shard in range(2):
            assert not bench.replies()
            bench.hub.tickets.answer(ticket, shard, framed({"ok": True, "stats": {"waiting": 1}}))
        assert bench.replies() == [{"ok": True, "stats": {"waiting": 2}, "reqId": number}]


def test_a_gathered_command_comes_after_what_was_sent_before_it(bench: Bench) -> None:
    bench.send(push(0), {"cmd": "ListQueues"})
    link = bench.links[bench.hub.shards.routes.of_queue("q0")]
    assert [conn for conn, _, _ in link.sent] == [bench.client.number, link_protocol.TICKET]
    assert link.asker == bench.client.number, "in whose turn it is"


def test_a_shard_that_dies_over_a_gathered_command_is_unavailable(bench: Bench) -> None:
    bench.send({"cmd": "Stats", "reqId": 1})
    bench.hub.link_down(bench.links[0])  # type: ignore[arg-type]
    text = "Shard unavailable: shard 0 is restarting, try again"
    unavailable = {"ok": False, "error": text, "code": "SHARD_UNAVAILABLE", "reqId": 1}
    assert bench.replies() == [unavailable]
    # The number is not free before the other one has answered.
    bench.hub.shards.links[0] = bench.links[0]  # type: ignore[call-overload]
    bench.send({"cmd": "Stats", "reqId": 2})
    assert bench.links[0].sent[-1][0] == link_protocol.TICKET + 1
    bench.hub.tickets.answer(link_protocol.TICKET, 1, framed({"ok": True, "stats": {}}))
    assert not bench.replies()
    bench.send({"cmd": "Stats", "reqId": 3})
    assert bench.links[0].sent[-1][0] == link_protocol.TICKET


def test_a_shard_that_dies_over_a_part_cuts_the_client_off(bench: Bench) -> None:
    """The other part may be done: neither "nothing was changed" nor "it is done" would be true."""
    bench.send({"cmd": "ACKB", "ids": ids(1, 2), "reqId": 1})
    bench.hub.link_down(bench.links[0])  # type: ignore[arg-type]
    assert not bench.replies()
    assert bench.transport.ended == "eof"
    assert bench.client.number not in bench.hub.clients
    bench.hub.tickets.answer(link_protocol.TICKET, 1, framed({"ok": True}))
    assert not bench.replies()


def test_a_shard_that_dies_over_part_of_what_may_be_repeated_is_unavailable(bench: Bench) -> None:
    bench.send({"cmd": "JobHeartbeatB", "ids": ids(1, 2), "reqId": 1})
    bench.hub.link_down(bench.links[0])  # type: ignore[arg-type]
    assert bench.errors() == ["Shard unavailable: shard 0 is restarting, try again"]
    assert not bench.transport.ended


def test_metrics_are_those_of_the_shards_that_are_there(bench: Bench) -> None:
    times = {"counts": [0, 1], "sum_ms": 1}
    shard = {**dict.fromkeys(ShardFigures.__struct_fields__, 1), "waits": times, "runs": times}
    shard["totals"] = times
    shard |= {"storage_degraded": False, "disk_full": False, "memory_full": False, "store": None}
    figures = {"shards": [shard], "queues": [], "webhooks": 1, "webhooks_enabled": 0}
    answer = framed({"ok": True, "data": figures})
    bench.send({"cmd": "Prometheus", "reqId": 1}, {"cmd": "Prometheus", "reqId": 2})
    bench.hub.link_down(bench.links[0])  # type: ignore[arg-type]
    bench.send({"cmd": "Prometheus", "reqId": 3})
    assert not bench.replies()
    assert len(bench.links[1].sent) == 3
    for ticket, _, _ in bench.links[1].sent:
        bench.hub.tickets.answer(ticket, 1, answer)
    replies = bench.replies()
    assert [(reply["ok"], reply["reqId"]) for reply in replies] == [(True, 1), (True, 2), (True, 3)]
    assert bench.client.in_flight.slow == 0


def test_metrics_without_any_shard_are_unavailable(bench: Bench) -> None:
    bench.send({"cmd": "Prometheus", "reqId": 1})
    bench.hub.link_down(bench.links[0])  # type: ignore[arg-type]
    assert not bench.replies()
    bench.hub.link_down(bench.links[1])  # type: ignore[arg-type]
    bench.send({"cmd": "Prometheus", "reqId": 2})
    assert bench.errors() == [
        f"Shard unavailable: shard {shard} is restarting, try again" for shard in (1, 0)
    ]


def test_an_answer_for_a_client_that_left_is_dropped(bench: Bench) -> None:
    bench.send({"cmd": "Stats"})
    bench.client.connection_lost(None)
    for shard in range(2):
        bench.hub.tickets.answer(link_protocol.TICKET, shard, framed({"ok": True, "stats": {}}))
    assert not bench.replies()


def ids(*slots: int) -> list[str]:
    return [f"0190a1b2-c3d4-7{slot:03x}-8123-{number:012x}" for number, slot in enumerate(slots)]


def test_a_batch_for_one_shard_is_forwarded_as_it_is(bench: Bench) -> None:
    command = {"cmd": "ACKB", "ids": ids(1, 1, 3), "reqId": 1}
    bench.send(command, {"cmd": "ACKB", "ids": []})
    assert bench.forwarded(1) == [command]
    assert bench.forwarded(0) == [{"cmd": "ACKB", "ids": []}]


def test_a_batch_for_two_shards_is_cut_and_its_answers_merged(bench: Bench) -> None:
    bench.send({"cmd": "ACKB", "ids": ids(1, 2, 3), "tokens": ["a", "b", "c"], "reqId": 1})
    assert bench.forwarded(0)[0]["tokens"] == ["b"]
    assert bench.forwarded(1)[0]["tokens"] == ["a", "c"]
    for shard in range(2):
        bench.hub.tickets.answer(link_protocol.TICKET, shard, framed({"ok": True}))
    assert bench.replies() == [{"ok": True, "reqId": 1}]


def test_a_batch_that_cannot_be_cut_is_refused(bench: Bench) -> None:
    bench.send({"cmd": "ACKB", "ids": ids(1, 2), "results": [1], "reqId": 1}, {"cmd": "ACKB", "ids": [5]})
    assert bench.errors() == ["ACKB results length must match ids length", "ids[0] must be a string"]
    bench.send({"cmd": "ACKB", "ids": ids(1, 2) * 6000})
    assert bench.errors() == ["ids must have at most 10000 entries when they belong to several queues"]
    assert bench.client.in_flight.slow == 0


# The end of a connection, and of a shard


def test_the_shards_that_a_client_used_are_told_when_it_leaves(bench: Bench) -> None:
    bench.send(push(0))
    used = bench.links[bench.hub.shards.routes.of_queue("q0")]
    other = bench.links[1 - used.shard]
    bench.client.connection_lost(None)
    assert used.sent[-1] == (bench.client.number, link_protocol.CLOSED, b"")
    assert not other.sent


def test_when_a_shard_dies_exactly_the_clients_that_wait_for_it_are_severed(bench: Bench) -> None:
    victim, (bystander, its_socket) = bench.client, bench.connect()
    names = {bench.hub.shards.routes.of_queue(name): name for name in ("q0", "q1", "q2", "q3")}
    bench.send(push(0, names[0]), push(0, names[1]))
    for shard in range(2):
        bystander.data_received(framed(push(0, names[shard])))
        bystander.deliver(shard, 1, 0, b"")
    bench.links[1].sent.clear()
    bench.hub.link_down(bench.links[0])  # type: ignore[arg-type]
    assert bench.links[1].sent == [(victim.number, link_protocol.SEVERED, b"")]
    assert bench.transport.ended == "eof"
    assert not its_socket.ended
    assert list(bench.hub.clients) == [bystander.number]


def test_connection_numbers_are_not_used_again_soon(bench: Bench) -> None:
    first = bench.client.number
    bench.client.connection_lost(None)
    client, _ = bench.connect()
    assert client.number != first
    bench.hub.clients._last = link_protocol.MAX_NUMBER
    assert bench.connect()[0].number == 1
    bench.hub.clients._last = client.number - 1
    assert bench.connect()[0].number == client.number + 1


def test_one_connection_too_many_is_told_so() -> None:
    bench = Bench(max_connections=1)
    _, transport = bench.connect()
    reply = msgpack.unpackb(bytes(transport.written)[4:])
    assert (reply["error"], reply["bound"]) == ("Too many connections (max 1)", 1)
    assert transport.ended == "eof"
    assert not bench.transport.ended


# Flow


def test_a_client_that_does_not_read_is_not_read_and_at_last_dropped(bench: Bench) -> None:
    bench.send(push(0))
    shard = bench.hub.shards.routes.of_queue("q0")
    bench.client.pause_writing()
    assert not bench.transport.reading
    bench.client.deliver(shard, 0, 0, b"x")
    assert not bench.transport.ended
    bench.transport.unread = memory_bounds.MAX_UNREAD + 1
    bench.client.deliver(shard, 0, 0, b"x")
    assert bench.transport.ended == "abort"
    assert bench.links[shard].sent[-1][1] == link_protocol.BROKEN


def test_a_client_that_reads_again_is_read_again(bench: Bench) -> None:
    bench.client.pause_writing()
    bench.client.resume_writing()
    assert bench.transport.reading


def test_who_feeds_a_full_shard_is_held_back(bench: Bench) -> None:
    link = bench.links[bench.hub.shards.routes.of_queue("q0")]
    link.full = True
    bench.send(push(0))
    assert link.held_back == [bench.client]


def test_half_a_frame_and_a_minute_of_silence_end_a_connection(bench: Bench) -> None:
    _, idle_socket = bench.connect()
    bench.client.data_received(b"\0\0")
    for _ in range(SILENT_SWEEPS):
        bench.hub.sweep()
    assert not bench.transport.ended
    bench.client.data_received(b"\0")
    for _ in range(SILENT_SWEEPS):
        bench.hub.sweep()
    assert not bench.transport.ended
    bench.hub.sweep()
    assert bench.transport.ended == "abort"
    assert not idle_socket.ended


def test_silence_does_not_count_while_we_do_not_listen(bench: Bench) -> None:
    bench.client.data_received(b"\0\0")
    bench.client.pause_writing()
    for _ in range(2 * SILENT_SWEEPS):
        bench.hub.sweep()
    bench.client.resume_writing()
    bench.hub.sweep()
    assert not bench.transport.ended


def test_a_frame_must_be_there_in_minutes_or_get_on(bench: Bench) -> None:
    """A byte a sweep is not silence, but no progress either; a large one over a thin line is."""
    thin, thin_socket = bench.connect()
    for client in (bench.client, thin):
        client.data_received((10 * 1024 * 1024).to_bytes(4, "big"))
    for _ in range(SLOW_SWEEPS):
        bench.client.data_received(b"x")
        thin.data_received(bytes(PROGRESS))
        bench.hub.sweep()
    assert not bench.transport.ended
    for _ in range(2):
        bench.client.data_received(b"x")
        thin.data_received(bytes(PROGRESS))
        bench.hub.sweep()
    assert bench.transport.ended == "abort"
    assert not thin_socket.ended


def test_who_reads_nothing_for_a_minute_is_dropped(bench: Bench) -> None:
    slow, slow_socket = bench.connect()
    for client, transport in ((bench.client, bench.transport), (slow, slow_socket)):
        client.pause_writing()
        transport.unread = 5_000_000
    for _ in range(SILENT_SWEEPS + 1):
        slow_socket.unread -= 1000
        bench.hub.sweep()
    assert not bench.transport.ended
    bench.hub.sweep()
    assert bench.transport.ended == "abort"
    assert not slow_socket.ended


def test_a_frame_of_a_stranger_is_short(bench: Bench) -> None:
    stranger = Bench(auth_token=("secret",))
    stranger.client.data_received((memory_bounds.MAX_UNKNOWN + 1).to_bytes(4, "big"))
    assert stranger.errors() == [
        f"Frame too large: {memory_bounds.MAX_UNKNOWN + 1} bytes (max {memory_bounds.MAX_UNKNOWN})"
    ]
    bench.client.data_received((memory_bounds.MAX_UNKNOWN + 1).to_bytes(4, "big"))
    assert not bench.transport.ended


def test_all_clients_together_may_keep_so_much(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with most goes, whether it waits for the rest of a frame or for who should read."""
    monkeypatch.setattr(memory_bounds, "MAX_KEPT", 1_000_000)
    monkeypatch.setattr(memory_bounds, "CHECK_EVERY", 10_000)
    reader, reader_socket = bench.connect()
    reader.pause_writing()
    reader_socket.unread = 600_000
    bench.client.data_received((700_000).to_bytes(4, "big") + bytes(390_000))
    assert not reader_socket.ended
    bench.client.data_received(bytes(20_000))
    assert reader_socket.ended == "abort"
    assert not bench.transport.ended
    assert bench.client.number in bench.hub.clients
    other, other_socket = bench.connect()
    other.data_received((700_000).to_bytes(4, "big") + bytes(595_000))
    assert other_socket.ended == "abort"
    assert not bench.transport.ended


def test_a_connection_we_ended_may_linger_but_not_for_ever(bench: Bench) -> None:
    bench.client.finish(link_protocol.CLOSED, CommandError("bye", Code.FORBIDDEN))
    bench.hub.sweep()
    assert bench.transport.ended == "eof"
    bench.hub.sweep()
    assert bench.transport.ended == "abort"


def test_when_the_server_stops_no_command_is_taken_any_more(bench: Bench) -> None:
    shard = bench.hub.shards.routes.of_queue("q")
    bench.send(*[SLOW] * 50, push(0))
    bench.hub.clients.draining = True
    bench.client.stop_reading()
    bench.client.deliver(shard, 1, 1, b"last")
    assert bytes(bench.transport.written) == b"last"
    assert len(bench.forwarded(shard)) == 50
    assert not bench.transport.reading
