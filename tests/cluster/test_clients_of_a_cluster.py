"""Clients that know several hosts and are connected to one that dies: they go on with another one."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from cluster.conftest import new_hosts
from cluster.hosts import Hosts
from support.cli import Cli
from support.postgres import Postgres
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, AsyncQueueEvents, Worker

ADDED = 40  # jobs, while the host dies
LONG_MS, LOCK_MS = 180_000, 3_600_000


@pytest.fixture
def hosts(store_cluster: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with new_hosts(store_cluster, tmp_path_factory.mktemp("hosts")) as made:
        made.start("a", "b")
        yield made


@pytest.fixture
def url(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both hosts; clients begin with the first one, which is to die."""
    monkeypatch.setattr(random, "randrange", lambda count: 0)
    return "bunqueue://" + ",".join(f"127.0.0.1:{server.port}" for server in hosts.servers.values())


class Handler:
    """Holds its jobs until it is told to end them, and counts how often each was begun."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.end = threading.Event()

    def __call__(self, job: ActiveJob) -> str:
        self.begun[job.id] += 1
        self.end.wait()
        return f"done in {job.queue}"


@asynccontextmanager
async def working(queues: list[str], handler: Handler, url: str) -> AsyncIterator[None]:
    workers = [Worker(name, handler, url=url, lock_ttl=LOCK_MS) for name in queues]
    threads = [threading.Thread(target=worker.run_forever, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        handler.end.set()
        for worker in workers:
            worker.stop_soon()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])


async def test_all_that_is_under_way_goes_on_elsewhere(hosts: Hosts, url: str) -> None:
    """Jobs that run, waits for results, long polls, listeners and pushes: of shards that die with the host,
    and of shards that live on another one."""
    names = [hosts.queue_of("a"), hosts.queue_of("b")]
    polled = [hosts.queue_of("a"), hosts.queue_of("b")]
    filled = [hosts.queue_of("a"), hosts.queue_of("b")]
    handler, quick = Handler(), Handler()
    quick.end.set()
    queues = {name: AsyncQueue(name, url=url) for name in (*names, *polled, *filled)}
    async with (
        AsyncQueueEvents(names[0], types="completed", url=url) as heard,
        working(names, handler, url),
        working(polled, quick, url),  # they wait in long polls
    ):
        jobs = [await queues[name].add("long", 1) for name in names]
        await eventually(lambda: len(handler.begun) == len(jobs), "both run")
        results = [asyncio.create_task(job.result(timeout=LONG_MS)) for job in jobs]
        await queues[names[0]].counts()  # what was sent before it has arrived
        victim, other = hosts.servers["a"], hosts.servers["b"]
        await asyncio.to_thread(victim.kill_all)
        pushes = [queues[name].add("job", number) for name in filled for number in range(ADDED)]
        ids = {job.id for job in await asyncio.gather(*pushes)}
        assert len(ids) == 2 * ADDED
        assert [(await queues[name].counts()).waiting for name in filled] == [ADDED, ADDED], "each once"
        later = [await queues[name].add("late", 2) for name in polled]
        await asyncio.gather(*(job.result(timeout=LONG_MS) for job in later))  # not after their lock time
        assert quick.begun == {job.id: 1 for job in later}
        handler.end.set()
        assert await asyncio.gather(*results) == [f"done in {name}" for name in names]
        assert handler.begun == {job.id: 1 for job in jobs}, "no handler ran twice"
        event = await heard.next(timeout=LONG_MS)
        while event is not None and event.type == "lost":  # it says so when it has a new connection
            event = await heard.next(timeout=LONG_MS)
        assert event is not None
        assert event.job_id == jobs[0].id
    for queue in queues.values():
        await queue.close()
    cli = Cli(other)
    cli.url = url
    for name in filled:
        done = await asyncio.to_thread(cli.program, "push", name, "{}")
        assert (done.status, done.err) == (0, "")
        found = await asyncio.to_thread(cli.json, "queue", "counts", name)
        assert found["waiting"] == ADDED + 1
