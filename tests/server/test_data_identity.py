"""Files of a data folder that do not belong together are refused, and nothing is changed by it."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support import warm
from support.folders import as_they_are
from support.naming import queue_on
from support.server import NotStarted, Server, StartServer
from support.wire import Wire

from bunqueue.cli.framework import exits
from bunqueue.server.folder.data_folder import RESHARD, read_manifest, shard_file
from bunqueue.server.folder.file_lock import is_locked, lock_file
from shardproc.storage.database import Database, DatabaseBusy

JOBS = 20
QUEUES = (queue_on(0), queue_on(1))


def run(*arguments: object, status: int = 0) -> str:
    """A command of the program, as a user gives it; what it printed."""
    done = warm.run([*warm.COMMAND, *map(str, arguments)], env={"PYTHONPATH": str(warm.ROOT)})
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stderr


async def fill(server: Server) -> None:
    wire = await Wire.open(server.address)
    for queue in QUEUES:
        await wire.ok("PUSHB", queue=queue, jobs=[{"data": number} for number in range(JOBS)])
    wire.abort()


async def held(server: Server) -> list[int]:
    """How many jobs wait in the queue of each shard."""
    wire = await Wire.open(server.address)
    counts = [(await wire.ok("Count", queue=queue))["count"] for queue in QUEUES]
    wire.abort()
    return counts


@pytest.fixture
async def server(make_server: StartServer) -> Server:
    """A server of two shards with jobs in each, stopped in order."""
    server = make_server()
    server.start()
    await fill(server)
    server.stop()
    return server


@pytest.fixture
def folder(server: Server) -> Path:
    return Path(server.data_dir)


@pytest.fixture
def refusals(server: Server, folder: Path) -> Callable[[], list[str]]:
    """The lines that a start prints instead; the folder is as it was."""

    def refusals() -> list[str]:
        before = as_they_are(folder)
        with pytest.raises(NotStarted) as refused:
            server.start()
        assert as_they_are(folder) == before
        assert refused.value.status == exits.WRONG_FILES
        assert "Traceback" not in refused.value.stderr
        return refused.value.refusals

    return refusals


def remove(folder: Path, shard: int) -> None:
    for file in folder.glob(f"shard-{shard:02d}.db*"):
        file.unlink()


def exchange(folder: Path) -> None:
    first, second = shard_file(folder, 0), shard_file(folder, 1)
    first.rename(folder / "kept")
    second.rename(first)
    (folder / "kept").rename(second)


# What does not belong


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "killed"])
async def test_a_missing_file(make_server: StartServer, crashed: bool) -> None:
    server = make_server()
    server.start()
    await fill(server)
    if crashed:
        server.kill_all()
    else:
        server.stop()
    folder = Path(server.data_dir)
    remove(folder, 1)
    with pytest.raises(NotStarted) as refused:
        server.start()
    assert refused.value.status == exits.WRONG_FILES
    assert refused.value.refusals == [
        f"bunqueue: DATA_MISMATCH: {folder}/shard-01.db is missing; restore it from a backup of this folder, "
        f"or give it up: bunqueue accept-loss --data-dir {folder} --shard 1"
    ]
    assert not (folder / "shard-01.db").exists()


def test_an_empty_file(folder: Path, refusals: Callable[[], list[str]]) -> None:
    (folder / "shard-00.db").write_bytes(b"")
    (line,) = refusals()
    assert "shard-00.db is empty (0 bytes); restore it" in line


def test_an_empty_database(folder: Path, refusals: Callable[[], list[str]]) -> None:
    """As who copies tables by hand, or another program, makes it."""
    remove(folder, 0)
    Database(str(folder / "fresh.db"), full_sync=True).close()
    (folder / "fresh.db").rename(folder / "shard-00.db")
    (line,) = refusals()
    assert "shard-00.db does not say which data folder it belongs to" in line


def test_exchanged_files(folder: Path, refusals: Callable[[], list[str]]) -> None:
    exchange(folder)
    first, second = refusals()
    assert "shard-00.db is the file of shard 1, not of shard 0" in first
    assert "shard-01.db is the file of shard 0, not of shard 1" in second


async def test_the_file_of_another_folder(
    make_server: StartServer, tmp_path: Path, folder: Path, refusals: Callable[[], list[str]]
) -> None:
    other = make_server(data_dir=tmp_path / "other")
    other.start()
    other.stop()
    shutil.copy(tmp_path / "other" / "shard-01.db", folder)
    (line,) = refusals()
    assert "shard-01.db belongs to another data folder" in line


async def test_a_file_from_before_a_reshard(
    make_server: StartServer, tmp_path: Path, server: Server, folder: Path
) -> None:
    old = shutil.copytree(folder, tmp_path / "old")
    for shards in (4, 2):
        run("reshard", "--data-dir", folder, "--shards", shards)
    server.start()
    assert await held(server) == [JOBS, JOBS]
    server.stop()
    shutil.copy(old / "shard-01.db", folder)
    with pytest.raises(NotStarted) as refused:
        server.start()
    (line,) = refused.value.refusals
    assert "shard-01.db is from before a reshard (generation 1, not 3)" in line
    assert "generation 1, not 3" in run("reshard", "--data-dir", folder, "--shards", 8, status=1)


def test_doctor_says_so(folder: Path) -> None:
    exchange(folder)
    done = warm.run([*warm.COMMAND, "doctor", "--data-dir", str(folder)], env={"PYTHONPATH": str(warm.ROOT)})
    assert done.returncode == exits.FAILED
    assert "shard-00.db is the file of shard 1, not of shard 0" in done.stdout


def test_an_embedded_queue_does_not_begin_anew(make_server: StartServer, tmp_path: Path) -> None:
    from bunqueue import Queue
    from bunqueue.errors import StorageError

    server = make_server(shards=1)
    server.start()
    server.stop()
    folder = Path(server.data_dir)
    remove(folder, 0)
    with Queue("q", embedded=True, data_path=folder / "shard-00.db") as queue:
        with pytest.raises(StorageError, match=r"DATA_MISMATCH: .* is missing"):
            queue.count()
    assert not (folder / "shard-00.db").exists()


# What does


async def test_one_file_of_an_older_backup(server: Server, folder: Path, tmp_path: Path) -> None:
    backup = shutil.copytree(folder, tmp_path / "backup")
    server.start()
    await fill(server)
    server.stop()
    shutil.copy(backup / "shard-01.db", folder)
    server.start()
    assert await held(server) == [2 * JOBS, JOBS]


async def test_a_copy_at_another_place(make_server: StartServer, folder: Path, tmp_path: Path) -> None:
    copy = make_server(data_dir=shutil.copytree(folder, tmp_path / "copy"))
    copy.start()
    assert await held(copy) == [JOBS, JOBS]


async def test_a_manifest_that_was_written_by_hand(server: Server, folder: Path) -> None:
    before = read_manifest(folder)
    (folder / "manifest.json").write_text('{"format": 1, "shards": 2}')
    server.start()
    assert await held(server) == [JOBS, JOBS]
    assert read_manifest(folder) == before


async def test_a_first_start_that_was_interrupted(make_server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    server = make_server()
    server.start()
    server.kill_all()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["created"]  # as it is until all shards are ready
    (folder / "manifest.json").write_text(json.dumps(manifest))
    remove(folder, 1)
    (folder / "shard-00.db").write_bytes(b"")
    (folder / "shard-00.db-wal").unlink()
    server.start()
    assert read_manifest(folder).created == [0, 1]


async def test_an_interrupted_reshard_is_finished(make_server: StartServer, folder: Path) -> None:
    """By the new files, whichever of them are in place already."""
    from shardproc.resharding import swap
    from shardproc.resharding.build import build
    from shardproc.resharding.inventory import Inventory

    before = read_manifest(folder)
    with Inventory(folder, 2, 4, lambda progress: None) as inventory:
        build(swap.begin(folder), inventory, before.resharded(4), lambda progress: None)
    swap.complete(folder, 2, before.resharded(4))
    (folder / RESHARD / "shard-01.db").replace(folder / "shard-01.db")
    run("reshard", "--data-dir", folder, "--shards", 4)
    after = read_manifest(folder)
    assert (after.id, after.generation, after.created) == (before.id, 2, [0, 1, 2, 3])
    server = make_server(shards=4)
    server.start()
    assert await held(server) == [JOBS, JOBS]


# Accepting a loss


async def test_a_loss_is_accepted_once(server: Server, folder: Path) -> None:
    remove(folder, 1)
    asked = run("accept-loss", "--data-dir", folder, "--shard", 1, status=exits.USAGE)
    assert "give --yes to do it" in asked
    with pytest.raises(NotStarted):
        server.start()
    said = run("accept-loss", "--data-dir", folder, "--shard", 1, "--yes")
    assert "shard-01.db is missing. What it held is lost; how much that was is not known." in said
    server.start()
    assert await held(server) == [JOBS, 0]
    assert "a shard begins empty, as its loss was accepted" in server.log()
    server.stop()
    remove(folder, 1)
    with pytest.raises(NotStarted):
        server.start()


async def test_a_file_that_is_given_up_is_kept(server: Server, folder: Path) -> None:
    exchange(folder)
    said = run("accept-loss", "--data-dir", folder, "--shard", 1, "--yes")
    assert "is the file of shard 0, not of shard 1. It holds 20 jobs in 1 queues" in said
    (kept,) = (folder / "lost").glob("*/shard-01.db")
    assert f"the file is now {kept}" in said
    kept.rename(folder / "shard-00.db")
    server.start()
    assert await held(server) == [JOBS, 0]


def test_only_a_loss_can_be_accepted(server: Server, folder: Path) -> None:
    def refused(shard: int) -> str:
        return run("accept-loss", "--data-dir", folder, "--shard", shard, "--yes", status=exits.USAGE)

    assert "has its shard-01.db, which can be read; nothing was changed" in refused(1)
    assert "has 2 shards, from 0 to 1; there is no 2" in refused(2)
    server.start()
    assert "is in use by another server" in refused(1)


# Locks


def remove_locks(folder: Path) -> None:
    for lock in folder.glob("*.lock"):
        lock.unlink()


async def test_who_removes_the_lock_files_lets_nobody_in(server: Server, folder: Path) -> None:
    server.start()
    remove_locks(folder)
    second = Server(folder)
    try:
        with pytest.raises(NotStarted) as refused:
            second.start()
    finally:
        second.dispose()
    assert "is in use by another server" in refused.value.refusals[0]
    with pytest.raises(DatabaseBusy):
        Database(str(folder / "shard-00.db"), full_sync=False, lock_wait_s=0)
    with closing(sqlite3.connect(f"file:{folder}/shard-00.db?mode=ro", uri=True)) as reader:
        assert reader.execute("select count(*) from jobs").fetchone() == (JOBS,)


def test_a_lock_outlives_other_descriptors_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    database = Database(str(path), full_sync=False)
    path.open("rb").close()  # this would take away a lock of the process
    with path.open("r+b") as other:
        assert is_locked(other.fileno()) == hasattr(fcntl, "F_OFD_SETLK")
        assert not lock_file(other.fileno())
        database.close()
        assert lock_file(other.fileno())
