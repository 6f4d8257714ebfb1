"""Data folders made from backups, from copies of folders, and from a store's snapshots."""

from __future__ import annotations

import resource
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.budget import budget
from support.folders import contents
from support.killed_at_step import killed_at, steps_of
from support.small_folder import make

from bunqueue.backup.create import BackupError, create
from bunqueue.backup.repository import Repository, id_of
from bunqueue.backup.restore import Restored, Source, Wanted, restore, source_of
from bunqueue.backup.sealing import Damaged
from bunqueue.backup.targets import Missing, TargetError, target_of
from bunqueue.model.job import Cause
from bunqueue.protocol.commands.core import JobFields
from bunqueue.protocol.commands.flows import FlowJob
from bunqueue.server.folder.data_folder import (
    DataFolderError,
    check_places,
    read_manifest,
    save_manifest,
    shard_file,
)
from bunqueue.server.folder.unreadable import NoRoom
from bunqueue.store import snapshots
from shardproc.clock import Clock
from shardproc.engine.lifecycle.outcomes import RemovedJob
from shardproc.engine.peers.callbacks import Stored
from shardproc.engine.peers.children import Order
from shardproc.engine.peers.flows import Decision, Part
from shardproc.restored import CALL, CANCEL, DECIDED, GONE, HOME, UNDECIDED, belongs

SHARDS = 2
ROOMS = ("bunqueue/backup/restore.py", "bunqueue/backup/fetch.py")


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backups of one folder, a day apart; the second has a mark."""
    folder = tmp_path_factory.mktemp("made")
    make(folder / "data", SHARDS)
    repository = Repository(target_of(str(folder / "target")))
    create(folder / "data", repository, now_ms=lambda: DAY)
    with closing(sqlite3.connect(folder / "data" / "shard-00.db")) as db, db:
        db.execute("insert into meta values ('changed', '1')")
    create(folder / "data", repository, now_ms=lambda: 2 * DAY)
    return folder / "target"


DAY = 86_400_000


@pytest.fixture(scope="module")
def data(backups: Path) -> Path:
    return backups.with_name("data")


def source(where: Path, at: int | None = None) -> Source:
    return source_of(target_of(str(where)), None, at)


def meta(folder: Path) -> dict[str, str]:
    with closing(sqlite3.connect(folder / "shard-00.db")) as db:
        return dict(db.execute("select key, value from meta"))


def next_runs(folder: Path) -> list[int]:
    found = []
    for shard in range(read_manifest(folder).shards):
        with closing(sqlite3.connect(shard_file(folder, shard))) as db:
            found += [
                row[0]
                for row in db.execute(
                    "select json_extract(value, '$.nextRun') from records where kind = 'cron'"
                )
            ]
    return found


def check(folder: Path, data: Path, made: Restored) -> None:
    """Everything is as it was, apart from what says how it was left."""
    manifest = read_manifest(folder)
    check_places(folder, manifest)
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "server.lock",
        *(f"shard-{shard:02}.db" for shard in range(manifest.shards)),
    }
    assert {path.stat().st_mode & 0o077 for path in folder.glob("shard*")} == {0}
    assert made.shards == manifest.shards
    before, after = contents(data)["jobs"], contents(folder)["jobs"]
    for job in before.values():
        for lock in job.get("locks", []):
            lock["conn"] = 0  # as after any start: the connection that pulled it is gone
    assert after == before


def test_the_newest_backup_and_one_of_another_moment(backups: Path, data: Path, tmp_path: Path) -> None:
    made = restore(source(backups), tmp_path / "new", Wanted())
    check(tmp_path / "new", data, made)
    assert "changed" in meta(tmp_path / "new")
    assert sum(made.running.values()) == SHARDS * 4 * 2
    assert len(made.schedules) == SHARDS * 4
    now = Clock().now_ms()
    assert min(next_runs(tmp_path / "new")) > now  # no run for the past
    made = restore(source(backups, at=2 * DAY - 1), tmp_path / "older", Wanted(runs_missed=True))
    assert "changed" not in meta(tmp_path / "older")
    assert len(made.schedules) == SHARDS * 4
    assert max(next_runs(tmp_path / "older")) < now
    with pytest.raises(BackupError, match=f"no backup before that moment: the first is {id_of(DAY)}"):
        source(backups, at=DAY - 1)


def test_some_queues_and_more_shards(backups: Path, data: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(data / "shard-00.db")) as db:
        names = [name for (name,) in db.execute("select name from queues order by name")]
    made = restore(source(backups), tmp_path / "new", Wanted(4, [names[0], "other.*"]))
    assert (made.shards, len(made.dropped)) == (4, SHARDS * 4 - 1)
    assert list(made.running) == [names[0]]
    found = []
    for shard in range(4):
        with closing(sqlite3.connect(shard_file(tmp_path / "new", shard))) as db:
            found += [name for (name,) in db.execute("select name from queues")]
            jobs = db.execute("select count(*) from jobs").fetchone()[0]
            assert bool(jobs) == (names[0] in {name for (name,) in db.execute("select name from queues")})
    assert found == [names[0]]
    assert len(next_runs(tmp_path / "new")) == 1
    with pytest.raises(BackupError, match="no queue is like 'none': nothing was restored"):
        restore(source(backups), tmp_path / "none", Wanted(None, ["none"]))
    assert not (tmp_path / "none").exists()


def test_copies_of_folders_and_snapshots_of_a_store(data: Path, tmp_path: Path) -> None:
    check(tmp_path / "new", data, restore(source(data), tmp_path / "new", Wanted()))
    follower = Path(shutil.copytree(data, tmp_path / "follower"))
    manifest = read_manifest(follower)
    save_manifest(follower, msgspec.structs.replace(manifest, format=2, store="s", id="another"))
    kept = tmp_path / "kept"
    for shard in range(SHARDS):
        file = shard_file(follower, shard)
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            db.execute("insert into meta values ('applied', '7')")
        for seq in (6, 7):
            snapshots.keep("", shard, seq, file, str(kept))
    for where in (kept, follower):
        made = restore(source(where), tmp_path / f"from-{where.name}", Wanted())
        check(tmp_path / f"from-{where.name}", data, made)
        assert "applied" not in meta(tmp_path / f"from-{where.name}")
    (kept / "shard-01.00000000000000000007.db.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(Damaged, match=r"shard-01\.0+7\.db\.gz is (not whole|damaged)"):
        restore(source(kept), tmp_path / "none", Wanted())
    assert not (tmp_path / "none").exists()
    for path in kept.glob("shard-00*"):
        path.unlink()
    with pytest.raises(TargetError, match=r"no snapshot of each shard: only of \[1\]"):
        source(kept)
    with pytest.raises(Missing, match="no backups, no data folder and no snapshots"):
        source(tmp_path / "nothing")
    with pytest.raises(BackupError, match="no moment can be chosen: leave out --at"):
        source(data, at=DAY)


def test_a_folder_that_has_something_stays_as_it_is(backups: Path, tmp_path: Path) -> None:
    for name in ("shard-00.db", "mine"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(DataFolderError, match="is not empty"):
            restore(source(backups), folder, Wanted())
        assert [path.read_text() for path in folder.iterdir()] == ["mine"]
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(DataFolderError, match="is not a folder"):
        restore(source(backups), file, Wanted())
    with pytest.raises(DataFolderError, match="would be in the data folder /"):
        restore(source(backups), backups.with_name("data") / "inside", Wanted())
    standby = tmp_path / "standby"
    standby.mkdir()
    (standby / "standby.json").write_text("{}")
    with pytest.raises(BackupError, match="is the folder of a standby: make it the primary"):
        source(standby)


def test_a_disk_that_is_full_keeps_nothing_of_it(backups: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    usual = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # the files are larger
    try:
        with pytest.raises(NoRoom, match="cannot be written to: File too large; make room"):
            restore(source(backups), tmp_path / "new", Wanted())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, usual)
    assert not (tmp_path / "new").exists()


def test_files_that_are_not_good_are_not_restored(backups: Path, data: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(data, tmp_path / "damaged"))
    with closing(sqlite3.connect(damaged / "shard-01.db")) as db, db:
        db.execute("update queues set completed = completed + 1")
    with pytest.raises(BackupError, match=r"is not good: completed jobs: shard 1: 4 queues count .*small-6$"):
        restore(source(damaged), tmp_path / "new", Wanted())
    with closing(sqlite3.connect(damaged / "shard-00.db")) as db, db:
        db.execute("drop table locks")
    with pytest.raises(BackupError) as refused:
        restore(source(damaged), tmp_path / "new", Wanted())
    for each in (
        "file: shard 0: it cannot be read: no such table",
        "engine: shard 0: ",
        "shard 1: 4 queues count",
    ):
        assert each in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_of_jobs_and_flows_on_their_way_only_those_of_the_namespace_stay() -> None:
    made = "018c0000-0000-7000-8000-000000000001"
    jobs = {
        name: msgspec.msgpack.encode([FlowJob(id="x", queue=name, input=JobFields(data=EMPTY))])
        for name in QUEUES
    }
    cause = Cause("", "", "", None, None, "", 0, 0)
    for mine, other in (QUEUES[:2], QUEUES[::2]):
        for kind, key, of in (
            (UNDECIDED, made, lambda queue: Part(0, jobs[queue])),
            (DECIDED, made, lambda queue: Decision([1], jobs=[("acme/q", "acme/1"), (queue, "2")])),
            (CALL, f"1/{made}", lambda queue: Stored(1, queue, b"", cause)),
            (GONE, made, lambda queue: RemovedJob(1, f"{queue}:{made}")),
            (CANCEL, made, lambda queue: Order("", queue, "")),
        ):
            for queue in (mine, other):
                record = msgspec.json.encode(of(queue)).decode()
                assert belongs("acme/", kind, key, record) == (queue == mine), (kind, queue)
    for key, stays in ((made, True), ("acme/1", True), ("beta/1", False), ("1", False)):
        assert belongs("acme/", HOME, key, '{"shard":1}') == stays, key


QUEUES = ("acme/q", "beta/q", "q")
EMPTY = msgspec.Raw(b"\x80")


def test_whenever_it_is_killed_it_can_be_repeated(backups: Path, data: Path, tmp_path: Path) -> None:
    found = source(backups)

    def work() -> None:
        restore(found, tmp_path / "new", Wanted())

    steps = steps_of(work, ROOMS)
    shutil.rmtree(tmp_path / "new")
    for step in range(1, steps, max(1, steps // budget(5, 60))):
        killed_at(step, work, ROOMS)
        if not (tmp_path / "new" / "manifest.json").exists():
            made = restore(found, tmp_path / "new", Wanted())
            check(tmp_path / "new", data, made)
        shutil.rmtree(tmp_path / "new")
