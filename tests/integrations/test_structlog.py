"""Lines that say which job they are about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from bunqueue import ActiveJob, Queue, Worker
from bunqueue.integrations.structlog import JobContext
from bunqueue.testing import Sandbox


@pytest.fixture
def lines() -> Any:
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    yield capture.entries
    structlog.configure(**before)


def handler(job: ActiveJob) -> None:
    structlog.get_logger().info("working", detail=job.data)


async def handler_async(job: ActiveJob) -> None:
    await asyncio.sleep(0)
    handler(job)


@pytest.mark.parametrize("function", [handler, handler_async])
def test_the_job_is_in_every_line_of_its_handler(bunqueue: Sandbox, lines: Any, function: Any) -> None:
    worker = Worker(
        "emails", function, middleware=[JobContext(bind={"tenant": "x-tenant", "user": "x-user"})]
    )
    job = Queue("emails").add("welcome", "text", headers={"x-tenant": "acme"})
    bunqueue.drain(worker)
    structlog.get_logger().info("behind")
    common = {"event": "working", "log_level": "info", "detail": "text"}
    about = {"queue": "emails", "job": "welcome", "job_id": job.id, "attempt": 1, "tenant": "acme"}
    assert lines == [common | about, {"event": "behind", "log_level": "info"}]


@pytest.mark.parametrize("function", [handler, handler_async])
async def test_in_a_running_worker(bunqueue: Sandbox, lines: Any, function: Any) -> None:
    jobs = Queue("emails").add_bulk([("a", 1), ("b", 2)])
    async with Worker("emails", function, middleware=[JobContext()], concurrency=2):
        await bunqueue.settle_async()
    assert {(line["job_id"], line["job"], line["detail"]) for line in lines} == {
        (jobs[0].id, "a", 1),
        (jobs[1].id, "b", 2),
    }
