"""Queues and workers with an application around them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from support.server import Server
from support.waiting import wait_until

from bunqueue import ActiveJob, AsyncQueue, ConnectionLost, Queue, Worker
from bunqueue.errors import AuthError
from bunqueue.integrations.fastapi import (
    Lifespan,
    RequestId,
    RequestIdMiddleware,
    accepted,
    job_router,
    request_id,
)
from bunqueue.testing import Sandbox
from bunqueue.worker.log_context import job_fields


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
        while not job.stopping:  # noqa: ASYNC110  # it ends after the application has begun to
            await asyncio.sleep(0.01)  # a piece of work
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

    record = asyncio.run(asyncio.wait_for(run(), 60))
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


# -- jobs that take longer than a request ------------------------------------------------------------------


def _events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("event: ")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in blocks]


def test_accepted_then_status_and_events_from_the_beginning(shared_server: Server) -> None:
    go = asyncio.Event()

    async def report(job: ActiveJob) -> str:
        await job.log("begun")
        await job.progress(40, "half of it")
        await go.wait()
        await job.log("going on")
        await job.progress(90)
        return "pages"

    queue = AsyncQueue("fastapi-reports", port=shared_server.port)
    others = Queue("fastapi-others", port=shared_server.port)
    worker = Worker("fastapi-reports", report, port=shared_server.port)
    app = FastAPI(lifespan=Lifespan(queue, worker))
    app.include_router(job_router(queue, visible=lambda request, job: job.data != "secret"))

    @app.post("/reports")
    async def add(request: Request, data: str = "") -> Any:
        return accepted(request, await queue.add("report", data))

    @app.post("/go")
    async def end() -> None:
        go.set()

    with others, TestClient(app) as client:
        answer = client.post("/reports")
        job = answer.json()
        assert answer.status_code == 202
        assert answer.headers["location"] == job["status"] == f"http://testserver/jobs/{job['id']}"
        wait_until(lambda: client.get(job["status"]).json()["progress"] == 40, "it has begun")
        client.post("/go")
        events = _events_of(client.get(job["events"]).text)  # begins long after the job did
        lines = [data["message"] for kind, data in events if kind == "log"]
        assert lines == ["begun", "going on"]
        assert (events[-1][0], events[-1][1]["state"], events[-1][1]["result"]) == (
            "status",
            "completed",
            "pages",
        )
        assert client.get(job["status"]).json() == events[-1][1]
        hidden = client.post("/reports", params={"data": "secret"}).json()
        for wrong in (hidden["status"], hidden["events"], f"/jobs/{others.add('n', 1).id}", "/jobs/none"):
            assert client.get(wrong).status_code == 404, wrong


def test_the_id_of_a_request_is_in_its_jobs_and_their_log_lines(shared_server: Server) -> None:
    seen: list[dict[str, Any]] = []
    place: Any = {"port": shared_server.port, "middleware": [RequestId()]}

    async def first(job: ActiveJob) -> None:
        seen.append(job_fields())
        await queue.add("second")

    def second(job: ActiveJob) -> None:
        seen.append(job_fields())

    queue = AsyncQueue("fastapi-ids", **place)
    worker = Worker("fastapi-ids", {"first": first, "second": second}, **place)
    app = FastAPI(lifespan=Lifespan(queue, worker))
    app.add_middleware(RequestIdMiddleware)

    @app.post("/")
    async def add() -> None:
        await queue.add("first")

    with TestClient(app) as client:
        given = client.post("/", headers={"X-Request-ID": "req-7"})
        assert given.headers["x-request-id"] == "req-7"
        wait_until(lambda: len(seen) == 2, "both have run")
        assert [(each["job_name"], each["request_id"]) for each in seen] == [
            ("first", "req-7"),
            ("second", "req-7"),
        ]
        for wrong in ("a b", "x" * 129, ""):
            new = client.post("/", headers={"X-Request-ID": wrong}).headers["x-request-id"]
            assert len(new) == 32, wrong
    assert request_id.get() is None
