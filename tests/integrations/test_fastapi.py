"""Queues and workers with an application around them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette

from bunqueue import ActiveJob, AsyncQueue, ConnectionLost, Queue, Worker
from bunqueue.errors import AuthError
from bunqueue.integrations.fastapi import Lifespan
from bunqueue.testing import Sandbox


async def double(job: ActiveJob) -> int:
    return int(job.data) * 2


def application(*parts: Any, inner: Any = None) -> FastAPI:
    app = FastAPI(lifespan=Lifespan(*parts, inner=inner))

    @app.post("/double/{number}")
    async def add(number: int, request: Request) -> dict[str, Any]:
        queue: AsyncQueue = parts[0]
        job = await queue.add("double", number)
        result = await job.result() if len(parts) > 1 else None  # there is a worker, in this very loop
        return {"result": result, "state": getattr(request.state, "word", None)}

    return app


def test_a_worker_in_the_application(bunqueue: Sandbox) -> None:
    queue, worker = AsyncQueue("numbers"), Worker("numbers", double)
    with TestClient(application(queue, worker)) as client:
        assert client.post("/double/21").json() == {"result": 42, "state": None}
        assert worker.stats.completed == 1
    bunqueue.assert_added("numbers", "double", 21)


def test_the_end_of_the_application_waits_for_running_jobs(bunqueue: Sandbox) -> None:
    begun, done = asyncio.Event(), []

    async def slow(job: ActiveJob) -> None:
        begun.set()
        await asyncio.sleep(0.1)  # longer than an end that does not wait for it
        done.append(job.id)

    queue, worker = AsyncQueue("numbers"), Worker("numbers", slow)
    app = FastAPI(lifespan=Lifespan(queue, worker))

    @app.post("/")
    async def add() -> None:
        await queue.add("n")
        await begun.wait()

    with TestClient(app) as client:
        client.post("/")
        assert not done
    assert len(done) == 1


def test_a_lifespan_of_ones_own_within(bunqueue: Sandbox) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def inner(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        await queue.add("first")  # it is open by now
        order.append("open")
        yield {"word": "hello"}
        await queue.add("last")
        order.append("close")

    queue = AsyncQueue("numbers")
    with TestClient(application(queue, inner=inner)) as client:
        assert client.post("/double/1").json()["state"] == "hello"
    assert order == ["open", "close"]
    assert [job.name for job in bunqueue.added("numbers")] == ["first", "double", "last"]


def test_blocking_queues_are_closed_too_and_starlette_will_do(bunqueue: Sandbox) -> None:
    queue = Queue("numbers")
    with TestClient(Starlette(lifespan=Lifespan(queue))):
        queue.add("n")
    with pytest.raises(ConnectionLost, match="is closed"):
        queue.add("n")


def test_the_end_of_a_worker_is_told(bunqueue: Sandbox) -> None:
    bunqueue.faults.refuse("pull", "Invalid token", times=10)

    async def run() -> logging.LogRecord:
        ear = Ear()
        logger.addHandler(ear)
        try:
            async with Lifespan(Worker("numbers", double))(None):
                return await ear.heard
        finally:
            logger.removeHandler(ear)

    record = asyncio.run(asyncio.wait_for(run(), 10))
    assert record.getMessage() == "queue 'numbers': the worker has ended"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], AuthError)


logger = logging.getLogger("bunqueue.worker")


class Ear(logging.Handler):
    """Waits for an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.set_result(record)
