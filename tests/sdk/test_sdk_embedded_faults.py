"""The embedded engine when its disk, or the event loop that used it, is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, CommandFailed, JobCounts, Queue, StorageError, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.embedded import open_engines, shared_transport
from bunqueue.protocol.commands import core, query
from shardproc.engine.background import retention
from shardproc.engine.handlers import locks

BIG = "x" * 200_000
QUICK = 60.0  # seconds; a session that hangs takes for ever


def fill_the_disk(path: str) -> None:
    """Have SQLite believe that the disk is full, until the file is opened anew."""
    engine = open_engines.engines[path]
    database = engine._shard.store.database.connection
    (pages,) = database.execute("pragma page_count").fetchone()
    database.execute(f"pragma max_page_count = {pages}")


async def test_a_full_disk_is_told_and_the_next_call_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        await queue.add("first")
        fill_the_disk(path)
        adding = [asyncio.create_task(queue.add("big", BIG)) for _ in range(3)]
        for outcome in await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), QUICK):
            assert isinstance(outcome, StorageError)
            assert "database or disk is full" in str(outcome)
            assert "next one opens the file anew" in str(outcome)
        assert await asyncio.wait_for(queue.counts(), QUICK) == JobCounts(waiting=1)
        await asyncio.gather(*[queue.add("big", BIG) for _ in range(3)])
        assert await queue.counts() == JobCounts(waiting=4)


async def test_all_sessions_go_on_after_a_full_disk(tmp_path: Path) -> None:
    """A worker and a blocking queue in other threads notice no more than a lost connection."""
    path = str(tmp_path / "jobs.db")
    with Queue("q", embedded=True, data_path=path) as other:
        async with (
            AsyncQueue("q", embedded=True, data_path=path) as queue,
            Worker("q", lambda job: None, embedded=True, data_path=path) as worker,
        ):
            await queue.add("first")
            await eventually(lambda: worker.stats.completed == 1, "the first is done")
            fill_the_disk(path)
            with pytest.raises(StorageError):
                await queue.add("big", BIG)
            await asyncio.to_thread(other.add, "second")
            await eventually(lambda: worker.stats.completed == 2, "the second is done")


async def test_a_file_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(StorageError, match="something else than the file of a queue"):
        await AsyncQueue("q", embedded=True, data_path=str(path)).add("n")


async def test_a_delay_outlives_the_event_loop_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing else lets the engine look: a deadline that is forgotten is forgotten for an hour.
    for module, name in ((locks, "GRACE_MS"), (locks, "SWEEP_MS"), (retention, "ROUND_MS")):
        monkeypatch.setattr(module, name, 3_600_000)
    path = str(tmp_path / "jobs.db")
    times: list[float] = []

    async def add() -> float:
        before = time.time()
        await AsyncQueue("q", embedded=True, data_path=path).add("n", delay=300)  # and is never closed
        return before

    async with Worker("q", lambda job: times.append(time.time()), embedded=True, data_path=path):
        added_at = await asyncio.to_thread(lambda: asyncio.run(add()))
        await eventually(lambda: bool(times), "it has run")
        assert times[0] - added_at > 0.2


async def test_a_closed_event_loop_keeps_nobody_from_his_replies(tmp_path: Path) -> None:
    """Two parked pulls; the first one's event loop is closed, so the job goes to the second."""
    path = str(tmp_path / "jobs.db")

    async def park() -> asyncio.Task[bytes]:
        transport = await shared_transport(path)
        pull = asyncio.create_task(transport.call(core.Pull(queue="q", timeout=60_000)))
        await asyncio.sleep(0)
        await transport.call(query.GetState(id="none"))  # answered after the pull was parked
        return pull

    def lose() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(park())._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        await queue.count()
        await asyncio.to_thread(lose)
        pull = await park()
        handle = await asyncio.wait_for(queue.add("n"), QUICK)
        assert handle.id.encode() in await asyncio.wait_for(pull, QUICK)


def test_a_blocking_call_is_told_of_a_full_disk_and_the_next_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with (
        Queue("q", embedded=True, data_path=path) as queue,
        Queue("q", embedded=True, data_path=path) as other,
    ):
        queue.add("first")
        other.add("second")
        fill_the_disk(path)
        with pytest.raises(StorageError, match="next one opens the file anew"):
            queue.add("big", BIG)
        assert other.counts() == queue.counts() == JobCounts(waiting=2)
        queue.add("big", BIG)


def test_blocking_calls_from_many_threads_with_work_that_goes_in_slices(tmp_path: Path) -> None:
    """A heavy command is answered by the engine's own thread, while others go on adding."""
    with Queue("q", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        queue.add_bulk([("n", number) for number in range(20_000)])
        with ThreadPoolExecutor(8) as threads:
            adding = [threads.submit(queue.add, "late", number) for number in range(500)]
            listing = [threads.submit(queue.get_jobs, limit=10_000) for _ in range(3)]
            assert len({each.result().id for each in adding}) == 500
            assert [len(each.result()) for each in listing] == [10_000] * 3
        assert queue.count() == 20_500


async def test_a_job_in_hand_is_not_run_again_after_a_full_disk(tmp_path: Path) -> None:
    """The file is opened anew by the process whose worker has the job."""
    path = str(tmp_path / "jobs.db")
    gate, runs = asyncio.Event(), []

    async def handler(job: ActiveJob) -> None:
        runs.append(job.id)
        await gate.wait()

    async with (
        AsyncQueue("q", embedded=True, data_path=path) as queue,
        Worker("q", handler, embedded=True, data_path=path, concurrency=2) as worker,
    ):
        job = await queue.add("first")
        await eventually(lambda: runs, "it has begun")
        fill_the_disk(path)
        with pytest.raises(StorageError):
            await queue.add("big", BIG)
        assert await job.state() == "active"
        gate.set()
        await eventually(lambda: worker.stats.completed == 1, "it is done")
        assert runs == [job.id]


HOLDER = """
import sys, time
from bunqueue import Queue, Worker

path, interval, renewed = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "True"

def hold(job):
    with Queue("q", embedded=True, data_path=path) as queue:
        while renewed and (queue.get_job(job.id).last_heartbeat_ms or 0) <= job.job().started_at_ms:
            time.sleep(0.01)  # between two looks
    print("held", flush=True)
    time.sleep(600)  # until it is killed

with Queue("q", embedded=True, data_path=path) as queue:
    queue.add("n", max_attempts=3)
Worker("q", hold, embedded=True, data_path=path, heartbeat_interval=interval).run_forever()
"""


@pytest.mark.parametrize("renewed", [True, False])
def test_what_a_killed_process_had_in_hand_goes_back_at_once(tmp_path: Path, renewed: bool) -> None:
    path = str(tmp_path / "jobs.db")
    command = [sys.executable, "-c", HOLDER, path, "10" if renewed else "10000", str(renewed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.kill()
    with Queue("q", embedded=True, data_path=path) as queue:
        (job,) = queue.get_jobs()
        assert (job.state, job.attempts, job.stall_count) == ("waiting", int(renewed), int(renewed))


# -- the file goes away


def without_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


@pytest.mark.parametrize("remove", [Path.unlink, without_log], ids=["file", "log"])
async def test_a_deleted_file_is_written_anew(
    tmp_path: Path, remove: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        await queue.add("first")
        remove(path)
        engine = open_engines.engines[str(path)]
        await eventually(lambda: engine.closed, "the loss is noticed")
        await queue.add("second")
        assert await queue.counts() == JobCounts(waiting=2)
    assert "written anew with all that was acknowledged" in caplog.text
    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        assert await queue.counts() == JobCounts(waiting=2)


async def test_a_worker_goes_on_when_its_file_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    where = EndpointOptions(embedded=True, data_path=path)
    async with AsyncQueue("q", **where) as queue, Worker("q", lambda job: None, **where) as worker:
        path.unlink()
        engine = open_engines.engines[str(path)]
        await eventually(lambda: engine.closed, "the loss is noticed")
        await queue.add("one")
        await eventually(lambda: worker.stats.completed == 1, "it is done")


async def test_nothing_is_added_while_another_file_is_in_the_way(tmp_path: Path) -> None:
    path, other = tmp_path / "jobs.db", tmp_path / "other.db"
    async with AsyncQueue("q", embedded=True, data_path=other) as queue:
        await queue.add("of another file")
    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        await queue.add("first")
        own = tmp_path / "own.db"
        path.rename(own)
        other.rename(path)
        watch = open_engines.engines[str(path)]._watch
        await eventually(lambda: watch.refusal is not None, "the exchange is noticed")
        for _ in range(2):
            with pytest.raises(CommandFailed, match="was replaced by another file") as refused:
                await queue.add("second")
            assert refused.value.code == "STORAGE_FAILED"
        assert await queue.counts() == JobCounts(waiting=1)
        assert (tmp_path / "jobs.db.rescued").exists()
        path.rename(other)
        own.rename(path)
        await eventually(lambda: watch.refusal is None, "its own file is noticed")
        await queue.add("second")
        assert await queue.counts() == JobCounts(waiting=2)
