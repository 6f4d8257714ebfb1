"""The client on an engine inside the same process: same names, same answers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.server import StartServer
from support.waiting import eventually, wait_until

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    BunqueueError,
    FileInUse,
    JobCounts,
    Queue,
    StorageError,
    Worker,
)
from bunqueue.server.folder.data_folder import open_data_folder


@pytest.mark.parametrize("on_disk", [True, False])
async def test_the_whole_way(tmp_path: Path, on_disk: bool) -> None:
    path = str(tmp_path / "jobs.db") if on_disk else None
    done: Counter[int] = Counter()

    async def handler(job: ActiveJob) -> int:
        await job.progress(50)
        if job.data % 5 == 0 and not job.attempts:
            raise ValueError(job.data)
        done[job.data] += 1
        return job.data * 2

    async with AsyncQueue(
        "q", embedded=True, data_path=path, default_job_options={"backoff": 1, "max_attempts": 2}
    ) as queue:
        handles = await queue.add_bulk([("n", number) for number in range(100)])
        async with Worker(
            "q", handler, embedded=True, data_path=path, concurrency=10, heartbeat_interval=10
        ) as worker:
            await eventually(lambda: worker.stats.completed == 100, "all are done")
        assert done == Counter(range(100))
        assert worker.stats.failed == 20
        assert await queue.counts() == JobCounts(completed=100)
        assert await handles[7].result() == 14
        with pytest.raises(BunqueueError, match="Job not found"):
            await queue.handle("nothing").job()


async def test_stopping_gives_back_what_was_not_begun(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    gate = asyncio.Event()

    async def handler(job: ActiveJob) -> None:
        await gate.wait()

    async with AsyncQueue("q", embedded=True, data_path=path) as queue:
        handles = await queue.add_bulk([("n", number) for number in range(3)])
        worker = Worker("q", handler, embedded=True, data_path=path, concurrency=2)
        await worker.start()
        await eventually(lambda: worker.stats.active == 2, "two run")
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        gate.set()
        await stopping
        assert [await handle.state() for handle in handles] == ["completed", "completed", "waiting"]


def test_what_was_added_is_there_for_the_next_who_opens_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with Queue("q", embedded=True, data_path=path) as queue:
        job_id = queue.add("n", {"x": 1}).id

    async def look() -> object:
        async with AsyncQueue("q", embedded=True, data_path=path) as queue:
            return (await queue.handle(job_id).job()).data

    assert asyncio.run(look()) == {"x": 1}


HOLDER = """
import sys
from bunqueue import Queue
with Queue("q", embedded=True, data_path=sys.argv[1]) as queue:
    queue.add("n")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_belongs_to_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        begun = time.monotonic()
        text = f"^{path} is in use by another process; .* start a server to share it"
        with Queue("q", embedded=True, data_path=path) as queue:
            with pytest.raises(FileInUse, match=text):
                queue.add("n")
            with pytest.raises(FileInUse, match=text):
                Worker("q", print, embedded=True, data_path=path).run_forever()
            assert time.monotonic() - begun < 30
            holder.communicate(b"")
            queue.add("n")
            assert queue.count() == 2


def test_a_damaged_manifest_beside_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with (
        Queue("q", embedded=True, data_path=tmp_path / "jobs.db") as queue,
        pytest.raises(StorageError, match=r"has a damaged manifest\.json"),
    ):
        queue.add("n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "it is a folder; data_path names a file"),
        ("none/jobs.db", "there is no folder .*/none; make it first"),
        ("notes.txt", "it is something else than the file of a queue"),
        ("broken.db", "malformed|not a database"),
    ],
)
def test_a_path_that_cannot_be_used_is_named_and_left_alone(tmp_path: Path, name: str, text: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "notes.txt").write_text("hello")
    (place / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    before = set(tmp_path.rglob("*"))
    with Queue("q", embedded=True, data_path=place / name) as queue:
        with pytest.raises(StorageError, match=f"cannot be opened: .*{text}"):
            queue.add("n")
    assert set(tmp_path.rglob("*")) - before <= {place / "broken.lock"}
    assert (place / "notes.txt").read_text() == "hello"


def adopt(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bunqueue", "adopt", str(file), "--data-dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_cannot_be_taken_over_is_left_alone(tmp_path: Path) -> None:
    file, folder = tmp_path / "jobs.db", tmp_path / "data"
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    for wrong, text in ((tmp_path / "none.db", "there is no file "), (notes, "it is something else than")):
        done = adopt(wrong, folder)
        assert done.returncode == 2
        assert text in done.stderr
    with Queue("q", embedded=True, data_path=file) as queue:
        queue.add("n")
        assert "is in use by another process; end that one first" in adopt(file, folder).stderr
    assert not (folder / "manifest.json").exists()
    assert adopt(file, folder).returncode == 0
    with Queue("q", embedded=True, data_path=file) as queue:
        queue.add("n")
    assert "has jobs already, in shard-00.db" in adopt(file, folder).stderr
    assert file.exists()
    with Queue("q", embedded=True, data_path=folder / "shard-00.db") as queue:
        assert queue.count() == 1


def test_taking_over_goes_on_after_an_interruption(tmp_path: Path) -> None:
    """At the worst moment: the folder is there, the file is not in it."""
    file, folder = tmp_path / "jobs.db", tmp_path / "data"
    with Queue("q", embedded=True, data_path=file) as queue:
        queue.add("n")
    open_data_folder(folder, 1)
    assert adopt(file, folder).returncode == 0
    with Queue("q", embedded=True, data_path=folder / "shard-00.db") as queue:
        assert queue.count() == 1


def test_a_server_with_one_shard_takes_over_the_file_and_gives_it_back(
    tmp_path: Path, make_server: StartServer
) -> None:
    file, folder = tmp_path / "jobs.db", tmp_path / "data"
    with Queue("q", embedded=True, data_path=file) as queue:
        job_id = queue.add("n", 1, unique_key="only").id
    done = adopt(file, folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"start the server: bunqueue start --data-dir {folder} --shards 1\n")
    assert not file.exists()
    server = make_server(data_dir=folder, shards=1)
    server.start()
    with Queue("q", port=server.port) as queue:
        assert queue.add("n", 2, unique_key="only").id == job_id
        with Queue("q", embedded=True, data_path=folder / "shard-00.db") as meanwhile:
            with pytest.raises(FileInUse):
                meanwhile.count()
    server.stop()
    with Queue("q", embedded=True, data_path=folder / "shard-00.db") as queue:
        assert queue.counts() == JobCounts(waiting=1)


UNCLOSED = """
import asyncio, sys
from bunqueue import AsyncQueue, Queue
queue = Queue("q", embedded=True, data_path=sys.argv[1])
for number in range(5):
    queue.add("n", number)

async def main():
    await AsyncQueue("q", embedded=True, data_path=sys.argv[1]).add("n", 5)

asyncio.run(main())
if sys.argv[2] == "error":
    raise LookupError("the program ends with an error")
"""


@pytest.mark.parametrize("end", ["quietly", "error"])
def test_what_nobody_closed_is_whole_at_the_end_of_the_process(tmp_path: Path, end: str) -> None:
    file = tmp_path / "jobs.db"
    command = [sys.executable, "-W", "ignore", "-c", UNCLOSED, file, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ("LookupError" in done.stderr, done.returncode) == (end == "error", int(end == "error")), done
    assert not file.with_name("jobs.db-wal").exists()
    with sqlite3.connect(file) as database:
        assert database.execute("select count(*) from job_history").fetchone() == (6,)


def test_the_file_of_one_of_several_shards_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "shards": 4}')
    with Queue("q", embedded=True, data_path=tmp_path / "shard-00.db") as queue:
        with pytest.raises(StorageError, match="in the folder of a server with 4 shards; start that server"):
            queue.add("n")
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_folder_that_is_becoming_one_of_several_shards_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "shards": 1}')
    (tmp_path / ".reshard").mkdir()
    (tmp_path / ".reshard" / "complete.json").write_text('{"format": 1, "old": 1, "new": 4}')
    with Queue("q", embedded=True, data_path=tmp_path / "shard-00.db") as queue:
        with pytest.raises(StorageError, match="run bunqueue reshard again to finish it"):
            queue.add("n")
    assert not (tmp_path / "shard-00.db").exists()


def test_files_are_private(tmp_path: Path) -> None:
    with Queue("q", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        queue.add("n")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.keys() >= {"jobs.db", "jobs.db-wal", "jobs.lock"}
    assert set(modes.values()) == {0o600}


def test_a_durable_job_in_a_new_folder_has_the_names_of_the_files_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), fsync(number)))
    with Queue("q", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        queue.add("n", durable=True)
        queue.add("n", durable=True)
    assert synced == [tmp_path.stat().st_ino]


async def test_blocking_and_asynchronous_objects_share_one_engine(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")

    def in_thread() -> str:
        with Queue("q", embedded=True, data_path=path) as queue:
            handle = queue.add("n", 4)
            wait_until(lambda: handle.state() == "completed", "the worker has done it")
            return str(handle.result())

    async with Worker("q", lambda job: job.data + 1, embedded=True, data_path=path):
        assert await asyncio.to_thread(in_thread) == "5"
