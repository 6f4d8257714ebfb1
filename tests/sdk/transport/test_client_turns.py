"""When the tasks that wait for replies go on: over real sockets, in the loops that programs use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from math import inf
from typing import Any

import pytest
import uvloop
from msgspec.msgpack import encode

from bunqueue.client.connection.wire import WireConnection, WireRequest
from bunqueue.protocol.framing import frame

mine: ContextVar[str] = ContextVar("mine", default="of the connection")
Run = Callable[[Coroutine[Any, Any, None]], None]


class Host:
    """Notes what happens: that replies have arrived, the next turn of the loop, and what tasks add."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def watch(self, deadline: float) -> None: ...

    def answered(self, connection: object) -> None:
        self.order.append("arrived")
        asyncio.get_running_loop().call_soon(self.order.append, "next turn")

    def on_frame(self, payload: bytes) -> None: ...

    def unavailable(self, request: WireRequest, payload: bytes) -> None: ...

    def lost(self, connection: object, reason: str) -> None: ...


class Line:
    """A connection, and the other end of its socket."""

    def __init__(self) -> None:
        self.host, self._numbers = Host(), iter(range(1, 100))
        self.order = self.host.order

    async def open(self) -> None:
        self.server, ours = socket.socketpair()
        self.connection: WireConnection[WireRequest] = WireConnection(self.host, "there")
        self.connection.ready = True
        self.transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self.connection, sock=ours
        )

    async def ask(self, name: str) -> None:
        """Send a request and wait for the reply, in a context of its own."""
        mine.set(name)
        future = asyncio.get_running_loop().create_future()
        self.connection.send(WireRequest(next(self._numbers), b"request", future, inf))
        await future
        self.order.append(f"{name} in its context" if mine.get() == name else "in another context")

    def answer(self, *numbers: int) -> None:
        self.server.sendall(b"".join(frame(encode({"ok": True, "reqId": number})) for number in numbers))

    def close(self) -> None:
        self.transport.close()
        self.server.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_task_of_a_lone_reply_goes_on_in_the_same_turn(run: Run) -> None:
    async def program() -> None:
        line = Line()
        await line.open()
        for number in (1, 2):
            task = asyncio.create_task(line.ask("first"))
            await asyncio.sleep(0)  # until it waits
            line.answer(number)
            await task
        assert line.order == ["arrived", "first in its context", "next turn"] * 2
        line.close()

    run(program())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_tasks_of_replies_that_arrive_together_take_turns(run: Run) -> None:
    async def program() -> None:
        line = Line()
        await line.open()
        tasks = [asyncio.create_task(line.ask(name)) for name in ("first", "second", "third")]
        await asyncio.sleep(0)  # until they wait
        tasks[1].cancel()
        await asyncio.sleep(0)  # until it has ended
        line.answer(1, 2, 3)
        await asyncio.gather(tasks[0], tasks[2])
        assert tasks[1].cancelled()
        assert sorted(line.order) == ["arrived", "first in its context", "next turn", "third in its context"]
        line.close()

    run(program())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_task_may_send_the_next_request_before_the_last_reply_is_dealt_with(run: Run) -> None:
    async def program() -> None:
        line = Line()
        await line.open()

        async def both() -> None:
            await line.ask("first")
            await line.ask("second")

        task = asyncio.create_task(both())
        await asyncio.sleep(0)  # until it waits
        line.answer(1)
        await asyncio.get_running_loop().sock_recv(_unblocked(line.server), 7)
        await asyncio.get_running_loop().sock_recv(line.server, 7)  # the second request
        line.answer(2)
        await task
        assert [each for each in line.order if "context" in each] == [
            "first in its context",
            "second in its context",
        ]
        line.close()

    run(program())


def _unblocked(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock
