"""From data folders to a lake: what has happened since the last run, and what has been missed meanwhile.

Events are read from the number that the last run had reached in their shard.  Jobs and attempts are read from
some time before that, and those that the lake has are left out, so it does no harm to read too much.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from bunqueue.analytics.inputs import host_names
from bunqueue.analytics.lake import KEYS, columns_of, dated, read, spark_path
from bunqueue.analytics.lake_log import TABLES, Commit, Gap, LakeLog, Reached
from bunqueue.analytics.pipeline import Tell
from bunqueue.spark import BadOption, NotReadable
from bunqueue.spark.folders import find_shards

OVERLAP_MS = 3_600_000  # read again: as much as a shard's clock may be behind another's
STEPS = ("events", "attempts", "jobs", "commit")
_SINCE = {"jobs": "finished_at", "attempts": "ended_at"}
_NOTHING = Reached(0, 0)  # of a shard of which the lake has no events, though it has of others

Places = dict[str, dict[int, Reached]]  # host -> shard -> how far


class Exported(NamedTuple):
    """What a run has added to a lake, and what it missed; see `Commit`."""

    rows: dict[str, int]
    gaps: list[Gap]
    missing: dict[str, int]


class _Run(NamedTuple):
    spark: SparkSession
    log: LakeLog
    folders: dict[str, str]  # by host
    shards: dict[str, int]  # how many each host has
    reached: Places
    payload: bool
    skip: bool

    def is_new(self, table: str, host: str) -> Column:
        """Which rows of a host the lake may not have."""
        known, count = self.reached.get(host, {}), self.shards[host]
        if table == "events":
            return _from("seq", {shard: place.seq + 1 for shard, place in known.items()}, count, F.lit)
        since = {shard: place.at - OVERLAP_MS for shard, place in known.items()}
        return _from(_SINCE[table], since, count, lambda at: F.timestamp_millis(F.lit(at)))


def _from(column: str, first: Mapping[int, int], shards: int, literal: Callable[[int], Column]) -> Column:
    """Rows that begin with a value of their shard; all of a shard without one."""
    if not first:
        return F.lit(True)
    each = ((F.col("shard") == shard) & (F.col(column) >= literal(value)) for shard, value in first.items())
    if len(first) < shards:
        return _any([~F.col("shard").isin(*first), *each])
    # The lowest again, as that is what a shard can be asked for.
    return _any(each) & (F.col(column) >= literal(min(first.values())))


def export(
    spark: SparkSession,
    folders: Sequence[str],
    lake: Path,
    *,
    hosts: Sequence[str] = (),
    payload: bool = False,
    skip_unreadable: bool = False,
    tell: Tell = lambda step, name: None,
) -> Exported:
    """Add to a lake what has happened in data folders since the last run; ``payload``: with data and results.

    Safe to repeat, and to kill at any moment.  NotReadable when another run is at work on the lake, or a
    folder has another number of shards than it had; BadOption when it is not clear which host it is of.
    """
    names = host_names(folders, hosts)
    # What is wrong with a path is told here, rather than from within Spark.
    shards = Counter(shard.host for shard in find_shards(folders, names))
    log = LakeLog(lake)
    with log.opened() as last:
        reached, before = ({}, {}) if last is None else (last.reached, last.shards)
        if not hosts:
            _check_known(names, before)
        _check_shards(shards, before)
        where = dict(zip(names, folders, strict=True))
        run = _Run(spark, log, where, dict(shards), reached, payload, skip_unreadable)
        # Events first: a job that ends meanwhile is then in the table of jobs, and not missing.
        rows = {}
        for step, table in enumerate(TABLES):
            tell(step, STEPS[step])
            rows[table] = _write(run, table)
        tell(3, STEPS[3])
        found = _staged(run, "events")
        now, gaps = _places(found, reached)
        missing = _missing(run, found)
        if any(rows.values()):
            number = last.number + 1 if last is not None else 1
            made_at = time.time_ns() // 1_000_000
            log.commit(Commit(number, made_at, rows, now, gaps, missing, shards=before | shards))
        return Exported(rows, gaps, missing)


def _check_known(names: Iterable[str], known: Mapping[str, int]) -> None:
    """BadOption when a name that nobody gave is new to a lake: a container has another one each time, and all
    that a lake has of a host would be added to it again."""
    new = next((name for name in names if known and name not in known), None)
    if new is not None:
        raise BadOption(
            f"hosts: the lake knows {', '.join(sorted(known))}, and not {new}, as this would be called; name"
            " the host of each data folder (--host)"
        )


def _check_shards(shards: Mapping[str, int], before: Mapping[str, int]) -> None:
    """NotReadable when a host was resharded: its events have other shards, or numbers, than in the lake."""
    for host, count in shards.items():
        if before.get(host, count) != count:
            raise NotReadable(
                f"{host} has {count} shards, and had {before[host]} at the last export: its events would be"
                " added again; begin another lake, and keep this one for what was before"
            )


def _any(conditions: Iterable[Column]) -> Column:
    found: Column = reduce(or_, conditions)
    return found


def _write(run: _Run, table: str) -> int:
    """Write the new rows of a table aside; how many they are."""
    parts = [_new_of_host(run, table, host) for host in run.folders]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    found = dated(table, whole)
    if table != "events" and run.reached:
        same = ((F.col("host") == host) & run.is_new(table, host) for host in run.folders)
        known = read(run.spark, run.log.folder, table).where(_any(same))
        found = found.join(known.select(*KEYS[table]), KEYS[table], "left_anti")
    # One file for each folder of the lake, unless it would be a large one.
    seen = Observation()
    found = found.hint("rebalance", "date", "queue").observe(seen, F.count(F.lit(1)).alias("rows"))
    place = run.log.staging / table
    found.write.mode("overwrite").partitionBy("date", "queue").parquet(spark_path(place))
    written, count = seen.get["rows"], _staged(run, table).count()
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
    """What this run has written aside."""
    return read(run.spark, run.log.staging, table)


def _places(events: DataFrame, before: Places) -> tuple[Places, list[Gap]]:
    """How far the events have been read now, and which had been forgotten before."""
    reached = {host: dict(shards) for host, shards in before.items()}
    gaps = []
    ends = events.groupBy("host", "shard").agg(
        F.min(F.struct("seq", "at")).alias("first"), F.max(F.struct("seq", "at")).alias("last")
    )
    millis = (F.unix_millis(F.col(f"{end}.at")).alias(f"{end}_at") for end in ("first", "last"))
    for row in ends.select("host", "shard", "first.seq", F.col("last.seq").alias("last"), *millis).collect():
        shards = reached.setdefault(row["host"], {})
        known = shards.get(row["shard"], _NOTHING if row["host"] in before else None)
        if known is not None and row["seq"] > known.seq + 1:
            gap = Gap(row["host"], row["shard"], known.seq + 1, row["seq"] - 1, known.at, row["first_at"])
            gaps.append(gap)
        shards[row["shard"]] = Reached(row["last"], row["last_at"])
    return reached, gaps


def _missing(run: _Run, events: DataFrame) -> dict[str, int]:
    """Jobs that ended and were removed by a retention before this run read them, by queue.  Those that were
    to be removed at once are told by the event log instead."""
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
