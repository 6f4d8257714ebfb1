"""`enqueue`: a write that returns its summary."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .settings import sink_settings
from .summary import WriteSummary, check_path, keep, read_summaries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def enqueue(df: DataFrame, queue: str | None = None, **options: str | int | float) -> WriteSummary:
    """Add a job for each row of ``df``, and return a summary of the outcome.

        summary = enqueue(df.select(F.struct("*").alias("data")), "emails", name="welcome")

    The options are those of ``df.write.format("bunqueue")``; this only adds the summary. Spark raises errors.
    By then, some jobs may have been added. The driver must be on this machine.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    if queue is not None:
        given["queue"] = queue
    wanted = given.get("summarypath")
    if wanted is not None:
        sink_settings(given)  # raises for addresses
        check_path(wanted)
    with TemporaryDirectory(prefix="bunqueue-") as folder:
        mine = Path(folder, "summary.jsonl")  # other writes may append to the requested file
        mine.touch()
        given["summarypath"] = str(mine)
        try:
            df.write.format("bunqueue").mode("append").options(**given).save()
        finally:
            summaries = read_summaries(mine)
            if wanted is not None:
                for each in summaries:
                    keep(wanted, each)
        return summaries[-1]
