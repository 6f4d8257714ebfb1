"""Merges the files of a lake.  Each run adds one file per queue, day and table, and a day may have many runs.

A commit replaces the files of past days by one file per queue, unless that would be large.  It is a commit
like any other.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from bunqueue.analytics.exporting import write_aside
from bunqueue.analytics.lake import days_of, read
from bunqueue.analytics.lake_log import TABLES, LakeLog


def compact(spark: SparkSession, lake: Path) -> tuple[int, int]:
    """Merge the files that several runs have added to past days (UTC).  Returns the number of files before
    and after.

    Safe to kill at any moment.  Raises NotReadable when another run works on the lake.
    """
    log = LakeLog(lake)
    today = datetime.now(UTC).date().isoformat()
    with log.opened() as last:
        crowded = {table: list(_crowded(lake, table, today)) for table in TABLES}
        if last is None or not any(crowded.values()):
            return 0, 0
        before = sum(len(list(day.glob("*/*.parquet"))) for days in crowded.values() for day in days)
        for table, days in crowded.items():
            if days:
                write_aside(log, table, read(spark, lake, table, days))
        made_at = time.time_ns() // 1_000_000
        commit = msgspec.structs.replace(
            last,
            number=last.number + 1,
            made_at=made_at,
            rows={},
            gaps=[],
            missing={},
            files={},
            replaces=True,
        )
        log.commit(commit)
        return before, len(commit.files)


def _crowded(lake: Path, table: str, today: str) -> Iterator[Path]:
    """The days for which a queue has files of several runs, except those to which other programs have added
    files."""
    for date, day in days_of(lake, table).items():
        runs: dict[Path, set[str]] = defaultdict(set)
        for path in day.glob("*/*.parquet"):
            runs[path.parent].add(path.name.partition("-")[0])
        several = any(len(found) > 1 for found in runs.values())
        if date < today and several and all(run.isdecimal() for run in chain(*runs.values())):
            yield day
