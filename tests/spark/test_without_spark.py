"""What works without Spark, and what is said where it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.spark import Full


def run(program: str, *arguments: str | Path) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shards_are_read_without_spark(full: Full) -> None:
    found = run(
        """
import sys
sys.modules["pyspark"] = None
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.reading import Piece, Selection, read
from bunqueue.spark.read.tables import TABLES
jobs = TABLES["jobs"]
wanted = Selection(jobs, (jobs.column("id"),))
for shard in find_shards([sys.argv[1]], ["here"]):
    for batch in read(Piece(shard), wanted):
        print(*batch.column("id").to_pylist(), sep="\\n")
""",
        full.folder,
    )
    assert set(full.jobs) <= set(found.splitlines())


def test_what_is_missing_is_named() -> None:
    found = run(
        """
import sys
for name in ("pyspark", "pyarrow"):
    sys.modules[name] = None
import bunqueue.spark
for name in ("spark_session", "snapshot"):
    try:
        getattr(bunqueue.spark, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    )
    first, second = found.splitlines()
    assert "pyspark" in first
    assert first.endswith("pip install 'bunqueue[spark]'")
    assert "pyarrow" in second
    assert second.endswith("pip install 'bunqueue[spark]'")
