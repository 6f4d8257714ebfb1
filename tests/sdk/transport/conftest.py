"""A server that a test pulls the strings of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.fake_server import FakeServer
from support.waiting import eventually

from bunqueue import BunqueueError
from bunqueue.client.connection import blocking_pool


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking calls never leave it to the pool to connect, however long it takes."""
    monkeypatch.setattr(blocking_pool, "PATIENCE", 60.0)


async def get_through(call: Callable[[], Awaitable[object]]) -> object:
    """What a call gives whose time is short: it is repeated until it is answered in time."""
    answers: list[object] = []

    async def is_answered() -> bool:
        try:
            answers.append(await call())
        except BunqueueError:
            return False
        return True

    await eventually(is_answered, "it is answered in time")
    return answers[0]
