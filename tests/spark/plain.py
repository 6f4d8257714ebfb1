"""Tables of data folders as Spark would have them read, but in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bunqueue.spark.options import read_options
from bunqueue.spark.source import BatchReader


def rows_of(folder: Path | str, table: str = "jobs", **options: str) -> list[dict[str, Any]]:
    """The rows of all shards, always in the same order."""
    reader = BatchReader(read_options({"path": str(folder), "table": table, **options}))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.num_rows for batch in batches)
    return sorted((row for batch in batches for row in batch.to_pylist()), key=repr)
