"""A client of the gateway's WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from .server import Server
from .waiting import PATIENCE_S


class Socket:
    """A WebSocket that tells answers from events."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []
        self.last_id = ""
        self._last = 0

    async def call(self, cmd: str, **fields: Any) -> dict[str, Any]:
        self._last += 1
        await self.connection.send(json.dumps({"cmd": cmd, "reqId": self._last, **fields}))
        while True:
            message = await self._receive()
            if message.get("reqId") == self._last:
                return message

    async def _receive(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            message: dict[str, Any] = json.loads(await self.connection.recv())
        if message.get("type") == "events":
            self.events += message["events"]
            self.last_id = message["id"]
        return message

    async def until(self, count: int) -> list[dict[str, Any]]:
        """The events, as soon as there are so many."""
        while len(self.events) < count:
            await self._receive()
        return self.events


@asynccontextmanager
async def socket(server: Server, **options: Any) -> AsyncIterator[Socket]:
    url = f"ws://{server.host}:{server.http_port}/ws"
    async with connect(url, proxy=None, **options) as connection:
        yield Socket(connection)
