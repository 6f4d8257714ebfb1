"""Folders that a server writes to are copied first, and read as they were then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.busy import busy
from support.folders import opened
from support.server import Server

from bunqueue import OptionError, Queue
from bunqueue.analytics.runs import From
from bunqueue.spark import NotReadable, copy, snapshot
from bunqueue.spark.read.snapshots import is_live

COUNTS = "select (select count(*) from jobs), (select sum(count) from events)"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Beside the server's folder."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_all_tables_of_a_busy_shard_are_of_one_moment(server: Server, scratch: Path) -> None:
    data = Path(server.data_dir)
    place = From([str(data)], scratch=str(scratch))
    with busy(server), place.at_rest() as copied:
        (still,) = copied.folders
        assert Path(still).name == data.name, "what hosts may be called after"
        assert not is_live(still)
        for _ in range(2):
            with opened(Path(still)) as shards:
                counts = [tuple(shard.execute(COUNTS).fetchone()) for shard in shards]
            assert sum(jobs for jobs, _ in counts) > 0
            assert all(jobs == (events or 0) for jobs, events in counts)
    assert list(scratch.iterdir()) == []


def test_what_nobody_writes_to_is_read_where_it_is(server: Server, scratch: Path) -> None:
    still = str(copy(server.data_dir, scratch / "still"))
    place = From([still, "s3://bucket/backup"], scratch=str(scratch / "none"))
    with place.at_rest() as same:
        assert same == place


def test_a_cluster_reads_what_it_can_see(server: Server, scratch: Path) -> None:
    place = From([str(server.data_dir)])
    with pytest.raises(OptionError, match=r"scratch: a server is writing to .*, so a cluster reads a copy"):
        with place.at_rest("spark://head:7077"):
            pass
    still = From([str(copy(server.data_dir, scratch / "still"))])
    with still.at_rest("spark://head:7077") as same:
        assert same == still
    shared = place._replace(scratch=str(scratch))
    with shared.at_rest("spark://head:7077") as copied:
        assert Path(copied.folders[0]).is_relative_to(scratch)


def test_a_shard_that_cannot_be_read(server: Server, scratch: Path) -> None:
    with Queue("one", port=server.port) as queue:
        queue.add("job")
    data = Path(server.data_dir)
    server.stop()
    (data / "shard-00.db").write_bytes(b"SQLite format 3\0" + b"x" * 8192)
    with pytest.raises(NotReadable, match=r"shard-00\.db is damaged"), snapshot(data, scratch):
        pass
    assert list(scratch.iterdir()) == []
    with snapshot(data, scratch, skip_unreadable=True) as still:
        assert sorted(file.name for file in Path(still).glob("*.db")) == ["shard-01.db"]


def test_places_where_nothing_can_be_written(server: Server, scratch: Path) -> None:
    with pytest.raises(NotReadable, match=r"^scratch: no copy .*/none \(No such file or directory\)"):
        with snapshot(server.data_dir, scratch / "none"):
            pass


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_that_is_too_small(server: Server, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 5, 5))
    with pytest.raises(NotReadable, match=r"needs up to \d+ MB, and .* has 0 MB left: give a folder on"):
        copy(server.data_dir, scratch / "copy")
    assert list(scratch.iterdir()) == []


def test_a_lake_is_not_copied() -> None:
    with pytest.raises(OptionError, match="scratch: of data folders only"):
        From(lake="lake", scratch="/tmp").check()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--scratch", "none"], "--scratch: no copy can be made in none"),
        (["--priority", "high"], "'high' is not one of 'low', 'normal'"),
    ],
)
def test_wrong_options_are_told_before_spark_starts(
    server: Server, scratch: Path, more: list[str], told: str
) -> None:
    command: list[Any] = [sys.executable, "-m", "bunqueue", "analytics", "aggregate", "--out", "out"]
    done = subprocess.run(
        [*command, "--data-dir", server.data_dir, *more], capture_output=True, text=True, cwd=scratch
    )
    assert done.returncode == 2
    assert told in done.stderr
    assert "starting Spark" not in done.stderr
    assert list(scratch.iterdir()) == []
