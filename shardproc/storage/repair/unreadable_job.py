"""What is still known of jobs that cannot be read."""

from __future__ import annotations

import sqlite3

from shardproc.engine.outbox import UnreadableJob

from ..damage import DAMAGE, is_damage
from .live_around import Fates
from .walking import by_number, walk

_JOBS = "select seq, * from jobs where seq between ? and ? order by seq"
_HEAD = "select id, name, created_at from jobs where seq = ?"
_DEAD = "select 1 from dead_letters where seq = ?"


def unreadable_job(db: sqlite3.Connection, seq: int, damage: str) -> UnreadableJob:
    """``damage``: the text that says what is damaged, and what to do."""
    job_id, name, created_at = _row(db, _HEAD, seq) or ("", "", 0)
    try:
        state = "completed" if _read(db, _DEAD, seq) is None else "failed"
    except DAMAGE as error:
        state = _unknown(error)
    return UnreadableJob(job_id, name, created_at, state, f"job number {seq} cannot be read: {damage}")


def _row(db: sqlite3.Connection, query: str, seq: int) -> tuple[str, str, int] | None:
    try:
        return _read(db, query, seq)
    except DAMAGE as error:
        _unknown(error)
        return None


def _read(db: sqlite3.Connection, query: str, seq: int) -> tuple[str, str, int] | None:
    found: tuple[str, str, int] | None = db.execute(query, (seq,)).fetchone()
    return found


def _unknown(error: Exception) -> str:
    if not is_damage(error):
        raise error
    return "unknown"


def unreadable(db: sqlite3.Connection) -> list[str]:
    """The jobs whose rows cannot be read, by their ids, or else by their numbers. These may include numbers
    of removed jobs, where the event log does not show the removal."""
    last = db.execute("select max(seq) from jobs").fetchone()[0] or 0
    lost: set[int] = set()
    for _ in walk(by_number(db, _JOBS), 1, last, lost.add):
        pass
    if not lost:
        return []
    fates = Fates(db, lost)
    heads = ((seq, _row(db, _HEAD, seq)) for seq in sorted(lost - fates.gone))
    return [head[0] if head else fates.ids.get(seq, f"number {seq}") for seq, head in heads]
