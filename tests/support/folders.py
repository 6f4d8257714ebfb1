"""What is in a data folder, told so that it is the same for any number of shards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from shardproc.storage.schema import OF_JOBS

from .naming import shard_of, slot_of

Row = dict[str, Any]

LIVE = """
select id from jobs
where (seq >= (select cast(value as integer) from meta where key = 'live_from')
       or seq in (select seq from stragglers)
       or not exists (select 1 from meta where key = 'live_from'))
and seq not in (select seq from completed) and seq not in (select seq from dead_letters)
order by seq
"""


def shards_of(folder: Path) -> int:
    return int(json.loads((folder / "manifest.json").read_text())["shards"])


@contextmanager
def opened(folder: Path) -> Iterator[list[sqlite3.Connection]]:
    """The files of all shards."""
    files = [folder / f"shard-{number:02d}.db" for number in range(shards_of(folder))]
    connections = [sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True) for file in files]
    try:
        for connection in connections:
            connection.row_factory = sqlite3.Row
        yield connections
    finally:
        for connection in connections:
            connection.close()


def contents(folder: Path) -> dict[str, Any]:
    """Everything but numbers, and what follows from the number of shards."""
    found: dict[str, Any] = {
        "jobs": {},
        "queues": {},
        "records": {},
        "order": {},
        "live": set(),
        "pushed": {},
        "events": {},
    }
    with opened(folder) as shards:
        for number, db in enumerate(shards):
            names = {row["id"]: row["name"] for row in db.execute("select id, name from queues")}
            for row in db.execute("select * from queues"):
                assert shard_of(row["name"], len(shards)) == number
                found["queues"][row["name"]] = (row["created_at"], row["completed"], row["failed"])
            _add_jobs(found, db, names)
            found["live"].update(row["id"] for row in db.execute(LIVE))
            _add_events(found, db, names)
            for kind, key, value in db.execute(
                "select * from records where kind not in ('home', 'recovery')"
            ):
                assert found["records"].setdefault((kind, key), value) == value
    return found


def _add_jobs(found: dict[str, Any], db: sqlite3.Connection, names: dict[int, str]) -> None:
    ids = {}
    for row in db.execute("select * from jobs order by seq"):
        ids[row["seq"]] = job_id = row["id"]
        assert job_id not in found["jobs"]
        own = row["own_id"] or int(job_id[-12:], 16) == row["seq"]
        assert own, "nobody would find it"
        queue = names[row["queue_id"]]
        found["order"].setdefault(queue, []).append(job_id)
        found["jobs"][job_id] = {"jobs": [_plain(row, names)]}
    for table in OF_JOBS[1:]:
        for row in db.execute(f"select * from {table.name} order by {', '.join(table.key)}"):
            found["jobs"][ids[row["seq"]]].setdefault(table.name, []).append(_plain(row, names))


def _plain(row: sqlite3.Row, names: dict[int, str]) -> Row:
    """A row without what is different on another shard."""
    found = {key: row[key] for key in row.keys() if key not in ("seq", "own_id")}
    if "queue_id" in found:
        found["queue_id"] = names[found["queue_id"]]
    return found


def _add_events(found: dict[str, Any], db: sqlite3.Connection, names: dict[int, str]) -> None:
    """By queue, in order; those of queues that are gone under None, in no order."""
    next_seq = 0
    for row in db.execute("select * from events order by first_seq"):
        assert row["first_seq"] >= next_seq
        next_seq = row["first_seq"] + row["count"]
        entries = msgpack.unpackb(row["payload"], strict_map_key=False)
        assert len(entries) == row["count"]
        found["pushed"] |= dict(msgpack.unpackb(row["pushed"] or b"\x90"))
        for entry in entries:
            if entry is not None:
                kind, queue_id, *rest = entry
                event = json.dumps([row["at"], kind, rest])
                found["events"].setdefault(names.get(queue_id), []).append(event)
    found["events"].setdefault(None, []).sort()


def check_directory(folder: Path) -> None:
    """Each job is where its id leads, at once or by way of the directory."""
    with opened(folder) as shards:
        for number, db in enumerate(shards):
            for (job_id,) in db.execute("select id from jobs"):
                pointer = pointer_of(job_id, len(shards))
                if pointer != number:
                    query = "select value from records where kind = 'home' and key = ?"
                    (home,) = shards[pointer].execute(query, (job_id,)).fetchone()
                    assert json.loads(home) == {"shard": number}
        for db in shards:
            for row in db.execute("select key, value from records where kind = 'home'"):
                home = shards[json.loads(row["value"])["shard"]]
                assert home.execute("select 1 from jobs where id = ?", (row["key"],)).fetchone()


def pointer_of(job_id: str, shards: int) -> int:
    """The shard that is asked for an id."""
    is_made_here = len(job_id) == 36 and job_id[13:15] == "-7"
    return slot_of(job_id) & (shards - 1) if is_made_here else shard_of(job_id, shards)


def is_sound(folder: Path) -> bool:
    """Whether SQLite finds nothing wrong with any file."""
    with opened(folder) as shards:
        return all(db.execute("pragma integrity_check").fetchall()[0][0] == "ok" for db in shards)


def as_they_are(folder: Path) -> dict[str, bytes]:
    """All files that hold anything, byte by byte."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.suffix in (".json", ".db", ".db-wal")
    }
