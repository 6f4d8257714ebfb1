"""Writes into a file which data folder it belongs to; `bunqueue.server.folder.shard_identity` reads it."""

from __future__ import annotations

import sqlite3

import msgspec

from bunqueue.server.folder.shard_identity import KEY, Identity


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


def _text(identity: Identity) -> str:
    return msgspec.json.encode(identity).decode()
