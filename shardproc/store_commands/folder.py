"""The data folder that a command works on: its contents, and the marks in its files."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from bunqueue.server.folder.data_folder import REPAIR, Manifest, is_resharded, refuse, shard_file
from bunqueue.store.database import Use
from shardproc.replication import replay
from shardproc.storage.database import Database
from shardproc.storage.marking import FORGET_APPLIED
from shardproc.storage.statements import PUT_APPLIED


class Moved(Struct):
    """The result of a move."""

    shards: int
    jobs: int  # in all states


def check_quiet(folder: Path) -> None:
    """DataFolderError while another operation on the folder has to be finished first."""
    if is_resharded(folder):
        refuse(folder, "has an interrupted reshard: run bunqueue reshard again to finish it")
    if (folder / REPAIR / "ready.json").exists():
        refuse(folder, "has an interrupted repair: run bunqueue doctor --repair again to finish it")


def use_of(kind: str, manifest: Manifest, folder: Path) -> Use:
    """The note about a folder that the store keeps."""
    return Use(kind, manifest.id, f"{socket.gethostname()}:{folder}")


def each_file(folder: Path, shards: int, work: Callable[[Database], int]) -> int:
    """The sum of what ``work`` returns for each shard that has a file; each file is locked during the
    call."""
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
    """The number of jobs in a file, in all states."""
    return int(connection.execute("select count(*) from jobs").fetchone()[0])


def set_position(database: Database, position: int) -> int:
    """Mark a file as containing the log up to a position, unless it is further; returns the number of its
    jobs."""
    connection = database.connection
    if not has_tables(connection):
        return 0
    if replay.applied(connection) < position:
        connection.execute(PUT_APPLIED, (str(position),))
    return jobs_in(connection)


def forget_position(database: Database) -> int:
    """Remove the position from a file, as it does not follow a log; returns the number of its jobs."""
    connection = database.connection
    if not has_tables(connection):
        return 0
    connection.execute(FORGET_APPLIED)
    return jobs_in(connection)
