"""Writes into a file which data folder it belongs to; `bunqueue.server.folder.shard_identity` reads it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from bunqueue.server.folder.shard_identity import KEY, Identity

FORGET_APPLIED = "delete from meta where key = 'applied'"
"""Removes the position of a log: the file does not follow it any more."""


def mark(connection: sqlite3.Connection, identity: Identity) -> None:
    """Write the identity unless it is there, and copy it from the log into the file itself: a check of a
    folder reads files without their logs."""
    text = _text(identity)
    if connection.execute("select value from meta where key = ?", (KEY,)).fetchone() == (text,):
        return
    put_mark(connection, identity)
    connection.execute("pragma wal_checkpoint(truncate)").fetchone()


def put_mark(connection: sqlite3.Connection, identity: Identity) -> None:
    """Write the identity as a part of the caller's changes."""
    connection.execute("insert or replace into meta values (?, ?)", (KEY, _text(identity)))


def claim(file: Path, identity: Identity) -> None:
    """Make a file that nobody uses one of the folder: it belongs to no other, and follows no log."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        put_mark(connection, identity)
        connection.execute(FORGET_APPLIED)


def _text(identity: Identity) -> str:
    return msgspec.json.encode(identity).decode()
