"""``bunqueue snapshot`` on a server that works."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.cli import Cli
from support.server import Server, StartServer
from support.small_disks import small_disk

from bunqueue import Queue
from bunqueue.cli.framework import exits
from bunqueue.server.folder.shard_file import opened
from bunqueue.server.folder.unreadable import NoRoom

SHARDS = 2


@pytest.fixture
def busy(make_server: StartServer) -> Server:
    server = make_server(shards=SHARDS)
    server.start()
    for number in range(8):
        with Queue(f"q{number}", port=server.port) as queue:
            queue.add_bulk([("n", each) for each in range(50)])
    return server


def snapshot(server: Server, out: Path, status: int = exits.DONE) -> str:
    done = Cli(server)("snapshot", "--data-dir", str(server.data_dir), "--out", str(out), status=status)
    return done.err if status else done.out


def test_a_snapshot_of_a_busy_server_is_a_backup(
    busy: Server, tmp_path: Path, make_server: StartServer
) -> None:
    ended = threading.Event()

    def push() -> None:
        with Queue("q0", port=busy.port) as queue:
            while not ended.is_set():
                queue.add_bulk([("more", "x" * 1000)] * 100)

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        said = snapshot(busy, tmp_path / "copy")
    finally:
        ended.set()
        pusher.join()
    assert said.startswith(f"{tmp_path / 'copy'} has {SHARDS} shards now")
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "copy").iterdir()} == {0}
    for file in (tmp_path / "copy").glob("*.db"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    copy = make_server(data_dir=tmp_path / "copy", shards=SHARDS)
    copy.start()
    for number in range(1, 8):
        with Queue(f"q{number}", port=copy.port) as queue:
            assert sorted(job.data for job in queue.iter_jobs()) == list(range(50))


def test_folders_that_are_refused_stay_as_they_are(busy: Server, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    assert "is not empty" in snapshot(busy, full, exits.USAGE)
    assert [file.name for file in full.iterdir()] == ["mine"]
    inside = Path(busy.data_dir) / "copy"
    assert "is in the data folder" in snapshot(busy, inside, exits.USAGE)
    assert not inside.exists()
    assert "cannot be used" in snapshot(busy, full / "mine", exits.USAGE)
    cli = Cli(busy)
    none = cli("snapshot", "--data-dir", str(full), "--out", str(tmp_path / "copy"), status=exits.USAGE)
    assert "is not one: there is no manifest.json" in none.err
    assert not (tmp_path / "copy").exists()


def test_a_shard_that_is_missing_leaves_no_half_copy(busy: Server, tmp_path: Path) -> None:
    busy.stop()
    (Path(busy.data_dir) / "shard-01.db").unlink()
    assert "shard-01.db is missing" in snapshot(busy, tmp_path / "copy", exits.USAGE)
    assert not (tmp_path / "copy").exists()


def test_a_disk_without_room_is_named_and_left_empty(busy: Server, tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a file system")
    try:
        assert "give a folder on another disk" in snapshot(busy, disk / "copy", exits.USAGE)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_copy_stops_before_it_takes_the_room_of_a_server(busy: Server, tmp_path: Path) -> None:
    """The room may go while the copy is made: it is looked at with each step."""
    with Queue("q0", port=busy.port) as queue:
        for _ in range(40):
            queue.add("big", "x" * 1_000_000)
    busy.stop()
    file = max(Path(busy.data_dir).glob("*.db"), key=lambda each: each.stat().st_size)
    with small_disk(tmp_path, "tmpfs", 44) as disk:
        with pytest.raises(NoRoom, match="left, and 17 MB are kept"), opened(file) as shard:
            shard.copy_to(disk / "copy.db")
        assert (disk / "copy.db").stat().st_blocks * 512 < 40_000_000
