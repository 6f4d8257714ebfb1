"""Spark's processes are killed in the middle of their work; what they were at is there once in the end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.folders import opened
from support.naming import queue_on
from support.procfs import started_with
from support.server import Server, StartServer
from support.waiting import wait_until
from support.wire import Wire

from bunqueue import Queue

STREAMS = Path(__file__).with_name("killed_program.py")
QUEUES = [queue_on(number, "read", 2) for number in range(2)]
ROWS = range(3000)
MARK = "BUNQUEUE_TEST_OF_KILLED"  # in the environment of all that is to be killed


def push(server: Server, count: int) -> None:
    """So many events on both shards."""
    for name in QUEUES:
        with Queue(name, port=server.port) as queue:
            queue.add_bulk([("n", number) for number in range(count)])


def work_off(server: Server, count: int) -> None:
    """Complete some of the jobs that were made of rows."""

    async def work() -> None:
        wire = await Wire.open(server.address)
        jobs = (await wire.ok("PULLB", queue="killed", count=count))["jobs"]
        await wire.ok("ACKB", ids=[job["id"] for job in jobs])
        await wire.close()

    asyncio.run(work())


def waiting(server: Server) -> int:
    with Queue("killed", port=server.port) as queue:
        return queue.counts().waiting


def logged(folder: Path) -> set[tuple[int, int]]:
    """All events that there are: shard and number."""
    found = set()
    with opened(folder) as shards:
        for number, db in enumerate(shards):
            for first, count in db.execute("select first_seq, count from events"):
                found.update((number, first + place) for place in range(count))
    return found


def written(lake: Path) -> int:
    """Files in a folder that are whole."""
    return sum(file.read_bytes().endswith(b"PAR1") for file in lake.glob("*.parquet"))


def streams(place: Path, read: Server, target: Server) -> subprocess.Popen[bytes]:
    arguments = [str(place), str(read.data_dir), str(target.port)]
    environ = os.environ | {MARK: str(place)}
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(STREAMS), *arguments], env=environ, stdout=log, stderr=log
        )


def kill(place: Path) -> None:
    """All processes of the streams, Java and its workers as well."""
    while alive := started_with(f"{MARK}={place}"):
        for process in alive:
            process.kill()


@pytest.mark.nightly
def test_streams_killed_in_the_middle_of_a_batch(
    spark: SparkSession, make_server: StartServer, tmp_path: Path
) -> None:
    """Driver and Java at once.  Events are in Parquet once then, and each row is one job."""
    read, target = (make_server(data_dir=tmp_path / name) for name in ("read", "target"))
    for server in (read, target):
        server.start()
    push(read, 100)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text("".join(f'{{"number": {number}}}\n' for number in ROWS))
    (tmp_path / "held").touch()
    first = streams(tmp_path, read, target)
    try:
        wait_until(
            # Of events the first batch of both shards, and of the second that of one.
            lambda: first.poll() is not None or (written(tmp_path / "lake") == 3 and waiting(target) > 500),
            "both are in the middle of a batch",
            240,
        )
        assert first.poll() is None, (tmp_path / "log").read_text()
    finally:
        kill(tmp_path)
        first.wait()
    (tmp_path / "held").unlink()  # nobody of it waits any more
    work_off(target, 300)
    push(read, 10)

    second = streams(tmp_path, read, target)
    try:
        assert second.wait(240) == 0, (tmp_path / "log").read_text()
    finally:
        kill(tmp_path)
    found = [(row["shard"], row["seq"]) for row in spark.read.parquet(str(tmp_path / "lake")).collect()]
    assert len(found) == 220
    assert set(found) == logged(Path(read.data_dir))
    with Queue("killed", port=target.port) as queue:
        assert sorted(job.data["number"] for job in queue.iter_jobs()) == list(ROWS)


@pytest.mark.nightly
def test_an_executor_killed_while_it_reads_and_writes(make_server: StartServer) -> None:
    """On a cluster whose executors are processes: another one does its task again."""
    server = make_server()
    server.start()
    push(server, 3000)
    with Queue(QUEUES[0], port=server.port) as first, Queue(QUEUES[1], port=server.port) as second:
        ids = [job.id for queue in (first, second) for job in queue.iter_jobs()]
    program = Path(__file__).with_name("killed_executor_program.py")
    done = subprocess.run(
        [sys.executable, program, server.data_dir, ",".join(QUEUES), str(server.port)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accepted, duplicates, repeated = map(int, done.stdout.split())
    assert repeated == 1
    assert accepted + duplicates == len(ids)
    assert duplicates > 0, "the one that was killed had added some"
    with Queue("killed", port=server.port) as queue:
        assert sorted(job.data["id"] for job in queue.iter_jobs()) == sorted(ids)
