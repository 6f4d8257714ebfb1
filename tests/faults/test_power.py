"""What is promised to survive a power loss is handed to the disk before the reply.

The power is cut in test_power_cut.py.  The tests here show that SQLite is told to flush each commit
(``sync = "full"``), and that for ``durable: true`` the log of the right shard is flushed after the
commit and before the reply leaves.  That a flushed file survives is left to the kernel and the disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support import disk_log
from support.naming import queue_on
from support.server import Server, StartServer
from support.wire import Wire

from bunqueue.server.settings.settings import Settings
from shardproc import process
from shardproc.core import Shard
from shardproc.storage.database import Database

OFF, NORMAL, FULL, EXTRA = range(4)  # values of "pragma synchronous"
V2 = 2
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


class Flushes(list[str]):
    """The files that were flushed by the process itself, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: list[int] = []  # jobs that another connection saw on disk at that moment


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    """Records what `os.fdatasync` and `os.fsync` are called on, and how much was committed by then."""
    seen = Flushes()

    def record(real: Any) -> Any:
        def flush(descriptor: int) -> None:
            real(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if os.path.isdir(path):  # the names of new files, once
                return
            seen.append(path)
            seen.committed.append(jobs_on_disk(Path(path.removesuffix("-wal"))))

        return flush

    monkeypatch.setattr(os, "fdatasync", record(os.fdatasync))
    monkeypatch.setattr(os, "fsync", record(os.fsync))
    return seen


def jobs_on_disk(file: Path) -> int:
    """How many jobs somebody else would find in the file now."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("select count(*) from jobs").fetchone()
    return int(count)


def pragma(database: Database, name: str) -> Any:
    return database.connection.execute(f"pragma {name}").fetchone()[0]


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[Shard]]:
    """Two shards as the processes run them, with what they would be told to start with."""
    made = []
    for number in range(2):
        shard = Shard(str(tmp_path / f"shard-{number:02d}.db"), full_sync=False)
        shard.recover(1000, "epoch", lambda loaded, total: None)
        made.append(shard)
    yield made
    for shard in made:
        shard.close()


def execute(shard: Shard, **command: Any) -> None:
    """Hand a command to a shard, in the batch that the next commit ends."""
    shard.execute(shard.client(1, V2), msgpack.packb(command), 1000)


@pytest.mark.parametrize(("full_sync", "level"), [(True, FULL), (False, NORMAL)])
def test_the_database_is_opened_with_the_right_level(tmp_path: Path, full_sync: bool, level: int) -> None:
    database = Database(str(tmp_path / "shard-00.db"), full_sync=full_sync)
    try:
        assert pragma(database, "synchronous") == level
        assert pragma(database, "journal_mode") == "wal"
    finally:
        database.close()


@pytest.mark.parametrize(("sync", "level"), [("full", FULL), ("normal", NORMAL)])
def test_the_setting_reaches_the_database(tmp_path: Path, sync: str, level: int) -> None:
    settings = Settings(data_dir=str(tmp_path), shards=2, sync=sync)  # type: ignore[arg-type]
    start = process.ShardStart(1, 2, "unused", "secret", "epoch", settings.to_json().decode())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shard = process._open(start, settings, ours)
    try:
        assert shard.store.database.path == str(tmp_path / "shard-01.db")
        assert pragma(shard.store.database, "synchronous") == level
    finally:
        shard.close()


def test_a_durable_push_is_flushed_before_its_reply(
    shards: list[Shard], flushes: Flushes, tmp_path: Path
) -> None:
    execute(shards[1], cmd="PUSH", queue=queue_on(1), data=1, durable=True, reqId=1)
    assert flushes == []  # nothing is on disk yet, and no reply is out
    replies = shards[1].commit()
    assert [reply.ok for _, reply in replies] == [True]
    assert flushes == [str(tmp_path / "shard-01.db-wal")]
    assert flushes.committed == [1]


def test_what_was_acknowledged_before_is_flushed_with_it(shards: list[Shard], flushes: Flushes) -> None:
    for _ in range(3):
        execute(shards[0], cmd="PUSH", queue=queue_on(0), data=1)
        shards[0].commit()
    assert flushes == []
    execute(shards[0], cmd="PUSH", queue=queue_on(0), data=2, durable=True)
    shards[0].commit()
    assert flushes.committed == [4]


def test_one_flush_serves_a_whole_batch(shards: list[Shard], flushes: Flushes, tmp_path: Path) -> None:
    for number in range(50):
        execute(shards[0], cmd="PUSH", queue=queue_on(0), data=number, durable=number % 2 == 0)
    jobs = [{"data": number, "durable": number == 7} for number in range(10)]
    execute(shards[0], cmd="PUSHB", queue=queue_on(0), jobs=jobs)
    assert len(shards[0].commit()) == 51
    assert flushes == [str(tmp_path / "shard-00.db-wal")]
    assert flushes.committed == [60]


def test_other_commands_are_not_flushed(shards: list[Shard], flushes: Flushes) -> None:
    shard, queue = shards[0], queue_on(0)
    execute(shard, cmd="PUSH", queue=queue, data=1, durable=True)
    shard.commit()
    flushes.clear()
    execute(shard, cmd="PUSH", queue=queue, data=1)
    execute(shard, cmd="PUSHB", queue=queue, jobs=[{"data": 1}])
    execute(shard, cmd="GetJobCounts", queue=queue)
    shard.commit()
    assert flushes == []


def test_with_full_sync_sqlite_flushes_itself(tmp_path: Path, flushes: Flushes) -> None:
    shard = Shard(str(tmp_path / "shard-00.db"), full_sync=True)
    try:
        shard.recover(1000, "epoch", lambda loaded, total: None)
        execute(shard, cmd="PUSH", queue=queue_on(0), data=1, durable=True)
        shard.commit()
    finally:
        shard.close()
    assert flushes == []  # a second flush would be paid for twice


def test_without_a_file_there_is_nothing_to_flush(flushes: Flushes) -> None:
    shard = Shard(":memory:", full_sync=False)
    shard.recover(1000, "epoch", lambda loaded, total: None)
    execute(shard, cmd="PUSH", queue=queue_on(0), data=1, durable=True)
    assert len(shard.commit()) == 1
    shard.close()
    assert flushes == []


def test_a_copy_of_the_files_at_the_moment_of_the_flush_has_the_job(
    shards: list[Shard], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a disk would hold that lost all that came after the flush."""
    copy = tmp_path / "copy"
    copy.mkdir()
    real = os.fdatasync

    def flush(descriptor: int) -> None:
        real(descriptor)
        for name in ("shard-00.db", "shard-00.db-wal"):
            shutil.copyfile(tmp_path / name, copy / name)

    monkeypatch.setattr(os, "fdatasync", flush)
    execute(shards[0], cmd="PUSH", queue=queue_on(0), data={"n": 1}, durable=True)
    ((_, reply),) = shards[0].commit()
    found = Shard(str(copy / "shard-00.db"), full_sync=False)
    try:
        assert found.recover(2000, "epoch", lambda loaded, total: None) == 1
        assert list(found.engine.state.jobs) == [reply.id]  # type: ignore[attr-defined]
    finally:
        found.close()


def logging_flushes(make_server: StartServer, tmp_path: Path, *flags: str) -> tuple[Server, Path]:
    """A server whose flushes are logged, and the log."""
    server = make_server(*flags)
    server.environ = disk_log.preload(tmp_path)
    server.start()
    return server, tmp_path / "disk.log"


def flushed(log: Path) -> list[int]:
    """How often the write-ahead log of each shard was flushed."""
    records = [record.name for record in disk_log.read(log) if record.op == disk_log.FLUSH]
    return [records.count(f"shard-{number:02d}.db-wal") for number in range(2)]


@needs_gcc
async def test_only_the_shard_of_the_queue_flushes(make_server: StartServer, tmp_path: Path) -> None:
    server, log = logging_flushes(make_server, tmp_path)
    async with await Wire.open(server.address) as wire:
        first, second = flushed(log)
        for number in range(2):
            await wire.ok("PUSH", queue=queue_on(number), data=1)
        assert flushed(log) == [first, second]
        await wire.ok("PUSH", queue=queue_on(1), data=1, durable=True)
        assert flushed(log) == [first, second + 1]
        await wire.ok("PUSHB", queue=queue_on(0), jobs=[{"data": 1}, {"data": 2, "durable": True}])
        assert flushed(log) == [first + 1, second + 1]


@needs_gcc
async def test_all_shards_of_a_flow_flush(make_server: StartServer, tmp_path: Path) -> None:
    """One durable job is enough; without any, nobody flushes."""
    server, log = logging_flushes(make_server, tmp_path)
    async with await Wire.open(server.address) as wire:
        before = flushed(log)
        for number, durable in enumerate((False, True)):
            jobs: list[dict[str, Any]] = [
                {"id": f"{number}-{place}", "queue": queue_on(place), "input": {"data": {}}}
                for place in range(2)
            ]
            jobs[0]["input"]["durable"] = durable
            await wire.ok("PUSHF", jobs=jobs)
            grown = [now > then for now, then in zip(flushed(log), before, strict=True)]
            assert grown == [durable, durable]


@needs_gcc
async def test_a_server_with_full_sync(make_server: StartServer, tmp_path: Path) -> None:
    server, log = logging_flushes(make_server, tmp_path, "--sync", "full")
    assert "sync=full" in server.ready
    async with await Wire.open(server.address) as wire:
        for number in range(2):
            before = flushed(log)
            await wire.ok("PUSH", queue=queue_on(number), data=1, durable=True)
            assert flushed(log)[number] > before[number]
        ids = (await wire.ok("PUSHB", queue=queue_on(0), jobs=[{"data": n} for n in range(100)]))["ids"]
    server.kill_all()
    server.restart()
    async with await Wire.open(server.address) as wire:
        for job_id in ids:
            assert (await wire.ok("GetState", id=job_id))["state"] == "waiting"
