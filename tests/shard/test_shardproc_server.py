"""The loop of a shard process, one turn at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.protocol import link
from bunqueue.protocol.framing import frame
from shardproc import server as module
from shardproc.server import LOOKS, Server


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def envelope(conn: int, commands: list[dict[str, Any]]) -> bytes:
    return link.envelope(conn, link.COMMANDS_V2, b"".join(frame(msgpack.packb(each)) for each in commands))


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


def test_a_turn_ends_when_others_have_waited_for_long(
    driver: Driver, sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn is long here at the first look at the clock.  Nothing is lost, and everybody has his turn."""
    monkeypatch.setattr(module, "TURN_S", -1.0)
    router, shard = sockets
    server, many = Server(driver.shard, shard), 3 * LOOKS
    commands = [{"cmd": "PUSH", "queue": "q", "reqId": number} for number in range(many)]
    router.sendall(envelope(1, commands) + envelope(2, [{"cmd": "Count", "queue": "q", "reqId": "b"}]))
    seen: list[tuple[int, Any]] = []
    turns = 0
    while len(seen) < many + 1:
        assert server._turn()
        new = answers(router)
        assert 0 < len(new) <= LOOKS + 2, "a turn does something, and not too much"
        seen += new
        turns += 1
    assert turns >= 3
    assert [number for conn, number in seen if conn == 1] == list(range(many))
    assert seen.index((2, "b")) <= LOOKS + 2, "it waited for all of the other's commands"


def test_a_short_batch_is_one_turn(driver: Driver, sockets: tuple[socket.socket, socket.socket]) -> None:
    router, shard = sockets
    server = Server(driver.shard, shard)
    router.sendall(envelope(1, [{"cmd": "PUSH", "queue": "q", "reqId": number} for number in range(10)]))
    assert server._turn()
    assert len(answers(router)) == 10
