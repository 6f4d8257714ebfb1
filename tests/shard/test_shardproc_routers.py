"""A shard whose host has several routers: the first one started it, the others have dialled it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver

from bunqueue.protocol.framing import frame
from bunqueue.server.links import shard_protocol as link
from shardproc import routers as module
from shardproc.routers import Routers
from shardproc.server import Server

FIRST = 5  # a connection of the first router
SECRET = "s3cret"


def own(router: int, number: int = 1) -> int:
    """A connection of one of the others."""
    return (router << link.ROUTER_SHIFT) + number


class Host:
    """A shard and its first router."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.path = str(folder / "0.sock")
        self.first, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server = Server(driver.shard, sock)
        self.routers = Routers(self.path, SECRET, self.server.connections)
        self.server.share(self.routers)
        self._splitters: dict[socket.socket, link.EnvelopeSplitter] = {}
        self._sockets = [self.first, sock]

    def dial(self, router: int, *live: int, secret: str = SECRET) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(self.path)
        hello = link.RouterHello(router, secret, link.pack_connections(list(live)))
        sock.sendall(link.envelope(own(router, 0), link.ROUTER, link.encode(hello)))
        self._sockets.append(sock)
        self.turn()
        return sock

    def turn(self) -> None:
        """As many as there is something to do: accepting, reading, writing."""
        for _ in range(4):
            assert self.server._turn()

    def ask(self, sock: socket.socket, conn: int, **command: Any) -> list[tuple[int, Any]]:
        body = frame(msgpack.packb(command))
        sock.sendall(link.envelope(conn, link.COMMANDS_V2, body))
        self.turn()
        return self.heard(sock)

    def heard(self, sock: socket.socket) -> list[tuple[int, Any]]:
        """The frames that have come, each with its connection; 0 for events."""
        sock.setblocking(False)
        try:
            data = sock.recv(1 << 22)
        except BlockingIOError:
            return []
        finally:
            sock.setblocking(True)
        found = []
        splitter = self._splitters.setdefault(sock, link.EnvelopeSplitter(link.TO_ROUTER))
        for (conn, kind, *_), body in splitter.feed(data):
            if kind == link.EVENTS:
                conns, frames = link.unpack_events(body)
                found += [(to, msgpack.unpackb(each)) for to in conns for each in link.split_frames(frames)]
            elif kind == link.REPLIES:
                found += [(conn, msgpack.unpackb(each)) for each in link.split_frames(body)]
        return found

    def close(self) -> None:
        self.routers.close()
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def host(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(driver.shard, "wait_ms", lambda: 0)
    found = Host(driver, tmp_path)
    yield found
    found.close()


def test_each_router_gets_the_answers_to_its_own_clients(host: Host) -> None:
    second, third = host.dial(1), host.dial(2)
    assert host.ask(second, own(1), cmd="PUSH", queue="q", data={"n": 1})[0][1]["ok"]
    conn, pulled = host.ask(third, own(2), cmd="PULL", queue="q")[0]
    assert conn == own(2)
    assert pulled["job"]["data"] == {"n": 1}
    assert host.ask(host.first, FIRST, cmd="Count", queue="q")[0][0] == FIRST
    assert not host.heard(second)


def test_a_pull_at_one_router_waits_for_a_push_at_another(host: Host) -> None:
    second = host.dial(1)
    assert not host.ask(second, own(1), cmd="PULL", queue="q", timeout=30_000)
    host.ask(host.first, FIRST, cmd="PUSH", queue="q", data={"n": 2})
    [(conn, reply)] = host.heard(second)
    assert (conn, reply["job"]["data"]) == (own(1), {"n": 2})


def test_events_go_to_the_subscribers_of_all_routers(host: Host) -> None:
    second = host.dial(1)
    host.ask(second, own(1), cmd="SubscribeEvents", queue="q")
    host.ask(host.first, FIRST, cmd="SubscribeEvents", queue="q")
    host.ask(second, own(1, 2), cmd="PUSH", queue="q", data={})
    assert [conn for conn, _ in host.heard(host.first)] == [FIRST]
    third = host.dial(2)
    host.ask(third, own(2), cmd="PUSH", queue="q", data={})
    assert own(1) in [conn for conn, _ in host.heard(second)]


def test_the_end_of_a_router_is_the_end_of_its_connections(host: Host) -> None:
    second, third = host.dial(1), host.dial(2)
    for _ in range(2):
        host.ask(host.first, FIRST, cmd="PUSH", queue="q", data={})
    assert host.ask(second, own(1), cmd="PULL", queue="q")[0][1]["job"]
    assert host.ask(third, own(2), cmd="PULL", queue="q")[0][1]["job"]
    second.close()
    host.turn()
    counts = host.ask(host.first, FIRST, cmd="GetJobCounts", queue="q")[0][1]
    assert (counts["counts"]["waiting"], counts["counts"]["active"]) == (1, 1), "the other's is untouched"
    again = host.dial(1)
    assert host.ask(again, own(1), cmd="PULL", queue="q")[0][1]["job"]


def test_a_router_that_comes_back_says_which_connections_it_still_has(host: Host) -> None:
    second = host.dial(1)
    for number in (1, 2):
        host.ask(host.first, FIRST, cmd="PUSH", queue="q", data={})
        host.ask(second, own(1, number), cmd="PULL", queue="q")
    host.server._end_others(1, frozenset([own(1, 2)]), host.server._shard.now())
    host.turn()
    counts = host.ask(host.first, FIRST, cmd="GetJobCounts", queue="q")[0][1]["counts"]
    assert (counts["waiting"], counts["active"]) == (1, 1)
    assert set(host.server.connections()) == {FIRST, own(1, 2)}


def test_a_second_connection_of_a_router_ends_the_first(host: Host) -> None:
    before = host.dial(1)
    host.ask(host.first, FIRST, cmd="PUSH", queue="q", data={})
    host.ask(before, own(1), cmd="PULL", queue="q")
    now = host.dial(1)
    assert before.recv(1) == b""
    assert host.ask(now, own(1, 2), cmd="PULL", queue="q")[0][1]["job"], "it came back"


def test_who_does_not_know_the_secret_is_not_heard(host: Host) -> None:
    stranger = host.dial(1, secret="guess")
    assert stranger.recv(1) == b""
    assert host.ask(host.dial(2), own(2), cmd="Count", queue="q")


def test_a_router_that_does_not_read_is_dropped(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD", 1 << 20)
    second = host.dial(1)
    host.ask(host.first, FIRST, cmd="PUSH", queue="q", data={"x": "y" * 200_000})
    peek = link.envelope(own(1), link.COMMANDS_V2, frame(msgpack.packb({"cmd": "GetJobs", "queue": "q"})))

    def go_on() -> None:
        for _ in range(20):
            second.sendall(peek)
            host.turn()

    with pytest.raises(BrokenPipeError):
        go_on()
    assert host.ask(host.first, FIRST, cmd="Count", queue="q")[0][1]["count"] == 1
    assert own(1) not in set(host.server.connections())


def test_what_does_not_fit_is_sent_later(host: Host) -> None:
    second = host.dial(1)
    for _ in range(5):
        host.ask(host.first, FIRST, cmd="PUSH", queue="q", data={"x": "y" * 100_000})
    command = frame(msgpack.packb({"cmd": "GetJobs", "queue": "q"}))
    second.sendall(link.envelope(own(1), link.COMMANDS_V2, command * 3))
    found: list[tuple[int, Any]] = []
    while len(found) < 3:
        host.turn()
        found += host.heard(second)
    assert all(len(reply["jobs"]) == 5 for _, reply in found)


def test_the_shard_ends_when_no_router_has_anything_more_to_ask(host: Host) -> None:
    second = host.dial(1)
    host.first.sendall(link.envelope(link.CONTROL, link.DRAIN))
    host.turn()
    assert not host.server.draining
    assert host.ask(second, own(1), cmd="PUSH", queue="q", data={})[0][1]["ok"]
    second.sendall(link.envelope(own(1, 0), link.DRAIN))
    host.turn()
    assert host.server.draining


def test_a_router_that_has_died_is_not_waited_for(host: Host) -> None:
    second = host.dial(1)
    host.first.sendall(link.envelope(link.CONTROL, link.DRAIN))
    second.close()
    host.turn()
    assert host.server.draining
