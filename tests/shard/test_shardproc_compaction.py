"""Free space in a shard's file goes back to the disk when the shard ends."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.shard_driver import Driver
from support.server import Server, dispose

from bunqueue import Queue

LARGE = "x" * 20_000
MB = 1 << 20


def fill(driver: Driver, queue: str, jobs: int) -> None:
    for _ in range(jobs // 10):
        driver.ask(cmd="PUSHB", queue=queue, jobs=[{"data": LARGE}] * 10)


def ended(driver: Driver) -> int:
    """End the shard as a stop does; the size of its file."""
    driver.shard.compact()
    driver.close()
    return os.path.getsize(driver.path)


def test_the_space_of_a_queue_that_is_gone_is_given_back(driver: Driver) -> None:
    fill(driver, "kept", 20)
    fill(driver, "gone", 400)
    driver.ask(cmd="Obliterate", queue="gone")
    assert ended(driver) < MB
    driver.open()
    assert driver.ask(cmd="GetJobCounts", queue="kept")["counts"]["waiting"] == 20
    assert driver.ask(cmd="PULL", queue="kept")["job"]["data"] == LARGE
    assert sqlite3.connect(driver.path).execute("pragma integrity_check").fetchall() == [("ok",)]


def test_what_is_mostly_in_use_is_left_alone(driver: Driver) -> None:
    fill(driver, "kept", 200)
    fill(driver, "gone", 100)
    driver.ask(cmd="Obliterate", queue="gone")
    assert ended(driver) > 5 * MB
    driver.open()


def test_readers_go_on_reading_what_they_saw(driver: Driver) -> None:
    fill(driver, "gone", 400)
    reader = sqlite3.connect(f"file:{driver.path}?mode=ro", uri=True, isolation_level=None)
    reader.execute("begin")
    assert reader.execute("select count(*) from jobs").fetchone() == (400,)
    driver.ask(cmd="Obliterate", queue="gone")
    driver.shard.compact()
    assert reader.execute("select sum(length(data)) from jobs").fetchone()[0] > 400 * len(LARGE)
    reader.execute("commit")
    assert reader.execute("select count(*) from jobs").fetchone() == (0,)
    reader.close()


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Path]:
    """A disk on which there is room for the data, and not for much else."""
    folder = tmp_path / "tight"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_it_never_takes_the_last_room_of_a_disk(tight: Path) -> None:
    driver = Driver(str(tight / "shard-00.db"))
    fill(driver, "gone", 400)
    driver.ask(cmd="Obliterate", queue="gone")
    assert ended(driver) > 5 * MB


def test_not_in_the_middle_of_a_transaction(driver: Driver) -> None:
    fill(driver, "gone", 400)
    driver.ask(cmd="Obliterate", queue="gone")
    driver.shard.store.database.connection.execute("begin immediate")
    driver.shard.compact()
    driver.shard.store.database.rollback()
    assert driver.shard.store.database.pages()[0] > 1000


def test_a_server_that_stops_leaves_little_behind(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", shards=1)
    try:
        server.start()
        with Queue("gone", port=server.port) as queue:
            queue.add_bulk([("n", LARGE)] * 400)
            queue.obliterate()
        server.stop()
        assert sum(path.stat().st_size for path in (tmp_path / "data").glob("*.db*")) < MB
    finally:
        dispose(server)
