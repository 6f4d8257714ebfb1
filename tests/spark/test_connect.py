"""Spark Connect: the same over its wire.  It needs more packages, which pull in pandas, so it runs only where
somebody has installed ``pyspark[connect]``, or has its folder in PYTHONPATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.folders import opened
from support.server import Server
from support.spark import Full

from bunqueue import Queue

pytest.importorskip("grpc_status", reason="needs pip install 'pyspark[connect]'")
PROGRAM = Path(__file__).with_name("connect_program.py")


def test_reading_streams_and_writing(full: Full, shared_server: Server, tmp_path: Path) -> None:
    (tmp_path / "java").mkdir()
    done = subprocess.run(
        [sys.executable, PROGRAM, full.folder, str(shared_server.port), tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with opened(full.folder) as shards:
        sql = "select (select count(*) from jobs), (select sum(count) from events)"
        counts = [shard.execute(sql).fetchone() for shard in shards]
    jobs, events = (sum(each) for each in zip(*counts, strict=True))
    assert done.stdout.splitlines() == [
        str(jobs),
        str(events),
        "500 rows: 500 accepted, 0 duplicates, 0 rejected",
        "spark: Spark Connect cannot compute reports; give a session without it",
    ]
    with Queue("connect", port=shared_server.port) as queue:
        assert queue.count() == 500
