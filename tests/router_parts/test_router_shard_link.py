"""The router's end of the socket to a shard, in the event loop of a router."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings
from router.clients.hub import Hub
from router.shards.link import LARGE_BODY, Owner, ShardLink

uvloop = pytest.importorskip("uvloop")


class Supervisor:
    """Learns that the link has ended, and sends something all the same."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def lost(self, link: ShardLink) -> None:
        link.control(link_protocol.DRAIN)
        self.ended.set_result(None)


def test_what_is_sent_to_a_shard_that_has_gone_is_dropped() -> None:
    problems: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, problem: problems.append(problem))
        supervisor = Supervisor()
        hub = Hub(Settings(shards=1, data_dir=":memory:"))
        shard, inner = socket.socketpair(socket.AF_UNIX)
        _, link = await loop.create_connection(lambda: ShardLink(hub, cast(Owner, supervisor)), sock=inner)
        link.dialled(0, 0)
        shard.close()
        await supervisor.ended
        link.send(1, link_protocol.COMMANDS_V3, [bytes(LARGE_BODY)])
        flushed = loop.create_future()
        loop.call_soon(flushed.set_result, None)  # after all that was sent
        await flushed

    uvloop.run(run())
    assert not problems
