"""Event loops that end without closing what they opened: nothing of it lives on."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.server import Server
from support.waiting import wait_until

from bunqueue import ActiveJob, Admin, AsyncQueue, Queue, Worker
from bunqueue.client.connection import shared_pools

# What is left behind is told by the event loop's own classes, when it is collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def queue(shared_server: Server, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with Queue(request.node.name[:40], port=shared_server.port) as queue:
        yield queue


@pytest.fixture(autouse=True)
def _nothing_for_other_tests() -> Iterator[None]:
    """What was left behind is collected while its warnings are expected."""
    yield
    shared_pools._sweep()
    gc.collect()


def renewing() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "bunqueue-renewal"]


def test_queues_leave_no_connections_behind(shared_server: Server, queue: Queue) -> None:
    async def add(name: str) -> None:
        await AsyncQueue(name, port=shared_server.port).add("n")

    kept = AsyncQueue("kept", port=shared_server.port)
    admin = Admin(port=shared_server.port)
    before = admin.metrics().active_connections
    for number in range(5):
        asyncio.run(add(f"loops-{number}"))
        asyncio.run(kept.add("n"))
    wait_until(lambda: admin.metrics().active_connections <= before + 1, "all but the last were given up")
    admin.close()
    assert len(shared_pools._pools) == 1


def leave(worker: Worker, begun: threading.Event) -> None:
    """Start a worker, and end its event loop while it runs a job."""

    async def main() -> None:
        await worker.start()
        await asyncio.to_thread(begun.wait, 60)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_worker_gives_its_jobs_back_and_may_start_again(
    shared_server: Server, queue: Queue, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release = threading.Event(), threading.Event()

    def in_thread(job: ActiveJob) -> str:
        begun.set()
        release.wait(60)
        return "done"

    async def in_loop(job: ActiveJob) -> str:
        begun.set()
        if release.is_set():
            return "done"
        await asyncio.Event().wait()
        return "never"

    handler: Callable[[ActiveJob], Any] = in_loop if kind == "coroutine" else in_thread
    worker = Worker(queue.name, handler, port=shared_server.port, heartbeat_interval=50)
    handle = queue.add("n")
    leave(worker, begun)
    wait_until(lambda: handle.state() == "waiting", "it went back, long before its lock ran out")
    assert handle.job().attempts == 0
    wait_until(lambda: not renewing(), "nobody renews locks any more")
    assert "the event loop was closed before the worker was stopped" in caplog.text
    release.set()

    async def again() -> None:
        async with worker:
            await asyncio.to_thread(handle.result, 60_000)

    asyncio.run(again())
    assert handle.result() == "done"


def test_stopping_in_another_loop_is_no_error(shared_server: Server, queue: Queue) -> None:
    begun = threading.Event()
    worker = Worker(queue.name, lambda job: begun.set(), port=shared_server.port, heartbeat_interval=50)
    queue.add("n")
    leave(worker, begun)
    asyncio.run(worker.stop())
    assert not worker.health().ok
    wait_until(lambda: not renewing(), "nobody renews locks any more")
