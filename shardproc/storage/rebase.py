"""Finished jobs, brought back to the true time after the clock was ahead: see `shardproc.engine.set_back`.

Their times have no index, so each table is read once. That takes about a second for a million jobs, and
happens when somebody sets a clock.
"""

from __future__ import annotations

import sqlite3

from shardproc.engine.set_back import SetBack

JOBS = 10_000  # looked at in one step, the newest first, until a step finds none from the wrong clock

_RETRIES = """
update dead_letters set next_retry_at = next_retry_at - :by
where next_retry_at is not null and finished_at > :now and finished_at <= :last
"""
# Tables and their times; the last one says when the row was written.
_TIMES = (
    ("dead_letters", ("started_at", "finished_at")),
    ("completed", ("started_at", "finished_at")),
    ("attempts", ("started_at", "ended_at")),
    ("job_logs", ("at",)),
)
_CREATED = """
update jobs set created_at = min(created_at - :by, :now),
                run_at = run_at - iif(run_at > :now, :by, 0)
where seq > :first and seq <= :end and created_at > :now and created_at <= :last
"""


def set_back(db: sqlite3.Connection, back: SetBack) -> int:
    """How many dead letters are to be tried earlier.  Within the caller's transaction."""
    places = back._asdict()
    retries = db.execute(_RETRIES, places).rowcount
    for table, times in _TIMES:
        changes = ", ".join(f"{time} = iif({time} > :now, min({time} - :by, :now), {time})" for time in times)
        written = times[-1]
        db.execute(
            f"update or ignore {table} set {changes} where {written} > :now and {written} <= :last", places
        )
    end = db.execute("select coalesce(max(seq), 0) from jobs").fetchone()[0]
    while end > 0:
        step = {**places, "first": end - JOBS, "end": end}
        end = end - JOBS if db.execute(_CREATED, step).rowcount else 0
    return retries
