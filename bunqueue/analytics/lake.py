"""A lake: the history of queues as Parquet files by date (UTC) and queue.  It keeps history longer than
servers do.

It has the jobs that have ended, attempts and events, with the columns of the Spark source ``bunqueue``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from bunqueue.analytics.facts import Begin, Source
from bunqueue.analytics.lake_log import LakeLog
from bunqueue.spark import NotReadable
from bunqueue.spark.read.tables import TABLES

# In addition to the columns that are read by default.
_MORE = {"jobs": ("tags", "depends_on"), "attempts": (), "events": ()}
# The column with the time at which a row's subject ended.
ENDS = {"jobs": "finished_at", "attempts": "ended_at", "events": "at"}
# The key of a row.
KEYS = {
    "jobs": ["host", "id", "finished_at"],
    "attempts": ["host", "job_id", "number", "ended_at"],
    "events": ["host", "shard", "seq"],
}
PAYLOAD = ("data", "data_error", "result", "result_error")


def columns_of(table: str, *, payload: bool = False) -> list[str]:
    """The columns of a table in a lake."""
    found = [column.name for column in TABLES[table].default_columns]
    return [*found, *_MORE[table], *(PAYLOAD if payload and table == "jobs" else ())]


def dated(table: str, frame: DataFrame) -> DataFrame:
    """Add the column that partitions the lake."""
    return frame.withColumn(
        "date", F.date_format(F.to_utc_timestamp(ENDS[table], F.current_timezone()), "yyyy-MM-dd")
    )


def schema_of(table: str) -> StructType:
    """All columns that a file of the lake may have, and the columns that are folders."""
    columns = columns_of(table, payload=True)
    known = {column.name: column.type for column in TABLES[table].columns}
    fields = ", ".join(f"`{name}` {known[name]}" for name in columns)
    found = StructType.fromDDL(f"{fields}, `date` string")
    assert isinstance(found, StructType)
    return found


def read(spark: SparkSession, folder: Path, table: str, days: Iterable[Path] | None = None) -> DataFrame:
    """A table of a lake, or only some `days_of` it.  A table without rows if nothing is there yet."""
    place = folder / table
    schema = schema_of(table)
    found = [place] if days is None else list(days)
    if not any(any(day.glob("**/*.parquet")) for day in found):
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", spark_path(place))
    return reader.parquet(*map(spark_path, found))


def days_of(folder: Path, table: str) -> dict[str, Path]:
    """The folders of a table by their dates: 2026-01-31."""
    return {day.name.partition("=")[2]: day for day in sorted((folder / table).glob("date=*"))}


def spark_path(place: Path) -> str:
    """A folder of this machine as a URL for Spark.  A bare path would be one of the cluster's file system."""
    return f"file://{place.absolute()}"


def check(folder: Path) -> None:
    """Raise NotReadable unless something has been exported to the folder."""
    if LakeLog(folder).last() is None:
        raise NotReadable(
            f"{folder} is no lake: nothing has been exported to it; run bunqueue analytics export"
        )


def from_lake(spark: SparkSession, folder: Path, since: int | None = None) -> Source:
    """The tables of a lake, as the analytics read them.  For a revived job, only its last end counts.

    Jobs and attempts that ended before ``since`` (epoch ms) are left out, because no number is about them.
    Those that ended later may have earlier events.
    """
    check(folder)
    LakeLog(folder).check_placed()
    jobs, attempts = (_ended_since(spark, folder, table, since) for table in ("jobs", "attempts"))
    events = read(spark, folder, "events")
    revived = events.where(F.col("kind") == "revived").select("host", F.col("job_id").alias("id")).distinct()
    if not revived.isEmpty():
        jobs = _last_ends(jobs, revived)

    def begins() -> list[Begin]:
        found = events.groupBy("host", "shard").agg(F.min(F.struct("seq", F.unix_millis("at").alias("at"))))
        return [Begin(host, shard, *first) for host, shard, first in found.collect()]

    return Source(
        jobs,
        attempts,
        lambda kinds: events.where(F.col("kind").isin(*kinds)),
        begins,
        keeps_gone=True,
    )


def _ended_since(spark: SparkSession, folder: Path, table: str, since: int | None) -> DataFrame:
    """A table that is read only from the folders of days with such rows."""
    if since is None:
        return read(spark, folder, table)
    first = datetime.fromtimestamp(since / 1000, UTC).date().isoformat()
    days = [day for date, day in days_of(folder, table).items() if date >= first]
    return read(spark, folder, table, days).where(F.col(ENDS[table]) >= F.timestamp_millis(F.lit(since)))


def _last_ends(jobs: DataFrame, revived: DataFrame) -> DataFrame:
    """For revived jobs, only the rows of their last end.  An id that is used again belongs to another job."""
    again = jobs.join(F.broadcast(revived), ["host", "id"], "left_semi")
    order = Window.partitionBy("host", "id", "created_at").orderBy(F.desc("finished_at"))
    last = again.withColumn("place", F.row_number().over(order)).where("place = 1").drop("place")
    return jobs.join(F.broadcast(revived), ["host", "id"], "left_anti").unionByName(last)


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
