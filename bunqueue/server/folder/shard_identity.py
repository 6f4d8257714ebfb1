"""Which data folder a shard's file belongs to, and as which shard.

Each file has a row in ``meta`` that says so, and the folder's manifest says what it expects.  Everything here
only reads.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

KEY = "identity"  # of the row in ``meta``


class Identity(msgspec.Struct, frozen=True):
    """What a file says about itself, as JSON in the row `KEY`."""

    folder: str  # the id in the folder's manifest
    shard: int
    shards: int
    generation: int  # increased by each reshard


class Place(NamedTuple):
    """What a folder expects of a shard's file."""

    identity: Identity
    filled: bool  # there was a file, so a missing or empty one is a loss


def file_name(shard: int) -> str:
    return f"shard-{shard:02d}.db"


def misfit(file: Path, place: Place) -> str | None:
    """Why a file does not belong at that place, as a text to follow its name; None if there is no objection.

    A file that SQLite cannot read is not judged here: the code that opens it reports the problem.
    """
    if not file.exists() or not file.stat().st_size:
        kind = "is empty (0 bytes)" if file.exists() else "is missing"
        return kind if place.filled else None
    try:
        found = read_identity(file)
    except sqlite3.Error:
        return None
    except msgspec.DecodeError:
        return "does not say in a known way which data folder it belongs to"
    if found is not None:
        return _difference(found, place.identity) or _foreign_log(file, found)
    return "does not say which data folder it belongs to" if place.filled else None


def _foreign_log(file: Path, identity: Identity) -> str | None:
    """Like `misfit`, for a log that was put beside the file.  Its pages would replace those of the file as
    soon as the file is opened for writing."""
    if not _is_logged(file):
        return None
    try:
        logged = _read_identity(file, "mode=ro")
    except (sqlite3.Error, msgspec.DecodeError):  # damage is not judged here
        return None
    return None if logged == identity else "has the -wal of another file beside it"


def _difference(found: Identity, expected: Identity) -> str | None:
    if found.folder != expected.folder:
        return "belongs to another data folder"
    if found.generation < expected.generation:
        return f"is from before a reshard (generation {found.generation}, not {expected.generation})"
    if found.generation > expected.generation:
        return f"is from after a reshard (generation {found.generation}, not {expected.generation})"
    if found.shards != expected.shards:
        return f"is one of {found.shards} shards, not of {expected.shards}"
    if found.shard != expected.shard:
        return f"is the file of shard {found.shard}, not of shard {expected.shard}"
    return None


def read_identity(file: Path) -> Identity | None:
    """Read the identity of a file.  Raises sqlite3.Error and msgspec.DecodeError."""
    is_logged = _is_logged(file)
    try:  # the file has the identity even without its log: it is written before anything else
        found = _read_identity(file, "mode=ro&immutable=1")
    except sqlite3.Error:
        if not is_logged:
            raise
        found = None
    if found is None and is_logged:
        found = _read_identity(file, "mode=ro")
    return found


def _is_logged(file: Path) -> bool:
    log = Path(f"{file}-wal")
    return log.exists() and log.stat().st_size > 0


def _read_identity(file: Path, how: str) -> Identity | None:
    with _opened(file, how) as database:
        if database.execute("select 1 from sqlite_schema where name = 'meta'").fetchone() is None:
            return None
        row = database.execute("select value from meta where key = ?", (KEY,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Identity)


def identity_of(file: Path) -> Identity | None:
    """The identity of a file; None if there is no identity or it cannot be read."""
    try:
        return read_identity(file) if file.exists() else None
    except (sqlite3.Error, msgspec.DecodeError):
        return None


def damage(file: Path) -> str | None:
    """Why SQLite cannot read a file at all; None if it can."""
    try:
        read_identity(file)
    except sqlite3.Error as error:
        return f"cannot be read ({error})"
    except msgspec.DecodeError:
        pass
    return None


def contents(file: Path) -> str | None:
    """How much a file holds, as a text for people; None if it cannot be read."""
    try:
        with _opened(file, "mode=ro") as database:
            jobs, queues = database.execute(
                "select (select count(*) from jobs), (select count(*) from queues)"
            ).fetchone()
    except sqlite3.Error:
        return None
    return f"{jobs:,} jobs in {queues:,} queues"


def _opened(file: Path, how: str) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True))
