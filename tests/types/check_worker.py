"""Types of workers, middleware, groups, errors and integrations: read by mypy and pyright, never run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    AsyncQueueEvents,
    AsyncQueueGroup,
    Bunqueue,
    BunqueueError,
    CallNext,
    ConnectionOptions,
    Job,
    JobCancelled,
    JobFailed,
    JobStopped,
    Middleware,
    NewJob,
    Postpone,
    Queue,
    QueueEvent,
    QueueGroup,
    QueueInfo,
    Recycle,
    Route,
    TlsOptions,
    Worker,
    WorkerHealth,
    WorkerOptions,
    WorkerStats,
    current_job,
    run_forever,
)
from bunqueue.integrations.fastapi import Lifespan
from bunqueue.integrations.opentelemetry import OpenTelemetry
from bunqueue.integrations.structlog import JobContext


@dataclass
class Address:
    to: str


async def handler(job: ActiveJob) -> dict[str, int]:
    assert_type(job.id, str)
    assert_type(job.data, Any)
    assert_type(job.attempts, int)
    assert_type(job.timeout, float | None)
    assert_type(job.stopping, bool)
    assert_type(job.cancelled, bool)
    assert_type(job.stopped, JobStopped | None)
    assert_type(job.job(), Job)
    assert_type(job.progress(50, "half"), Awaitable[None])
    await job.log("a line", "warn")
    assert_type(current_job(), ActiveJob)
    assert_type(current_job(None), ActiveJob | None)
    assert_type(job.data_as(Address), Address)
    raise Postpone(timedelta(minutes=1))


async def typed(job: ActiveJob[Address]) -> str:
    assert_type(job.data, Address)
    return job.data.to


Worker("emails", typed)


def plain(job: ActiveJob) -> int:
    job.raise_if_cancelled()
    return 1


def failed(job: ActiveJob, error: BaseException) -> None: ...


async def working() -> None:
    options: WorkerOptions = {"concurrency": 20, "run_in": "process", "recycle": Recycle(jobs=100)}
    worker = Worker("emails", handler, **options)
    Worker(["a", "b"], {"x": handler, "y": Route(plain, run_in="process"), "*": plain}, concurrency=2)
    Worker("emails", plain, grace=timedelta(seconds=5), forward_logs=logging.INFO, on_failed=failed)
    Worker("emails", plain, url="bunqueues://host", tls=TlsOptions(ca_file="ca.pem"))
    Worker("emails", plain, connection=ConnectionOptions(command_timeout=timedelta(seconds=5)))
    async with worker as same:
        assert_type(same, Worker)
    assert_type(worker.stats, WorkerStats)
    assert_type(worker.stats.completed, int)
    assert_type(worker.health(max_silence=5_000), WorkerHealth)
    assert_type(worker.health().silence, float | None)
    assert_type(worker.recycle_reason, str | None)
    await worker.stop(grace=timedelta(seconds=1))
    assert_type(await worker.serve(), BaseException | None)
    run_forever(worker, Worker("other", plain))
    Worker("emails", handler, concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Worker("emails", handler, run_in="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Worker("emails", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Tenant(Middleware):
    @contextmanager
    def adding(self, job: NewJob) -> Generator[None]:
        assert_type(job.queue, str | None)
        job.options["tags"] = ["a"]
        yield

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        job.carry("shop.tenants:within", name="acme")
        return await call_next(job)


def around(app: Bunqueue) -> None:
    Queue("emails", middleware=[Tenant(), OpenTelemetry(), JobContext(bind={"tenant": "x-tenant"})])
    assert_type(app.use(Tenant()), Tenant)

    @app.use
    async def timing(job: ActiveJob, call_next: CallNext) -> object:
        return await call_next(job)

    assert_type(timing(current_job(), lambda job: handler(job)).close(), None)
    app.use(5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    app.on("completd")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def groups() -> None:
    with QueueGroup("billing", default_job_options={"max_attempts": 5}) as group:
        assert_type(group.queue("invoices"), Queue)
        assert_type(group.list_queues(), list[QueueInfo])
        assert_type(group.drain_all(), int)
        assert_type(group.worker("invoices", handler, concurrency=5), Worker)
        group.worker("a", handler, concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with AsyncQueueGroup("billing") as billing:
        assert_type(billing.queue("invoices"), AsyncQueue)


async def events() -> None:
    async with AsyncQueueEvents("emails", job_ids=["a"]) as events:
        async for event in events:
            assert_type(event, QueueEvent)
        assert_type(await events.next(timeout=timedelta(seconds=1)), QueueEvent | None)


def errors(queue: Queue) -> None:
    try:
        queue.add("n").result(timeout=5_000)
    except JobFailed as error:
        assert_type(error.error, str | None)
        assert_type(error.attempts, int)
    except JobCancelled as error:
        assert_type(error.reason, str | None)
    except BunqueueError as error:
        assert_type(error.code, str)
        assert_type(error.queue, str | None)


def lifespans(queue: AsyncQueue, worker: Worker, app: Bunqueue) -> None:
    Lifespan(queue, worker, app)
    Lifespan(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
