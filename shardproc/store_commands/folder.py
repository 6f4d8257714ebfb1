"""The data folder that a move is about: what is in it, and how its files are marked."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from bunqueue.data_folder import REPAIR, Manifest, is_resharded, refuse, shard_file
from bunqueue.store.database import Use
from shardproc.replication import replay
from shardproc.storage.database import Database
from shardproc.storage.statements import PUT_APPLIED

FORGET_APPLIED = "delete from meta where key = 'applied'"


class Moved(Struct):
    """What a move came to."""

    shards: int
    jobs: int  # in all states


def check_quiet(folder: Path) -> None:
    """DataFolderError while something else about the folder is to be finished first."""
    if is_resharded(folder):
        refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
    if (folder / REPAIR / "ready.json").exists():
        refuse(folder, "has an interrupted repair: run bunqueue doctor --repair again to finish it")


def use_of(kind: str, manifest: Manifest, folder: Path) -> Use:
    """What the store says of itself because of a folder."""
    return Use(kind, manifest.id, f"{socket.gethostname()}:{folder}")


def each_file(folder: Path, shards: int, work: Callable[[Database], int]) -> int:
    """The sum of what ``work`` returns for each shard that has a file; nobody else has it meanwhile."""
    total = 0
    for shard in range(shards):
        file = shard_file(folder, shard)
        if not file.exists():
            continue
        with closing(Database(str(file), full_sync=True, migrates=False)) as database:
            total += work(database)
    return total


def has_tables(connection: sqlite3.Connection) -> bool:
    """Whether a shard has ever opened the file."""
    return bool(connection.execute("pragma user_version").fetchone()[0])


def jobs_in(connection: sqlite3.Connection) -> int:
    """How many jobs a file has, in all states."""
    return int(connection.execute("select count(*) from jobs").fetchone()[0])


def set_position(database: Database, position: int) -> int:
    """Have a file say that it holds the log up to a position, unless it says more; its jobs."""
    connection = database.connection
    if not has_tables(connection):
        return 0
    if replay.applied(connection) < position:
        connection.execute(PUT_APPLIED, (str(position),))
    return jobs_in(connection)


def forget_position(database: Database) -> int:
    """Have a file say nothing of a log, as it does not follow one; its jobs."""
    connection = database.connection
    if not has_tables(connection):
        return 0
    connection.execute(FORGET_APPLIED)
    return jobs_in(connection)
