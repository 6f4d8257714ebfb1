"""Cut lines, killed servers, blocked loops: what the client promises when things break."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sdk.conftest import is_renewed, told
from support.proxy import Proxy
from support.server import Server, quiet_port
from support.waiting import eventually, until

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    BunqueueError,
    CommandTimeout,
    ConnectionLost,
    ConnectionOptions,
    ConnectTimeout,
    JobProgress,
    Retry,
    Worker,
)


@contextlib.asynccontextmanager
async def working(queue: str, handler: Callable[[ActiveJob], Any], **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(queue, handler, **options)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace=0)


async def test_a_stream_of_cut_lines_loses_no_job_and_kills_no_worker(
    shared_server: Server, proxy: Proxy
) -> None:
    done: Counter[int] = Counter()

    async def handler(job: ActiveJob) -> None:
        await asyncio.sleep(0.005)  # so that some jobs run when the connection is cut
        done[job.data] += 1

    async with AsyncQueue("sdk-cut", port=shared_server.port) as queue:
        await queue.add_bulk([("n", number) for number in range(1000)])
        async with working("sdk-cut", handler, concurrency=20, port=proxy.port) as worker:
            for part in range(1, 6):
                await eventually(lambda part=part: len(done) > part * 150, "some more are done")  # type: ignore[misc]
                proxy.cut()
            await eventually(lambda: len(done) == 1000, "all are done")
            await eventually(lambda: worker.stats.active == 0, "the worker is idle")
            await worker._current._reporter.drain()  # type: ignore[union-attr]
        counts = await queue.counts()
        assert (counts.completed, counts.failed, counts.active) == (1000, 0, 0)


async def test_acknowledgements_survive_a_cut_line_with_their_tokens(
    shared_server: Server, proxy: Proxy
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(job: ActiveJob) -> str:
        begun.set()
        await gate.wait()
        return "done"

    async with AsyncQueue("sdk-ack", port=shared_server.port) as queue:
        handle = await queue.add("n", max_attempts=1)
        async with working("sdk-ack", handler, port=proxy.port, heartbeat_interval=20) as worker:
            await begun.wait()
            await eventually(lambda: is_renewed(handle), "the lock was renewed")
            proxy.cut()
            gate.set()
            await until(worker, completed=1)
            assert worker.stats.lost == 0
        assert await handle.result() == "done"


async def test_a_silent_line_is_noticed_and_left(shared_server: Server, proxy: Proxy) -> None:
    options = ConnectionOptions(ping_interval=100, command_timeout=300, max_ping_failures=2)
    async with AsyncQueue("sdk-silent", port=proxy.port, connection=options) as queue:
        await eventually(lambda: _added(queue), "a job is added")
        async with working("sdk-silent", lambda job: 1, port=proxy.port, connection=options) as worker:
            await until(worker, completed=1)
            proxy.silent = True
            with pytest.raises((CommandTimeout, ConnectionLost, ConnectTimeout)):
                await queue.add("n")
            before = proxy.accepted
            await eventually(lambda: proxy.accepted > before, "somebody has connected anew")
            proxy.silent = False
            proxy.cut()
            await eventually(lambda: _added(queue), "jobs can be added again")
            await until(worker, completed=2)


async def _added(queue: AsyncQueue) -> bool:
    try:
        await queue.add("n")
    except BunqueueError:
        return False
    return True


async def test_a_killed_server_loses_nothing_that_was_acknowledged(
    make_server: Callable[..., Server],
) -> None:
    """Adding and working go on through kills and restarts; every job whose add returned is done."""
    server = make_server(port=quiet_port())
    server.start()
    added: list[str] = []
    done: Counter[str] = Counter()
    stopping = False

    async def handler(job: ActiveJob) -> None:
        await asyncio.sleep(0.002)  # so that some jobs run when the server dies
        done[job.id] += 1

    async def produce(queue: AsyncQueue) -> None:
        while not stopping:
            with contextlib.suppress(ConnectionLost):  # the outcome of that one is unknown
                added.append((await queue.add("n")).id)

    # A worker that has to wait for its turn for longer than a lock costs its jobs an attempt.
    options: Any = {"max_attempts": 20}
    async with AsyncQueue("sdk-kill", port=server.port, default_job_options=options) as queue:
        # Jobs whose pull was answered into the void come back when their lock runs out, so let that be soon.
        where = {"port": server.port, "lock_ttl": 2000}
        async with working("sdk-kill", handler, concurrency=10, **where) as worker:
            producers = [asyncio.create_task(produce(queue)) for _ in range(5)]
            for _ in range(2):
                before = len(done)
                await eventually(lambda before=before: len(done) > before + 100, "work goes on")  # type: ignore[misc]
                await asyncio.to_thread(server.kill_all)
                await asyncio.to_thread(server.restart)
            before = len(done)
            await eventually(lambda: len(done) > before + 100, "work goes on")
            stopping = True
            await asyncio.gather(*producers)
            await eventually(lambda: set(added) <= set(done), "everything that was added is done")
            await eventually(lambda: worker.stats.active == 0, "the worker is idle")
        assert len(added) > 300
        assert (await queue.counts()).failed == 0


async def test_jobs_in_hand_survive_the_death_of_the_server(make_server: Callable[..., Server]) -> None:
    """The promise: a restart runs no job again whose worker is alive."""
    server = make_server(port=quiet_port())
    server.start()
    begun, gate = asyncio.Event(), asyncio.Event()
    runs = 0

    async def handler(job: ActiveJob) -> str:
        nonlocal runs
        runs += 1
        begun.set()
        await gate.wait()
        return "done"

    async with AsyncQueue("sdk-hand", port=server.port) as queue:
        handle = await queue.add("n")
        async with working("sdk-hand", handler, concurrency=5, port=server.port) as worker:
            await begun.wait()
            await asyncio.to_thread(server.kill_all)
            await asyncio.to_thread(server.restart)
            assert await handle.state() == "active"
            gate.set()
            await until(worker, completed=1)
            assert (runs, worker.stats.lost) == (1, 0)
        assert await handle.result() == "done"


async def test_a_dead_shard_is_waited_for(make_server: Callable[..., Server]) -> None:
    server = make_server(shards=1)
    server.start()
    async with AsyncQueue("sdk-shard", port=server.port) as queue:
        await queue.add("n")
        await asyncio.to_thread(server.kill_shards)
        # Sent over and over while the shard starts anew; only one whose reply was lost is not.
        results = await asyncio.gather(*[queue.add("n") for _ in range(20)], return_exceptions=True)
        assert {type(result) for result in results if isinstance(result, Exception)} <= {ConnectionLost}
        assert await queue.count() >= 1 + sum(not isinstance(result, Exception) for result in results)


async def test_a_handler_that_blocks_the_loop_keeps_its_job(shared_server: Server) -> None:
    """Locks are renewed from a thread of their own; the server looks for expired ones every 5 s."""
    runs: Counter[int] = Counter()

    async def blocking(job: ActiveJob) -> str:
        runs[job.data] += 1
        time.sleep(12)  # noqa: ASYNC251  # longer than a lock and those 5 s, and costs no job all the same
        return "done"

    async with AsyncQueue("sdk-blocked", port=shared_server.port) as queue:
        handle = await queue.add("n", 1, max_attempts=5)
        thief_worker = Worker(
            "sdk-blocked", lambda job: runs.update([job.data]), port=shared_server.port, concurrency=5
        )
        async with working("sdk-blocked", blocking, port=shared_server.port, lock_ttl=6_000) as worker:
            await eventually(lambda: worker.stats.active == 1 or runs[1] == 1, "it runs")
            async with thief_worker:
                await until(worker, completed=1)
        assert runs == Counter({1: 1})
        assert worker.stats.lost == 0
        job = await handle.job()
        assert (job.result, job.attempts, job.stall_count) == ("done", 0, 0)


async def test_a_lost_lock_is_counted_and_told(
    shared_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bunqueue.worker.locks.lock_renewer import LockRenewer

    monkeypatch.setattr(LockRenewer, "_renew", lambda self, held: None)  # as if Python were frozen
    gate, taken = asyncio.Event(), asyncio.Event()
    errors: list[Exception] = []

    async def slow(job: ActiveJob) -> str:
        await gate.wait()
        return "too late"

    async def quick(job: ActiveJob) -> str:
        taken.set()
        return "in time"

    async with AsyncQueue("sdk-lost", port=shared_server.port) as queue:
        handle = await queue.add("n", max_attempts=5)
        port = shared_server.port
        async with working("sdk-lost", slow, on_error=errors.append, port=port, lock_ttl=500) as worker:
            await eventually(lambda: worker.stats.active == 1, "it runs")
            async with working("sdk-lost", quick, port=port) as thief:
                await taken.wait()
                await until(thief, completed=1)
            gate.set()
            await until(worker, lost=1)
        assert await handle.result() == "in time"
        assert (worker.stats.completed, worker.stats.lost) == (0, 1)
    (error,) = errors
    assert getattr(error, "code", "") == "lock_lost"
    assert f"the outcome of job {handle.id} (n) does not count" in str(error)
    (record,) = [record for record in caplog.records if "does not count" in record.message]
    assert (record.levelname, record.fields["event"]) == ("WARNING", "job_lost")  # type: ignore[attr-defined]


async def test_a_server_that_is_not_there_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    options = ConnectionOptions(refused_timeout=100)
    port = quiet_port()
    async with working("q", print, port=port, connection=options) as worker:
        await eventually(lambda: f"cannot reach 127.0.0.1:{port}, trying again" in caplog.text, "it is said")
        tries = []
        trouble = worker._current.stats.unreachable  # type: ignore[union-attr]
        worker._current.stats.unreachable = lambda error: (tries.append(error), trouble(error))  # type: ignore[union-attr, method-assign, assignment, return-value, func-returns-value]
        await eventually(lambda: len(tries) > 2, "it has tried again")
    assert len(told(caplog)) == 1

    errors: list[Exception] = []
    caplog.clear()
    async with working("q", print, port=port, connection=options, on_error=errors.append):
        await eventually(lambda: errors, "it is told")
    assert not told(caplog)


async def test_the_last_progress_outlives_a_restart(make_server: Callable[..., Server]) -> None:
    server = make_server(port=quiet_port())
    server.start()

    async def handler(job: ActiveJob) -> None:
        await job.progress(60, "pages 1 to 6")
        raise Retry(3_600_000)

    async with AsyncQueue("sdk-progress", port=server.port) as queue:
        handle = await queue.add("n")
        async with working("sdk-progress", handler, port=server.port) as worker:
            await eventually(lambda: worker.stats.failed, "the attempt has failed")
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.restart)
        assert await handle.progress() == JobProgress(60, "pages 1 to 6")
