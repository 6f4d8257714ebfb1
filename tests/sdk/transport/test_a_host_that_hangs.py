"""A host that hangs, while the client knows another one: nothing fails, and all goes on there soon."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.server import Server, StartServer

from bunqueue import AsyncQueue, ConnectionOptions, Queue

LONGEST_S = 28.0  # half a minute is what a command has; 8 s where nobody else works


@pytest.fixture
def servers(make_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> list[Server]:
    """Two that know nothing of each other: what matters here is whom the client asks."""
    found = [make_server(data_dir=tmp_path_factory.mktemp("host") / "data", shards=1) for _ in range(2)]
    for server in found:
        server.start()
    return found


def url(servers: list[Server]) -> str:
    return "bunqueue://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    pids = [server.pid, *(process.pid for process in server.shard_processes())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def with_jobs(servers: list[Server]) -> Server:
    """The one that the client is connected with."""
    for server in servers:
        with Queue("q", url=url([server])) as queue:
            if queue.count():
                return server
    raise AssertionError("nobody has it")


async def test_adds_go_to_another_host(servers: list[Server]) -> None:
    async with AsyncQueue("q", url=url(servers)) as queue:
        await queue.add("n", 0)
        with frozen(await asyncio.to_thread(with_jobs, servers)):
            begun = time.monotonic()
            jobs = await asyncio.gather(*(queue.add("n", number) for number in range(200)))
            assert time.monotonic() - begun < LONGEST_S
            assert len({job.id for job in jobs}) == 200
            assert await queue.count() == 200


def test_blocking_adds_go_to_another_host(servers: list[Server]) -> None:
    with Queue("q", url=url(servers)) as queue:
        queue.add("n", 0)
        with frozen(with_jobs(servers)):
            begun = time.monotonic()
            for number in range(20):
                queue.add("n", number)
            assert time.monotonic() - begun < LONGEST_S
            assert queue.count() == 20


async def test_a_single_server_is_waited_for(servers: list[Server]) -> None:
    server = servers[0]
    options = ConnectionOptions(ping_interval=1_000, max_ping_failures=100)
    async with AsyncQueue("q", url=url([server]), connection=options) as queue:
        await queue.add("n", 0)
        with frozen(server):
            adding = asyncio.ensure_future(queue.add("n", 1))
            await asyncio.sleep(6.0)  # longer than the silence after which another host would be asked
            assert not adding.done()
        await adding
        assert await queue.count() == 2
