"""A lake: the history of queues as Parquet files by date (UTC).  It keeps history longer than servers do.

It has the jobs that have ended, attempts and events, with the columns of `bunqueue.arrow`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from bunqueue.analytics.engine import Engine
from bunqueue.analytics.facts import Begin, Source
from bunqueue.analytics.lake_log import LakeLog
from bunqueue.spark.errors import NotReadable
from bunqueue.spark.read import arrow
from bunqueue.spark.read.tables import TABLES, Column

# In addition to the columns that are read by default.
_MORE = {
    "jobs": (
        *("stalls", "max_attempts", "unique_key", "custom_id", "group_id", "parent_id", "data_bytes"),
        *("tags", "depends_on"),
    ),
    "attempts": (),
    "events": ("fields",),
}
# The column with the time at which a row's subject ended.
ENDS = {"jobs": "finished_at", "attempts": "ended_at", "events": "at"}
# The key of a row.
KEYS = {
    "jobs": ["host", "id", "finished_at"],
    "attempts": ["host", "job_id", "number", "ended_at"],
    "events": ["host", "shard", "seq"],
}
PAYLOAD = ("data", "data_error", "result", "result_error")


def columns_of(table: str, *, payload: bool = False) -> tuple[Column, ...]:
    """The columns of a table in a lake."""
    more = (*_MORE[table], *(PAYLOAD if payload and table == "jobs" else ()))
    known = TABLES[table]
    return (*known.default_columns, *(column for column in known.columns if column.name in more))


def schema_of(table: str, *, payload: bool = True) -> pa.Schema:
    """All columns that a file of the lake may have."""
    return arrow.schema_of(columns_of(table, payload=payload))


def files_of(folder: Path, table: str, since: int | None = None) -> list[Path]:
    """The files of a table: all, or those of days with rows that ended at ``since`` (epoch ms) or later."""
    first = "" if since is None else datetime.fromtimestamp(since / 1000, UTC).date().isoformat()
    days = days_of(folder, table)
    return [file for date, day in days.items() if date >= first for file in sorted(day.glob("*.parquet"))]


def days_of(folder: Path, table: str) -> dict[str, Path]:
    """The folders of a table by their dates: 2026-01-31."""
    return {day.name.partition("=")[2]: day for day in sorted((folder / table).glob("date=*"))}


def check(folder: Path) -> None:
    """Raise NotReadable unless something has been exported to the folder."""
    if LakeLog(folder).last() is None:
        raise NotReadable(
            f"{folder} is no lake: nothing has been exported to it; run bunqueue analytics export"
        )


def from_lake(engine: Engine, folder: Path, since: int | None = None) -> Source:
    """The tables of a lake, as the analytics read them.  For a revived job, only its last end counts.

    Jobs and attempts that ended before ``since`` (epoch ms) are left out, because no number is about them.
    Those that ended later may have earlier events.
    """
    check(folder)
    LakeLog(folder).check_placed()
    for table in ("jobs", "attempts"):
        engine.parquet(f"all_{table}", files_of(folder, table, since), schema_of(table))
    recent = "true" if since is None else f"unix_millis({{}}) >= {since}"
    engine.parquet("all_events", files_of(folder, "events"), schema_of("events"))
    engine.view("read_attempts", f"select * from all_attempts where {recent.format(ENDS['attempts'])}")
    engine.view("read_jobs", LAST_ENDS.format(recent=recent.format(ENDS["jobs"])))

    def events(kinds: Sequence[str]) -> str:
        named = ", ".join(f"'{kind}'" for kind in kinds)
        engine.view("read_events", f"select * from all_events where kind in ({named})")
        return "read_events"

    def begins() -> list[Begin]:
        rows = engine.rows(
            """select e.host, e.shard, min(e.seq) as seq, min_by(unix_millis(e.at), e.seq) as begin_at
            from all_events e group by e.host, e.shard"""
        )
        return [Begin(row["host"], row["shard"], row["seq"], row["begin_at"]) for row in rows]

    return Source("read_jobs", "read_attempts", events, begins, keeps_gone=True)


# An id that is used again belongs to another job, which was created at another time.
LAST_ENDS = """
with revived as (select distinct host, job_id as id from all_events where kind = 'revived'),
again as (
    select j.*, row_number() over (
        partition by j.host, j.id, j.created_at order by j.finished_at desc
    ) as place
    from all_jobs j semi join revived using (host, id) where {recent}
)
select j.*, 1 as place from all_jobs j anti join revived using (host, id) where {recent}
union all select * from again where place = 1"""


def notes_of(folder: Path, since: int | None = None, until: int | None = None) -> tuple[str, ...]:
    """What the lake lacks for a range (epoch ms), in words."""
    first, last = since or 0, until or sys.maxsize
    events: Counter[tuple[str, int]] = Counter()
    jobs: Counter[str] = Counter()
    before = 0
    for commit in LakeLog(folder).commits():
        for gap in commit.gaps:
            if gap.until >= first and gap.since < last:
                events[gap.host, gap.shard] += gap.last - gap.first + 1
        if commit.made_at >= first and before < last:
            jobs.update(commit.missing)
        if not commit.replaces:
            before = commit.made_at
    return (
        "Jobs that have not ended are not in a lake: the backlog is that of jobs which ended later.",
        *(
            f"{count:,} events of shard {shard} of {host} had been forgotten before an export read them:"
            " export more often, or keep more of them."
            for (host, shard), count in sorted(events.items())
        ),
        *(
            f"{count:,} jobs of {queue} had ended and were removed before an export read them."
            for queue, count in sorted(jobs.items())
        ),
    )
