"""Merges the files of a lake.  Each run adds a file for each day and table, and a day may have many runs.

A commit replaces the files of past days by one file, unless that would be large.  It is a commit like any
other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import dataset

from bunqueue.analytics.lake import days_of, schema_of
from bunqueue.analytics.lake_files import LakeWriter
from bunqueue.analytics.lake_log import TABLES, LakeLog


def compact(lake: Path) -> tuple[int, int]:
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
        before = sum(len(files) for days in crowded.values() for files in days)
        with LakeWriter(log.staging) as writer:
            for table, days in crowded.items():
                for files in days:
                    _merge(table, files, writer)
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


def _merge(table: str, files: list[Path], writer: LakeWriter) -> None:
    """Write the rows of a day again.  A file may lack columns that another one has."""
    known = schema_of(table)
    found = dataset.dataset([str(file) for file in files], known)
    present = {name for file in files for name in dataset.dataset(str(file)).schema.names}
    columns = [name for name in known.names if name in present]
    for batch in found.to_batches(columns=columns):
        writer.add(table, pa.Table.from_batches([batch]))


def _crowded(lake: Path, table: str, today: str) -> Iterator[list[Path]]:
    """The files of each day with those of several runs, except days to which other programs have added
    files."""
    for date, day in days_of(lake, table).items():
        files = sorted(day.glob("*.parquet"))
        runs = {path.name.partition("-")[0] for path in files}
        if date < today and len(runs) > 1 and all(run.isdecimal() for run in runs):
            yield files
