"""The gateway's connections to the router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.waiting import PATIENCE_S

from bunqueue.gateway.router_client import connection
from bunqueue.gateway.router_client.connection import RouterConnection, RouterDisconnected


class Deaf:
    """Somebody who takes connections, and never answers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.heard = asyncio.Event()
        self.ended = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            self.heard.set()
        self.ended.set()
        writer.close()


@pytest.fixture
async def deaf(tmp_path: Path) -> AsyncIterator[Deaf]:
    found = Deaf(str(tmp_path / "socket"))
    async with await asyncio.start_unix_server(found.take, found.path):
        yield found


async def test_who_does_not_answer_is_not_there(deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HELLO_S", 0.05)
    with pytest.raises(RouterDisconnected) as caught:
        await asyncio.wait_for(RouterConnection.open(deaf.path), PATIENCE_S)
    assert not caught.value.asked
    await asyncio.wait_for(deaf.ended.wait(), PATIENCE_S)


async def test_a_connection_that_nobody_waits_for_any_more_ends(deaf: Deaf) -> None:
    opening = asyncio.create_task(RouterConnection.open(deaf.path))
    await asyncio.wait_for(deaf.heard.wait(), PATIENCE_S)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.wait_for(deaf.ended.wait(), PATIENCE_S)
