"""Exports data folders to a lake: everything that has happened since the last run, and what was missed since
then.

Events are read from the number that the last run had reached in their shard.  Jobs and attempts are read from
some time before that.  Those that the lake already has are left out, so reading too much does no harm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from bunqueue.analytics.inputs import host_names
from bunqueue.analytics.lake import ENDS, KEYS, columns_of, dated, read, spark_path
from bunqueue.analytics.lake_log import TABLES, Commit, Gap, LakeLog, Reached
from bunqueue.analytics.pipeline import OnStep
from bunqueue.server.folder.shard_file import opened
from bunqueue.spark import BadOption, NotReadable
from bunqueue.spark.read.event_rows import bounds
from bunqueue.spark.read.folders import Shard, find_shards
from bunqueue.spark.read.remote import fetched

OVERLAP_MS = 3_600_000  # read again: the maximum by which a shard's clock may be behind another's
STEPS = ("events", "attempts", "jobs", "commit")
_NOTHING = Reached(0, 0)  # for a shard without events in the lake, which has events of other shards

Places = dict[str, dict[int, Reached]]  # host -> shard -> position


class Exported(NamedTuple):
    """What a run has added to a lake, and what it missed.  See `Commit`."""

    rows: dict[str, int]
    gaps: list[Gap]
    missing: dict[str, int]


class _Run(NamedTuple):
    spark: SparkSession
    log: LakeLog
    folders: dict[str, str]  # by host
    shards: dict[str, list[Shard]]  # by host
    reached: Places
    begun: dict[str, int]  # for hosts that are not exported completely: the start (epoch ms)
    payload: bool
    skip: bool

    def is_new(self, table: str, host: str) -> Column:
        """Which rows of a host may be missing in the lake."""
        known, count, begun = self.reached.get(host, {}), len(self.shards[host]), self.begun.get(host)
        rest = F.lit(True) if begun is None else F.col(ENDS[table]) >= _time(begun)
        if table == "events":
            return _from("seq", {shard: place.seq + 1 for shard, place in known.items()}, count, F.lit, rest)
        since = {shard: max(place.at - OVERLAP_MS, begun or 0) for shard, place in known.items()}
        return _from(ENDS[table], since, count, _time, rest)


def _time(at: int) -> Column:
    return F.timestamp_millis(F.lit(at))


def _from(
    column: str, first: Mapping[int, int], shards: int, literal: Callable[[int], Column], rest: Column
) -> Column:
    """Rows from a value of their shard on.  ``rest`` applies to a shard without a value."""
    if not first:
        return rest
    each = ((F.col("shard") == shard) & (F.col(column) >= literal(value)) for shard, value in first.items())
    if len(first) < shards:
        return _any([~F.col("shard").isin(*first) & rest, *each])
    # The lowest value, because that is what a shard can be asked for.
    return _any(each) & (F.col(column) >= literal(min(first.values())))


def export(
    spark: SparkSession,
    folders: Sequence[str],
    lake: Path,
    *,
    hosts: Sequence[str] = (),
    payload: bool = False,
    since: int | None = None,
    skip_unreadable: bool = False,
    on_step: OnStep = lambda step, name: None,
) -> Exported:
    """Add everything that has happened in data folders since the last run to a lake.  ``payload``: with data
    and results.  ``since``: for hosts that are new to the lake, leave out everything that ended before (epoch
    ms), for good.

    Safe to repeat, and to kill at any moment.  Raises NotReadable when another run works on the lake, or when
    the number of shards of a folder has changed.  Raises BadOption when it is unclear which host a folder
    belongs to.
    """
    names = host_names(folders, hosts)
    # A wrong path is reported here, instead of from within Spark.
    shards = _by_host(find_shards(folders, names))
    counts = {host: len(found) for host, found in shards.items()}
    log = LakeLog(lake)
    with log.opened() as last:
        before = last or Commit(0, 0, {}, {}, [])
        if not hosts:
            _check_known(names, before.shards)
        _check_shards(counts, before.shards)
        begun = before.begun | ({} if since is None else _begin(names, before.shards, since))
        where = dict(zip(names, folders, strict=True))
        run = _Run(spark, log, where, shards, before.reached, begun, payload, skip_unreadable)
        # Events first: a job that ends after that is then in the table of jobs, and not missing.
        rows = {}
        for step, table in enumerate(TABLES):
            on_step(step, STEPS[step])
            rows[table] = _write(run, table)
        on_step(3, STEPS[3])
        found = _staged(run, "events")
        now, gaps = _places(run, found)
        missing = _missing(run, found)
        if any(rows.values()) or begun != before.begun:
            made_at, all_shards = time.time_ns() // 1_000_000, before.shards | counts
            number = before.number + 1
            log.commit(Commit(number, made_at, rows, now, gaps, missing, shards=all_shards, begun=begun))
        return Exported(rows, gaps, missing)


def _by_host(shards: Iterable[Shard]) -> dict[str, list[Shard]]:
    found: dict[str, list[Shard]] = {}
    for shard in shards:
        found.setdefault(shard.host, []).append(shard)
    return found


def _begin(names: Iterable[str], known: Mapping[str, int], since: int) -> dict[str, int]:
    """The time from which each host is exported.  Raises BadOption when the lake already has one of them."""
    for name in names:
        if name in known:
            raise BadOption(
                f"since: the lake knows {name}, and goes on where it was; leave it out, or, if what it was"
                " exported from has been put back or resharded, give another name (--host)"
            )
    return dict.fromkeys(names, since)


def _check_known(names: Iterable[str], known: Mapping[str, int]) -> None:
    """Raise BadOption when a default host name is new to a lake.  A container has a new name each time, and
    all rows that the lake has of the host would be added again."""
    new = next((name for name in names if known and name not in known), None)
    if new is not None:
        raise BadOption(
            f"hosts: the lake knows {', '.join(sorted(known))}, and not {new}, as this would be called; name"
            " the host of each data folder (--host)"
        )


def _check_shards(shards: Mapping[str, int], before: Mapping[str, int]) -> None:
    """Raise NotReadable when a host was resharded: its events then have other shards or numbers than in the
    lake."""
    for host, count in shards.items():
        if before.get(host, count) != count:
            raise NotReadable(
                f"{host} has {count} shards, and had {before[host]} at the last export: its events would be"
                " added again; give it another name (--host), and the time of the resharding as --since"
            )


def _any(conditions: Iterable[Column]) -> Column:
    found: Column = reduce(or_, conditions)
    return found


def _write(run: _Run, table: str) -> int:
    """Write the new rows of a table to the staging folder.  Returns the number of rows."""
    parts = [_new_of_host(run, table, host) for host in run.folders]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    found = dated(table, whole)
    if table != "events" and (run.log.folder / table).exists():
        same = ((F.col("host") == host) & run.is_new(table, host) for host in run.folders)
        known = read(run.spark, run.log.folder, table).where(_any(same))
        found = found.join(known.select(*KEYS[table]), KEYS[table], "left_anti")
    return write_aside(run.log, table, found)


def write_aside(log: LakeLog, table: str, rows: DataFrame) -> int:
    """Write rows of a table to the staging folder, from which commits take them.  Returns the number of rows.

    Writes one file per folder of the lake, unless it would be large.
    """
    seen, spark = Observation(), rows.sparkSession
    found = rows.hint("rebalance", "date", "queue").observe(seen, F.count(F.lit(1)).alias("rows"))
    place = log.staging / table
    found.write.mode("overwrite").partitionBy("date", "queue").parquet(spark_path(place))
    written, count = seen.get["rows"], read(spark, log.staging, table).count()
    if count != written:
        raise NotReadable(
            f"Spark has written {written:,} rows to {place}, and {count:,} are there: a lake has to be"
            " the same folder on all machines of the cluster"
        )
    return count


def _new_of_host(run: _Run, table: str, host: str) -> DataFrame:
    reader = run.spark.read.format("bunqueue").option("table", table)
    reader = reader.option("columns", ",".join(columns_of(table, payload=run.payload)))
    reader = reader.option("hosts", json.dumps([host])).option("unreadable", "skip" if run.skip else "fail")
    frame = reader.load(run.folders[host])
    if table == "jobs":
        frame = frame.where(F.col("state").isin("completed", "failed", "cancelled"))
    return frame.where(run.is_new(table, host))


def _staged(run: _Run, table: str) -> DataFrame:
    """The rows that this run has written to the staging folder."""
    return read(run.spark, run.log.staging, table)


def _places(run: _Run, events: DataFrame) -> tuple[Places, list[Gap]]:
    """The positions that have been reached in the events, and the events that were removed before they were
    read."""
    reached = {host: dict(shards) for host, shards in run.reached.items()}
    gaps = []
    ends = events.groupBy("host", "shard").agg(
        F.min(F.struct("seq", "at")).alias("first"), F.max(F.struct("seq", "at")).alias("last")
    )
    millis = (F.unix_millis(F.col(f"{end}.at")).alias(f"{end}_at") for end in ("first", "last"))
    for row in ends.select("host", "shard", "first.seq", F.col("last.seq").alias("last"), *millis).collect():
        shards = reached.setdefault(row["host"], {})
        whole = row["host"] in run.reached and row["host"] not in run.begun
        known = shards.get(row["shard"], _NOTHING if whole else None)
        if known is not None and row["seq"] > known.seq + 1:
            # Some may have been deleted on request.  Those do not count as missing.
            oldest = min(row["seq"], _oldest(run.shards[row["host"]], row["shard"]))
            if oldest > known.seq + 1:
                numbers = known.seq + 1, oldest - 1
                gaps.append(Gap(row["host"], row["shard"], *numbers, known.at, row["first_at"]))
        shards[row["shard"]] = Reached(row["last"], row["last_at"])
    return reached, gaps


def _oldest(shards: Iterable[Shard], number: int) -> int:
    """The number of the oldest event in the log of a shard."""
    (shard,) = (shard for shard in shards if shard.number == number)
    with fetched(shard.path) as path, opened(path) as file:
        return bounds(file).first


def _missing(run: _Run, events: DataFrame) -> dict[str, int]:
    """Jobs that ended and were removed by a retention before this run read them, by queue.  Jobs that are
    removed as soon as they end come from the event log instead."""
    gone = events.where(F.col("kind").isin("dropped", "removed", "revived"))
    ended = events.where((F.col("kind") == "completed") | ((F.col("kind") == "failed") & F.col("terminal")))
    left = (
        ended.select("host", "queue", "job_id")
        .distinct()
        .join(gone.select("host", "job_id").distinct(), ["host", "job_id"], "left_anti")
    )
    for place in (run.log.staging, run.log.folder):
        jobs = read(run.spark, place, "jobs").select("host", F.col("id").alias("job_id"))
        left = left.join(jobs, ["host", "job_id"], "left_anti")
    return dict(_counted(left))


def _counted(left: DataFrame) -> Iterator[tuple[str, int]]:
    for row in left.groupBy("queue").count().collect():
        yield row["queue"] or "", row["count"]
