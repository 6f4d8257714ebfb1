"""Rows of attempts, and their notes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from shardproc.engine.outbox import Attempt

from . import statements

MAX_PAST = 100  # attempts of a job that are shown: the last ones

_LATEST = """
select *, null, null from attempts where seq = ? and outcome <> ? order by ended_at desc, number desc limit ?
"""
_NOTES = "select number, ended_at, error_type, delay from attempt_notes where seq = ?"


def write(db: sqlite3.Connection, attempts: Sequence[Attempt]) -> None:
    """Add attempts that are over."""
    db.executemany(
        statements.PUT_ATTEMPT,
        [
            (a.seq, a.number, a.worker, a.started_at, a.ended_at, a.outcome, a.error, a.stack)
            for a in attempts
        ],
    )
    noted = [a for a in attempts if a.error_type is not None or a.delay is not None]
    if noted:
        rows = [(a.seq, a.number, a.ended_at, a.error_type, a.delay) for a in noted]
        db.executemany(statements.PUT_NOTE, rows)


def latest(db: sqlite3.Connection, seq: int, hidden: str) -> list[Attempt]:
    """The last attempts of a job, except those with a ``hidden`` outcome; in order."""
    past = db.execute(_LATEST, (seq, hidden, MAX_PAST)).fetchall()
    if not past:
        return []
    attempts = [Attempt(*row) for row in reversed(past)]
    notes = {row[:2]: row[2:] for row in db.execute(_NOTES, (seq,))}
    for attempt in attempts if notes else ():
        noted = notes.get((attempt.number, attempt.ended_at), (None, None))
        attempt.error_type, attempt.delay = noted
    return attempts
