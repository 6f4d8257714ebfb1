"""Recounts a shard's file and reports contradictions. Only reads, and only while the server is stopped.

Each check is a query whose rows are errors. It takes as long as reading the file takes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bunqueue.model.ids import slot_of_queue

from ..schema import WrongSchema, version_of
from .unreadable_job import unreadable

SHOWN = 5  # examples of an error


class Check(NamedTuple):
    """A contradiction, with a query for the numbers or names that show it."""

    name: str
    wrong: str
    query: str


_LIVE = """jobs left join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq
           left join dead_letters on dead_letters.seq = jobs.seq
           where completed.seq is null and dead_letters.seq is null"""
LOCKS_OF_ENDED = """select seq from locks join dead_letters using (seq)
                    union select seq from locks join jobs using (seq)
                    join completed using (queue_id, seq)"""
CHECKS = (
    Check(
        "one state a job",
        "jobs are in two states at once",
        f"""select seq from dead_letters join completed using (queue_id, seq)
            union {LOCKS_OF_ENDED}""",
    ),
    Check(
        "states have jobs",
        "states belong to no job",
        """select seq from (select seq from completed union select seq from dead_letters
                            union select seq from locks)
           where seq not in (select seq from jobs)""",
    ),
    Check(
        "jobs have queues",
        "jobs belong to no queue",
        """select seq from jobs where queue_id not in (select id from queues)
           union select seq from completed where queue_id not in (select id from queues)
           union select seq from dead_letters where queue_id not in (select id from queues)""",
    ),
    Check(
        "completed jobs",
        "queues count their completed jobs wrongly",
        """select name from queues where completed <>
           (select count(*) from completed where completed.queue_id = queues.id)""",
    ),
    Check(
        "dead letters",
        "queues count their dead letters wrongly",
        """select name from queues where failed <>
           (select count(*) from dead_letters where dead_letters.queue_id = queues.id)""",
    ),
    Check(
        "unfinished jobs",
        "unfinished jobs would be passed over by the next start",
        f"""select jobs.seq from {_LIVE}
            and jobs.seq < (select coalesce(max(cast(value as integer)), 0) from meta where key = 'live_from')
            and jobs.seq not in (select seq from stragglers)""",
    ),
    Check(
        "ids",
        "ids that clients chose stand for several jobs",
        "select id from jobs where own_id = 1 group by id having count(*) > 1",
    ),
    Check(
        "unique keys",
        "unique keys are held by several jobs",
        f"""select min(unique_key)
            from (select jobs.queue_id, jobs.unique_key from {_LIVE} and jobs.holds_key = 1)
            group by queue_id, unique_key having count(*) > 1""",
    ),
    Check(
        "results",
        "large results are missing",
        "select seq from completed where large = 1 and seq not in (select seq from large_outcomes)",
    ),
)


class Finding(NamedTuple):
    """The result of a check; ``problem`` None: nothing was found."""

    check: str
    problem: str | None


class Counts(NamedTuple):
    """The jobs of a queue."""

    queue: str
    unfinished: int
    completed: int
    dead: int


def damage_of(file: Path) -> str | None:
    """Why not all of a file can be read, or its indexes do not agree with it; None: it is whole."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            found = [str(row[0]) for row in connection.execute("pragma integrity_check(5)")]
            if found == ["ok"]:
                connection.execute("select count(*) from jobs, meta where 0").fetchone()
                return None
            return "; ".join(found).replace("\n", " ")
    except sqlite3.DatabaseError as error:
        return str(error)


def recount(file: Path, shard: int, shards: int) -> Iterator[Finding | Counts]:
    """Everything about one file, piece by piece."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield from _findings(connection, file, shard, shards)
    except sqlite3.Error as error:
        yield Finding("file", f"it cannot be read: {error}; {_fix(file)}")
        yield Finding("readable jobs", _unreadable(file))


def _fix(file: Path) -> str:
    return f"run bunqueue doctor --repair --data-dir {file.parent}"


def _unreadable(file: Path) -> str | None:
    """Which jobs cannot be read; None if all can be read."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            names = unreadable(connection)
    except sqlite3.Error:
        return "which jobs cannot be read is not known"
    return f"{len(names):,} jobs cannot be read: {_some(names)}" if names else None


def _findings(
    connection: sqlite3.Connection, file: Path, shard: int, shards: int
) -> Iterator[Finding | Counts]:
    try:
        problem = None if version_of(connection) else "it has no tables yet: start the server once"
    except WrongSchema as error:
        problem = str(error)
    if problem is not None:
        yield Finding("schema", problem)
        return
    damage = [str(row[0]) for row in connection.execute("pragma quick_check(5)")]
    yield Finding("file", None if damage == ["ok"] else "; ".join(damage).replace("\n", " "))
    for found in contradictions(connection):
        yield found._replace(problem=found.problem and f"{found.problem}; {_fix(file)}")
    names = [str(row[0]) for row in connection.execute("select name from queues")]
    strangers = [name for name in names if slot_of_queue(name) & (shards - 1) != shard]
    problem = f"{len(strangers):,} queues belong to other shards: {_some(strangers)}" if strangers else None
    yield Finding("place", problem)
    yield from _counts(connection)


def contradictions(connection: sqlite3.Connection) -> Iterator[Finding]:
    """What each check finds in an open file."""
    for check in CHECKS:
        found = [str(row[0]) for row in connection.execute(check.query)]
        yield Finding(check.name, f"{len(found):,} {check.wrong}: {_some(found)}" if found else None)


def _counts(connection: sqlite3.Connection) -> Iterator[Counts]:
    jobs = dict(connection.execute("select queue_id, count(*) from jobs group by queue_id"))
    query = """select id, name, (select count(*) from completed where queue_id = queues.id),
               (select count(*) from dead_letters where queue_id = queues.id) from queues order by name"""
    for queue_id, name, completed, dead in connection.execute(query):
        yield Counts(name, jobs.get(queue_id, 0) - completed - dead, completed, dead)


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (" ..." if len(names) > SHOWN else "")
