"""The loop of a shard process, one batch at a time: whose turn it is."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.protocol.framing import frame
from bunqueue.server.host import pace
from bunqueue.server.host.pace import Pace
from bunqueue.server.links import shard_protocol as link
from shardproc import core
from shardproc import server as module
from shardproc.server import Server

A_SLICE = 10  # commands, in these tests


class ShortSlice:
    """A slice of so many commands, however long they take."""

    worked_s = 0.0
    until = 0.0

    def __init__(self, seconds: float = 0.0) -> None:
        self._left = A_SLICE
        self.begun_at = pace.monotonic()

    @property
    def is_over(self) -> bool:
        self._left -= 1
        return self._left <= 0


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    monkeypatch.setattr(module, "Slice", ShortSlice)
    monkeypatch.setattr(core, "BATCH_S", -1.0)  # each batch has one slice of what is queued
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def envelope(conn: int, commands: list[dict[str, Any]]) -> bytes:
    return link.envelope(conn, link.COMMANDS_V2, b"".join(frame(msgpack.packb(each)) for each in commands))


def pushes(numbers: range, queue: str = "q") -> list[dict[str, Any]]:
    return [{"cmd": "PUSH", "queue": queue, "reqId": number} for number in numbers]


def count(name: str) -> list[dict[str, Any]]:
    return [{"cmd": "Count", "queue": "q", "reqId": name}]


def answers(router: socket.socket) -> list[tuple[int, Any]]:
    """The connections and request ids of the replies that are there."""
    router.setblocking(False)
    try:
        data = router.recv(1 << 20)
    except BlockingIOError:
        return []
    splitter = link.EnvelopeSplitter(link.TO_ROUTER)
    return [
        (conn, msgpack.unpackb(payload)["reqId"])
        for (conn, *_), body in splitter.feed(data)
        for payload in link.split_frames(body)
    ]


Sockets = tuple[socket.socket, socket.socket]


def test_those_who_have_something_queued_take_turns(driver: Driver, sockets: Sockets) -> None:
    """Nothing is lost, and each connection's commands are carried out in their order."""
    router, shard = sockets
    server = Server(driver.shard, shard)
    many = {1: 10 * A_SLICE, 2: 3 * A_SLICE, 3: 2 * A_SLICE + 1}
    router.sendall(b"".join(envelope(conn, pushes(range(of_it))) for conn, of_it in many.items()))
    batches: list[list[tuple[int, Any]]] = []
    while sum(map(len, batches)) < sum(many.values()):
        assert server._turn()
        if answered := answers(router):
            batches.append(answered)
    assert Counter(conn for conn, _ in batches[0]) == {1: 2 * A_SLICE, 2: A_SLICE, 3: A_SLICE}
    assert all(len(batch) <= A_SLICE for batch in batches[1:])
    turns = [batch[0][0] for batch in batches[1:]]
    assert turns == [2, 3, 1, 2, 3, *[1] * 7]
    found = [answer for batch in batches for answer in batch]
    for conn, of_it in many.items():
        assert [number for each, number in found if each == conn] == list(range(of_it))


def test_who_has_nothing_queued_is_answered_at_once(driver: Driver, sockets: Sockets) -> None:
    router, shard = sockets
    server = Server(driver.shard, shard)
    router.sendall(envelope(1, pushes(range(100 * A_SLICE))))
    assert server._turn()
    assert len(answers(router)) == 2 * A_SLICE
    for number in range(5):
        router.sendall(envelope(2, count(f"two-{number}")))
        found: list[tuple[int, Any]] = []
        while (2, f"two-{number}") not in found:
            assert server._turn()
            found += answers(router)
        assert len(found) <= A_SLICE + 1, "one slice at most comes before it"


def test_while_somebody_asks_what_is_queued_goes_on_with_rests(
    driver: Driver, sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("bunqueue.server.host.pace.monotonic", lambda: now)
    monkeypatch.setattr(ShortSlice, "worked_s", 0.005)
    router, shard = sockets
    server = Server(driver.shard, shard)
    router.sendall(envelope(1, pushes(range(20 * A_SLICE))) + envelope(2, count("two")))
    assert server._turn()
    assert (2, "two") in answers(router)
    assert server._turn(), "what is queued has its turn, though somebody has asked"
    assert len(answers(router)) == A_SLICE
    assert 0 < server._idle_ms() <= 20
    router.sendall(envelope(2, count("again")))
    assert server._turn()
    assert answers(router) == [(2, "again")], "it rests"
    now += 0.02
    assert server._idle_ms() == 0
    assert server._turn()
    assert len(answers(router)) == A_SLICE
    now += 10
    for _ in range(3):  # nobody else has asked for long: it goes on
        assert server._turn()
        assert len(answers(router)) == A_SLICE


def test_a_gathered_command_is_in_the_turn_of_whoever_asks(driver: Driver, sockets: Sockets) -> None:
    """What one connection asks stays in order, and takes no turns beside its own."""
    router, shard = sockets
    server = Server(driver.shard, shard)
    tickets = [link.TICKET + number for number in range(3)]
    asked = b"".join(
        link.envelope(ticket, link.ASKER, link.pack_connections([1])) + envelope(ticket, count("gathered"))
        for ticket in tickets
    )
    router.sendall(envelope(1, pushes(range(2 * A_SLICE))) + asked + envelope(2, pushes(range(2 * A_SLICE))))
    found: list[tuple[int, Any]] = []
    while len(found) < 4 * A_SLICE + 3:
        assert server._turn()
        found += answers(router)
    order = [conn for conn, _ in found]
    assert order == [*[1] * 2 * A_SLICE, *[2] * 2 * A_SLICE, *tickets]


def test_what_a_client_that_leaves_has_queued_is_done_and_not_answered(
    driver: Driver, sockets: Sockets
) -> None:
    router, shard = sockets
    server = Server(driver.shard, shard)
    many = 5 * A_SLICE
    commands = [command for push in pushes(range(many)) for command in (push, *count("asked"))]
    router.sendall(envelope(1, commands) + link.envelope(1, link.CLOSED))
    assert server._turn()
    while server._busy:
        assert server._turn()
    assert 1 not in driver.shard.engine.state.clients
    assert [number for _, number in answers(router)].count("asked") == A_SLICE // 2
    assert driver.ask(cmd="Count", queue="q")["count"] == many


def test_a_short_batch_is_one_turn(driver: Driver, sockets: Sockets) -> None:
    router, shard = sockets
    server = Server(driver.shard, shard)
    router.sendall(envelope(1, pushes(range(A_SLICE))))
    assert server._turn()
    assert len(answers(router)) == A_SLICE
    assert not server._busy


def test_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(pace, "monotonic", lambda: now)
    monkeypatch.setattr(ShortSlice, "worked_s", 0.0005)

    def rest_after(work: ShortSlice, who: str) -> float:
        found.worked(work, who)  # type: ignore[arg-type]
        return found.pause_s

    found = Pace()
    assert rest_after(ShortSlice(), "many") == 0, "nobody asks"
    found.asked("many")
    assert rest_after(ShortSlice(), "many") == 0, "nobody else does"
    found.asked("one")
    found.asked("many")
    assert rest_after(ShortSlice(), "many") == pytest.approx(pace.PAUSE * 0.0005)
    assert rest_after(ShortSlice(), "one") == pytest.approx(pace.PAUSE * 0.0005)
    work = ShortSlice()
    monkeypatch.setattr(ShortSlice, "worked_s", 10.0)
    now += 10
    assert rest_after(work, "many") == pytest.approx(pace.QUIET_S), "nobody could be heard meanwhile"
    rested, begun = 0.0, now
    while rest := found.pause_s:
        found.asked("one")
        now += min(rest, pace.QUIET_S / 2)
        rested = now - begun
    assert rested == pytest.approx(pace.MOST_S), "who asks one thing after another has that long"
    now += 1
    assert found.pause_s == 0
    assert rest_after(ShortSlice(), "many") == 0, "nobody has asked for long"
