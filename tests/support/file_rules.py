"""What holds for a shard's file whenever nobody is in the middle of a batch, whatever happened before: each
job is in one state, the counts are right, and so on.  The same rules as `bunqueue doctor --data-dir` has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from shardproc.core import Shard
from shardproc.storage.repair.recount import contradictions, damage_of
from shardproc.storage.schema import CURRENT


def check_rules(connection: sqlite3.Connection) -> None:
    """Of an open file."""
    wrong = {found.check: found.problem for found in contradictions(connection) if found.problem}
    assert not wrong, wrong


def check_shard(shard: Shard) -> None:
    """Of a shard that is about to die: what it has not committed is dropped."""
    shard.store.database.rollback()
    check_rules(shard.store.database.connection)


def check_folder(folder: Path | str) -> None:
    """Of all files of a server that has ended.  Those that a test has damaged are left out."""
    for file in sorted(Path(folder).glob("shard-*.db")):
        if file.stat().st_size and damage_of(file) is None:
            check_file(file)


def check_file(file: Path) -> None:
    """Of a file that nobody has open."""
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        if connection.execute("pragma user_version").fetchone()[0] == CURRENT:
            check_rules(connection)
