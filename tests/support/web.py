"""HTTP clients of a server, and what they read from a stream of events."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from .naming import queue_on
from .server import Server
from .waiting import PATIENCE_S


def client(server: Server, token: str | None = None, **options: Any) -> httpx2.AsyncClient:
    """A client of the server's gateway; use it as a context manager."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(
        base_url=server.url, headers=headers, timeout=PATIENCE_S, trust_env=False, **options
    )


def fresh_queue(shard: int = 0) -> str:
    """The name of a queue that no other test has, on that shard."""
    return queue_on(shard, f"q{uuid.uuid4().hex[:8]}")


class Events:
    """Reads a stream of Server-Sent Events."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.last_id = ""

    async def next(self) -> dict[str, Any]:
        """The next event; what only keeps the connection alive is passed over."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._next()

    async def _next(self) -> dict[str, Any]:
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                self.last_id = fields.pop("id", self.last_id)
            if not line and "data" in fields:
                event: dict[str, Any] = json.loads(fields["data"])
                return event
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
        raise EOFError("the stream has ended")

    async def take(self, count: int) -> list[dict[str, Any]]:
        """The next events."""
        return [await self.next() for _ in range(count)]


@asynccontextmanager
async def events(web: httpx2.AsyncClient, path: str = "/events", **options: Any) -> AsyncIterator[Events]:
    """Listen; from here on nothing is missed."""
    async with web.stream("GET", path, **options) as response:
        found = Events(response)
        if response.status_code == 200:
            async for line in found._lines:
                if line == ": listening":
                    break
        yield found
