"""`enqueue`: a write that gives its summary back."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .summary import WriteSummary, read_summaries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def enqueue(df: DataFrame, queue: str | None = None, **options: str | int | float) -> WriteSummary:
    """Add a job for each row of ``df``, and tell what became of the rows.

        summary = enqueue(df.select(F.struct("*").alias("data")), "emails", name="welcome")

    The options are those of ``df.write.format("bunqueue")``, which this is but for the summary. Spark raises
    what went wrong; jobs may have been added then. The driver must be on this machine.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    if queue is not None:
        given["queue"] = queue
    with TemporaryDirectory(prefix="bunqueue-") as folder:
        path = given.setdefault("summarypath", str(Path(folder, "summary.jsonl")))
        df.write.format("bunqueue").mode("append").options(**given).save()
        return read_summaries(path)[-1]
