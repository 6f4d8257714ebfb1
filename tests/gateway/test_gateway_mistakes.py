"""A mistake in the gateway itself: nobody at a WebSocket waits for ever."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from bunqueue.gateway.events.entries import EventBatch
from bunqueue.gateway.events.websocket import OVERLOADED, Session
from bunqueue.gateway.http.access import OPEN


class Carrier:
    """It fails in a way that nobody has thought of."""

    def __init__(self) -> None:
        self.room = SimpleNamespace(share=self._share)

    @contextmanager
    def _share(self) -> Any:
        yield lambda size: None

    async def carry_out(self, *args: object, **fields: object) -> Any:
        raise ZeroDivisionError


class Socket:
    """What it is sent."""

    def __init__(self) -> None:
        self.state, self.scope = SimpleNamespace(known=OPEN), {"client": ("127.0.0.1", 1)}
        self.sent: list[Any] = []
        self.closed: list[int] = []

    async def send_text(self, text: str) -> None:
        self.sent.append(json.loads(text))

    async def close(self, code: int) -> None:
        self.closed.append(code)


def session_of(socket: Socket) -> Any:
    access = SimpleNamespace(admit=lambda peer: True)
    sockets: Any = SimpleNamespace(carrier=Carrier(), access=access, shards=1)
    return Session(sockets, socket)  # type: ignore[arg-type]


async def test_a_message_that_the_gateway_fails_over_is_answered() -> None:
    socket = Socket()
    await session_of(socket)._handle('{"cmd": "ListQueues", "reqId": 7}')
    (reply,) = socket.sent
    assert (reply["ok"], reply["reqId"], reply["code"]) == (False, 7, "INTERNAL_ERROR")


async def test_a_listener_whose_events_fail_is_not_left_in_silence() -> None:
    async def events() -> AsyncGenerator[EventBatch, None]:
        yield EventBatch([], "0")
        raise ZeroDivisionError

    socket = Socket()
    await session_of(socket)._forward(events())
    assert socket.closed == [OVERLOADED]
