"""Snapshots, wherever they are kept, and the trimming of the log after them."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from replication.conftest import SHARDS, StoredServer
from support.naming import queue_on
from support.postgres import ask
from support.s3 import s3_server
from support.server import Server
from support.small_disks import FullDisk, may_mount
from support.waiting import wait_until

from bunqueue import Queue
from bunqueue.backup.gzipped import packed
from bunqueue.server.folder.data_folder import shard_file
from bunqueue.store import partitions, snapshots
from bunqueue.store.database import StoreUnavailable, connected
from bunqueue.store.places import PlaceError, place_of, probe
from bunqueue.store.setup import init
from bunqueue.store.snapshots import NotInLog, NotWritten
from shardproc.replication.snapshot_maker import SnapshotMaker

QUEUES = [queue_on(shard, shards=SHARDS) for shard in range(SHARDS)]
PARTITIONS = "select count(*) from pg_inherits where inhparent = 'bunqueue.log'::regclass"
CALL = 50  # jobs that are added with one call
PACE_S = 0.02  # from one of them to the next, of a load


@pytest.fixture
def store(database: str) -> str:
    init(database, SHARDS)
    return database


@pytest.fixture(params=["database", "folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where snapshots are kept; what a client of it needs is in the environment."""
    if request.param == "s3":
        with s3_server() as environ:
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            yield "s3://jobs/some/prefix"
    else:
        yield "" if request.param == "database" else str(tmp_path / "snapshots")


def add(server: Server, jobs: int, size: int = 10) -> None:
    """So many to each shard."""
    for name in QUEUES:
        with Queue(name, port=server.port) as queue:
            for first in range(0, jobs, CALL):
                some = range(min(CALL, jobs - first))
                queue.add_bulk([("job", os.urandom(size)) for _ in some])  # as the log is compressed


def waiting(server: Server) -> set[int]:
    """How many wait on a shard."""
    found = set()
    for name in QUEUES:
        with Queue(name, port=server.port) as queue:
            found.add(queue.counts().waiting)
    return found


def snapshot_all(server: Server, store: str, where: str) -> None:
    for shard in range(SHARDS):
        snapshots.make(store, shard, shard_file(Path(server.data_dir), shard), where)


def rotate(store: str) -> None:
    """Begin a new partition, however small the current one is, and drop what may go."""
    with connected(store) as connection:
        partitions.rotate(connection, rotate_bytes=0)
        partitions.trim(connection)


def leave_snapshots(store: str) -> None:
    """Drop all of the log that snapshots hold; a partition that is in use is left for the next time."""
    wait_until(lambda: rotate(store) or ask(store, PARTITIONS) == [(1,)], "old partitions are gone")


def test_another_folder_begins_with_a_snapshot(
    store: str, place: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    """The log before it is gone.  Of each shard two snapshots are kept."""
    flags = ["--store-snapshots", place] if place else []
    server = stored_server(store, *flags)
    server.start()
    for jobs in (100, 20, 3):
        add(server, jobs)
        snapshot_all(server, store, place)
        leave_snapshots(store)
    add(server, 10)
    assert ask(store, "select shard, count(*) from bunqueue.snapshots group by 1 order by 1") == [
        (0, 2),
        (1, 2),
    ]
    server.stop()
    other = stored_server(store, *flags, data_dir=tmp_path / "other")
    other.start()
    assert waiting(other) == {133}
    assert other.log().count("begins with a snapshot") == SHARDS
    shutil.rmtree(server.data_dir)
    if place.startswith("/"):
        assert len(list(Path(place).iterdir())) == 2 * SHARDS, "older ones are removed"


def test_a_server_makes_snapshots_by_itself_and_trims_its_log(
    store: str, stored_server: StoredServer
) -> None:
    """Once its log is 16 MiB longer than the last one."""
    server = stored_server(store)
    server.start()
    add(server, 350, 50_000)
    wait_until(lambda: "made a snapshot" in server.log(), "a snapshot is made")
    ((seq,),) = ask(store, "select max(snapshot_seq) from bunqueue.shards")
    assert seq
    server.kill_all()
    shutil.rmtree(server.data_dir)
    server.restart()
    assert f" position={seq} " in server.log()
    assert waiting(server) == {350}


def test_the_log_is_trimmed_under_load(store: str, stored_server: StoredServer) -> None:
    """Partitions come and go while records are appended: no record is lost, and nobody waits for long."""
    server = stored_server(store)
    server.start()
    ended = threading.Event()
    added = 0

    def work() -> None:
        nonlocal added
        while not ended.wait(PACE_S):
            add(server, 20, 1000)
            added += 20

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(8):
            snapshot_all(server, store, "")
            rotate(store)
    finally:
        ended.set()
        worker.join()
    assert ask(store, "select gen from bunqueue.store") == [(8,)]
    wait_until(lambda: rotate(store) or ask(store, PARTITIONS) < [(5,)], "old partitions are gone")
    assert waiting(server) == {added}
    server.kill_all()
    shutil.rmtree(server.data_dir)
    server.restart()
    assert waiting(server) == {added}


def test_a_partition_with_records_that_no_snapshot_holds_stays(
    store: str, stored_server: StoredServer
) -> None:
    server = stored_server(store)
    server.start()
    add(server, 10)
    ((before,),) = ask(store, "select count(*) from bunqueue.log")
    with connected(store) as connection:
        assert partitions.rotate(connection, rotate_bytes=0) == 1
        assert partitions.trim(connection) == []
    snapshots.make(store, 0, shard_file(Path(server.data_dir), 0), "")
    with connected(store) as connection:
        assert partitions.trim(connection) == [], "the other shard still needs it"
    assert ask(store, "select count(*) from bunqueue.log") == [(before,)]


DAMAGE = """
    update bunqueue.snapshot_chunks set body = overlay(body placing '\\x00ff' from 200)
    where (shard, seq) in (select shard, max(seq) from bunqueue.snapshots group by shard)
"""


def test_a_damaged_snapshot_is_noticed_and_the_one_before_is_taken(
    store: str, stored_server: StoredServer
) -> None:
    """If the log goes back so far; with the whole log no snapshot is needed."""
    server = stored_server(store)
    server.start()
    for jobs in (10, 20):
        add(server, jobs)
        snapshot_all(server, store, "")
    server.stop()
    ask(store, DAMAGE)
    shutil.rmtree(server.data_dir)
    server.restart()
    assert "is damaged" in server.log()
    assert server.log().count("begins with a snapshot") == SHARDS
    assert waiting(server) == {30}
    server.stop()
    ask(store, "delete from bunqueue.snapshot_chunks")
    shutil.rmtree(server.data_dir)
    server.restart()
    assert "continues without a snapshot, as the log still has its content" in server.log()
    assert waiting(server) == {30}


def test_without_a_snapshot_that_can_be_read_the_start_says_so(
    store: str, stored_server: StoredServer
) -> None:
    server = stored_server(store)
    server.start()
    add(server, 10)
    snapshot_all(server, store, "")
    leave_snapshots(store)
    server.stop()
    ask(store, DAMAGE)
    shutil.rmtree(server.data_dir)
    server.launch()
    wait_until(
        lambda: "no snapshot of shard 0 can be read: see the lines above" in server.log(), "it says so"
    )
    assert "the snapshot of shard 0 at position" in server.log()
    server.kill_all()


def test_a_snapshot_that_ends_too_soon_is_no_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "some"
    file.write_bytes(bytes(100_000) + b"end")
    found = snapshots.Snapshot(3, 7, "", 0)
    whole = list(packed(file))
    assert b"".join(snapshots.expanded(whole, found)) == file.read_bytes()
    with pytest.raises(PlaceError, match="shard 3 at position 7 is not whole"):
        list(snapshots.expanded([part[:-9] for part in whole], found))


def test_a_snapshot_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    if not may_mount():
        pytest.skip("needs the right to mount")
    file, place = tmp_path / "some", tmp_path / "place"
    file.write_bytes(os.urandom(4 << 20))
    place.mkdir()
    kept = snapshots.keep("", 3, 7, file, str(place))
    with FullDisk(size_mb=16) as disk:
        target, other = disk.folder / "shard-03.db", disk.folder / "other"
        other.write_bytes(bytes(10_000))
        with (
            disk.filled(),
            pytest.raises(NotWritten, match=r"of shard 3 cannot be written to .*No space left"),
        ):
            snapshots.restore(kept, "", target, lambda new: None)
        assert list(disk.folder.iterdir()) == [other]
        snapshots.restore(kept, "", target, lambda new: None)
        assert target.read_bytes() == file.read_bytes()


def test_a_large_gap_in_a_file_takes_no_memory(tmp_path: Path) -> None:
    """A few bytes of a snapshot can stand for very many."""
    file = tmp_path / "some"
    with file.open("wb") as sparse:
        sparse.truncate(64 << 20)
    parts = snapshots.expanded(packed(file), snapshots.Snapshot(0, 1, "", 0))
    assert max(map(len, parts)) <= 4 << 20


def test_a_file_that_is_ahead_of_the_log_makes_no_snapshot(store: str, stored_server: StoredServer) -> None:
    server = stored_server(store)
    server.start()
    add(server, 10)
    server.stop()
    ask(store, "delete from bunqueue.log where seq > 1")
    with pytest.raises(NotInLog, match="shard 0: the file holds position"):
        snapshot_all(server, store, "")
    assert ask(store, "select count(*) from bunqueue.snapshots") == [(0,)]


def test_a_store_that_was_put_back_is_not_served(store: str, stored_server: StoredServer) -> None:
    """It lacks what was acknowledged and is in the folder: somebody has to decide which of them counts."""
    server = stored_server(store)
    server.start()
    add(server, 100)
    server.stop()
    ask(store, "delete from bunqueue.log where seq > 1")
    server.launch()
    wait_until(lambda: "the log ends at position 1, and the file holds" in server.log(), "it says why")
    server.kill_all()
    assert ask(store, "select max(seq) from bunqueue.log") == [(1,)], "nothing was appended"
    shutil.rmtree(server.data_dir)  # that of the store counts
    server.restart()
    assert waiting(server) == {0}


def test_a_file_whose_following_records_are_in_a_snapshot_alone_begins_with_that(
    store: str, stored_server: StoredServer, tmp_path: Path
) -> None:
    """Although it had looked for snapshots before there was one, and no record is left that could tell."""
    server = stored_server(store)
    server.start()
    add(server, 10)
    other = stored_server(store, data_dir=tmp_path / "other")
    other.launch()
    wait_until(lambda: "another server has the shard" in other.log(), "it waits for its turn")
    waiting_shards = [shard.pid for shard in other.shard_processes()]
    for pid in waiting_shards:
        os.kill(pid, signal.SIGSTOP)
    add(server, 20)
    server.stop()
    snapshot_all(server, store, "")
    rotate(store)
    assert ask(store, "select count(*) from bunqueue.log") == [(0,)]
    for pid in waiting_shards:
        os.kill(pid, signal.SIGCONT)
    other.until_ready()
    assert "they are in a snapshot" in other.log()
    assert waiting(other) == {30}


@pytest.mark.parametrize("where", ["relative/path", "ftp://x", "s3://"])
def test_a_place_that_is_none(where: str) -> None:
    with pytest.raises(PlaceError, match=f"store_snapshots: '{where}'"):
        place_of(where, "")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match=r"the snapshots' place .* is a file, or below one"):
        probe(str(tmp_path / "file"), "")


def test_a_bucket_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with pytest.raises(PlaceError, match="the snapshots' place s3://none"):
        probe("s3://none", "")


def test_a_killed_process_leaves_no_copies_for_ever(store: str, stored_server: StoredServer) -> None:
    server = stored_server(store)
    server.start()
    server.kill_all()
    left = Path(server.data_dir) / f"{snapshots.COPY}shard-00-abc"
    left.mkdir()
    (left / "shard-00.db").write_bytes(b"x")
    server.restart()
    assert not left.exists()


def test_snapshots_wait_while_the_store_is_away(store: str, stored_server: StoredServer) -> None:
    server = stored_server(store)
    server.start()
    add(server, 10)
    broken = store.replace("127.0.0.1", "127.0.0.2").replace("postgres@", "nobody@")
    with pytest.raises(StoreUnavailable):
        snapshots.make(f"{broken}?connect_timeout=1", 0, shard_file(Path(server.data_dir), 0), "")
    with closing(sqlite3.connect(shard_file(Path(server.data_dir), 0))) as file:
        assert file.execute("pragma quick_check").fetchone() == ("ok",)
    assert not list(Path(server.data_dir).glob(f"{snapshots.COPY}*"))


def test_a_store_that_is_away_at_the_start_is_asked_later(tmp_path: Path) -> None:
    """The shard starts all the same, and the first look finds out how long its log is."""
    maker = SnapshotMaker("postgresql://postgres@127.0.0.1:1/postgres", 0, tmp_path / "shard-00.db", "store")
    looked: list[int] = []
    maker._check_store = looked.append  # type: ignore[method-assign]
    maker.check(0)
    wait_until(lambda: looked, "it asks again")
