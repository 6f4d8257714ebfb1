"""Where the engine is, for tests of what must be the same on a server and embedded; and queues there."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.server import Server

from bunqueue import AsyncFlowProducer, AsyncJobHandle, AsyncQueue
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.worker.locks import loop_monitor

_numbers = itertools.count()


@pytest.fixture(params=["server", "embedded"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> EndpointOptions:
    """Options that lead to a server of two shards, shared by the module, or to a file of the test's own."""
    return options_for(request, tmp_path)


def options_for(request: pytest.FixtureRequest, tmp_path: Path) -> EndpointOptions:
    """Those of the place that is this fixture's parameter."""
    if request.param == "embedded":
        return {"embedded": True, "data_path": tmp_path / "jobs.db"}
    server: Server = request.getfixturevalue("shared_server")
    return {"host": server.host, "port": server.port}


@pytest.fixture
def name() -> str:
    """A name that no other test uses: the server is shared."""
    return f"sdk-{next(_numbers)}"


@pytest.fixture
async def queue(where: EndpointOptions, name: str) -> AsyncIterator[AsyncQueue]:
    async with AsyncQueue(name, **where) as queue:
        yield queue


@pytest.fixture
async def queues(where: EndpointOptions, name: str) -> AsyncIterator[list[AsyncQueue]]:
    """Eight queues: on both shards, if there are two."""
    found = [AsyncQueue(f"{name}-{place}", **where) for place in range(8)]
    yield found
    for queue in found:
        await queue.close()


@pytest.fixture
async def flows(where: EndpointOptions) -> AsyncIterator[AsyncFlowProducer]:
    async with AsyncFlowProducer(**where) as flows:
        yield flows


async def is_renewed(handle: AsyncJobHandle) -> bool:
    """Whether the lock of a running job has been renewed."""
    job = await handle.job()
    return (job.last_heartbeat_ms or 0) > (job.started_at_ms or 0)


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged, apart from what a busy machine has workers say."""
    return [record for record in caplog.records if record.module != loop_monitor.__name__.rpartition(".")[2]]
