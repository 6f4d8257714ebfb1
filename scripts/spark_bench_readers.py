"""The readers that `spark_bench.py` measures, each in a process of its own:

    python scripts/spark_bench_readers.py KIND FOLDER [--master local[2]]

Prints a line of JSON with ``rows`` and ``seconds``; with ``--endless`` repeatedly.
"""

from __future__ import annotations

import argparse
import atexit
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# The columns that an aggregate needs.
COLUMNS = ("queue", "name", "state", "created_at", "started_at", "finished_at", "attempts", "error")
FETCH = 4096
MINUTE_MS = 60_000
PASSES = 3  # of reading with Spark, not counting the first: it starts Python and compiles

Run = Callable[[], int]
"""Reads everything once; the number of rows."""


def shard_rows(folder: Path) -> Iterator[list[tuple[Any, ...]]]:
    """The jobs of all shards in lists, each shard in one transaction."""
    for file in sorted(folder.glob("shard-*.db")):
        database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        cursor = database.execute(f"select {', '.join(COLUMNS)} from job_history")
        while rows := cursor.fetchmany(FETCH):
            yield rows
        database.close()


def sqlite_read(folder: Path, master: str) -> Run:
    return lambda: sum(map(len, shard_rows(folder)))


def sqlite_aggregate(folder: Path, master: str) -> Run:
    """Counts by outcome, wait and run percentiles by queue and minute, and reasons, in plain Python."""

    def run() -> int:
        counts: Counter[tuple[str, int, str]] = Counter()
        reasons: Counter[tuple[str, str]] = Counter()
        waits: dict[tuple[str, int], list[int]] = defaultdict(list)
        runs: dict[tuple[str, int], list[int]] = defaultdict(list)
        total = 0
        for rows in shard_rows(folder):
            total += len(rows)
            for queue, _, state, created, started, finished, _, error in rows:
                minute = (finished or created) // MINUTE_MS
                counts[queue, minute, state] += 1
                if started is not None and finished is not None:
                    waits[queue, minute].append(started - created)
                    runs[queue, minute].append(finished - started)
                if error is not None:
                    reasons[queue, error] += 1
        for values in (*waits.values(), *runs.values()):
            values.sort()
            _ = [values[int(share * (len(values) - 1))] for share in (0.5, 0.95, 0.99)]
        return total

    return run


def spark_read(folder: Path, master: str) -> Run:
    """The same columns through the data source, discarded."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from bunqueue.spark import spark_session

    spark = spark_session("bench", master=master, spark__ui__showConsoleProgress="false")
    spark.sparkContext.setLogLevel("ERROR")
    atexit.register(spark.stop)  # so that nothing of it is left when this process ends
    reader = spark.read.format("bunqueue").option("columns", ",".join(COLUMNS))

    def run() -> int:
        seen = Observation()
        jobs = reader.load(str(folder)).observe(seen, F.count(F.lit(1)).alias("rows"))
        jobs.write.format("noop").mode("overwrite").save()
        return int(seen.get["rows"])

    return run


def aggregate(folder: Path, master: str) -> Run:
    """Everything that `bunqueue analytics aggregate` does: by Spark if there is a master."""
    from pyarrow import parquet

    from bunqueue.cli import main as cli

    def run() -> int:
        with tempfile.TemporaryDirectory() as out:
            spark = ["--master", master] if master != "-" else []
            status = cli(["analytics", "aggregate", "--data-dir", str(folder), "--out", out, *spark])
            if status:
                sys.exit(f"bunqueue analytics aggregate: status {status}")
            (totals,) = parquet.read_table(f"{out}/totals.parquet").to_pylist()
        return int(totals["completed"] + totals["failed"])

    return run


KINDS: dict[str, Callable[[Path, str], Run]] = {
    "sqlite-read": sqlite_read,
    "sqlite-aggregate": sqlite_aggregate,
    "duckdb-aggregate": aggregate,
    "spark-read": spark_read,
    "spark-aggregate": aggregate,
}


def once(kind: str, folder: Path, master: str) -> dict[str, float]:
    """Rows and seconds. Reading with Spark is measured warm, the best of some passes; everything else is the
    full time that a user waits, from the start of the work."""
    begin = time.perf_counter()
    run = KINDS[kind](folder, master)
    if kind != "spark-read":
        rows = run()
        return {"rows": rows, "seconds": time.perf_counter() - begin}
    run()
    first = time.perf_counter() - begin
    times = []
    for _ in range(PASSES):
        begin = time.perf_counter()
        rows = run()
        times.append(time.perf_counter() - begin)
    return {"rows": rows, "seconds": min(times), "first": first}


def endless(kind: str, folder: Path, master: str) -> None:
    """Repeat for ever, each time in a process of its own; prints a line for each."""
    command = [sys.executable, __file__, kind, str(folder), "--master", master]
    while True:
        print(
            subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout, end="", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--endless", action="store_true")
    options = parser.parse_args()
    if options.endless:
        endless(options.kind, options.folder, options.master)
    else:
        print(json.dumps(once(options.kind, options.folder, options.master)))


if __name__ == "__main__":
    main()
