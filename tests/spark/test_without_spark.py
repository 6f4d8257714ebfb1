"""What works without Spark, and what is said where it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.spark import Full


def run(program: str, *arguments: str | Path) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user(full: Full) -> None:
    program = """
import os, sys
from bunqueue.spark.read.folders import find_shards
from bunqueue.spark.read.reading import pieces_of
from bunqueue.spark.read.tables import TABLES
os.setgid(65534)
os.setuid(65534)
try:
    for shard in find_shards([sys.argv[1]], ["here"]):
        pieces_of(shard, TABLES["jobs"], rows=10)
    print("is read")
except Exception as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as place:  # that of pytest is its user's alone
        folder = Path(place) / "data"
        shutil.copytree(full.folder, folder, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
        Path(place).chmod(0o755)
        folder.chmod(0o700)
        private = run(program, folder)
        folder.chmod(0o755)
        (folder / "manifest.json").chmod(0o644)
        files = run(program, folder)
        for file in folder.iterdir():
            file.chmod(0o644)
        assert private == f"{folder} cannot be read: Permission denied; run this as a user who may read it\n"
        assert files.startswith(f"{folder / 'shard-00.db'} cannot be read: ")
        assert files.endswith("; run this as a user who may read it\n")
        assert run(program, folder) == "is read\n"
