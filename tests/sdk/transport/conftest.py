"""A server that a test pulls the strings of."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.fake_server import FakeServer


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    yield server
    await server.stop()
