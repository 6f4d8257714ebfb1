"""What one connection pipelines does not stand before what another one asks, whatever the commands are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from support.server import Server
from support.web import fresh_queue
from support.wire import Wire, pack

PUSHES = 40  # one after another; each of them waited for all that was in between, which is most of a flood


class Flood(asyncio.Protocol):
    """A connection that has sent very much, and takes the answers as they come."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()

    @classmethod
    async def of(cls, server: Server, command: dict[str, Any], count: int) -> Flood:
        loop = asyncio.get_running_loop()
        transport, flood = await loop.create_connection(cls, *server.address)
        transport.write(pack(command) * count)
        transport.write_eof()  # it ends when all is answered
        await flood.begun.wait()
        return flood


async def test_pushes_are_answered_while_another_connection_has_much_to_ask(shared_server: Server) -> None:
    queue, full = fresh_queue(), fresh_queue(1)
    async with await Wire.open(shared_server.address) as wire:
        for _ in range(12):
            found = await wire.ok("PUSHB", queue=full, jobs=[{"data": None}] * 1000)
        job_id = found["ids"][0]
        floods: list[tuple[dict[str, Any], int]] = [
            ({"cmd": "GetEvents", "limit": 10_000}, 200),
            ({"cmd": "GetState", "id": job_id}, 100_000),
            ({"cmd": "WaitJob", "id": "nothing", "timeout": 60_000}, 60_000),
            ({"cmd": "Stats"}, 10_000),
            ({"cmd": "Prometheus"}, 5_000),
            ({"cmd": "GetJobs", "queue": full, "limit": 1000}, 500),
            ({"cmd": "SubscribeEvents", "queue": full}, 50_000),
            ({"cmd": "Ping"}, 100_000),
            ({"cmd": "PUSHB", "queue": full, "jobs": [{"data": 1}] * 500}, 400),
        ]
        for command, count in floods:
            for more in (1, 4, 16):  # on a busy machine the pushes may have been late themselves
                flood = await Flood.of(shared_server, command, more * count)
                for _ in range(PUSHES):
                    await wire.ok("PUSH", queue=queue, data=1)
                is_first = not flood.ended.is_set()
                flood.transport.abort()
                await flood.ended.wait()
                if is_first:
                    break
            else:
                pytest.fail(f"{PUSHES} pushes have waited for {more * count} {command['cmd']}")
