"""The tables of a data folder as Arrow, for pandas, polars and DuckDB: no Spark, no server, no copy.

    from bunqueue import arrow

    jobs = arrow.jobs("/var/lib/bunqueue", columns=["queue", "state", "created_at"])
    jobs.to_pandas()  # or polars.from_arrow(jobs), or duckdb.sql("select ... from jobs")

Needs ``pip install 'bunqueue[analytics]'``; docs/arrow.md has more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Event
from typing import TypedDict, Unpack

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error.msg}: pip install 'bunqueue[analytics]'", name=error.name) from None

from bunqueue.client.connection.options import unknown_option
from bunqueue.spark.errors import NotReadable
from bunqueue.spark.options import read_options
from bunqueue.spark.read.arrow import schema_of
from bunqueue.spark.read.folders import Shard, find_shards
from bunqueue.spark.read.reading import Selection, pieces_of, read

__all__ = [
    "NotReadable",
    "attempts",
    "audit",
    "batches",
    "cron",
    "dead_letters",
    "events",
    "jobs",
    "queues",
    "steps",
    "table",
]

Folder = str | os.PathLike[str]


class Options(TypedDict, total=False):
    """What to read.  ``columns``: all but the dear ones unless given; ``since`` and ``until``: about
    ``time_column``, in UTC unless they have a zone; ``mode``: PERMISSIVE, DROPMALFORMED or FAILFAST."""

    columns: Sequence[str]
    host: str
    queues: Sequence[str]
    states: Sequence[str]
    kinds: Sequence[str]
    since: datetime | str
    until: datetime | str
    time_column: str
    mode: str


def table(name: str, folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """A table of a data folder, each shard as of one moment.

    Raises OptionError for an unknown table, column or option, and NotReadable for a folder or shard that
    cannot be read.
    """
    return batches(name, folder, **options).read_all()


def batches(name: str, folder: Folder, **options: Unpack[Options]) -> pa.RecordBatchReader:
    """The same piece by piece, for a table that does not fit into memory.  It can be read once."""
    asked = read_options({"table": name, **_texts(folder, options)})
    return stream(find_shards(asked.paths, asked.hosts), asked.selection(time.time_ns() // 1_000_000))


def stream(shards: Sequence[Shard], selection: Selection) -> pa.RecordBatchReader:
    """Rows of shards that are known, in any order.

    Threads of their own read the shards, because SQLite wants a file closed by the thread that opened it, and
    the caller may read batches from several threads.
    """
    schema = schema_of(selection.columns)
    return pa.RecordBatchReader.from_batches(schema, _ahead(shards, selection))


def _ahead(shards: Sequence[Shard], selection: Selection) -> Iterator[pa.RecordBatch]:
    waiting: Queue[pa.RecordBatch | BaseException | None] = Queue(AHEAD)
    is_over = Event()

    def put(value: pa.RecordBatch | BaseException | None) -> None:
        while not is_over.is_set():
            try:
                return waiting.put(value, timeout=LOOK_S)
            except Full:
                continue

    def work(shard: Shard) -> None:
        try:
            (piece,) = pieces_of(shard, selection.table, rows=_WHOLE)
            for batch in read(piece, selection):
                put(batch)
                if is_over.is_set():
                    return
            put(None)
        except BaseException as error:  # raised where the batches are read
            put(error)

    with ThreadPoolExecutor(min(len(shards), os.cpu_count() or 1) or 1) as pool:
        for shard in shards:
            pool.submit(work, shard)
        left = len(shards)
        try:
            while left:
                match waiting.get():
                    case None:
                        left -= 1
                    case BaseException() as error:
                        raise error
                    case batch:
                        yield batch
        finally:
            is_over.set()


_WHOLE = 2**62  # rows: a shard is read at once
AHEAD = 16  # batches that wait for the reader
LOOK_S = 0.5  # how often a thread looks whether anybody still reads


def jobs(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The jobs, live or finished."""
    return table("jobs", folder, **options)


def attempts(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The attempts that are over."""
    return table("attempts", folder, **options)


def events(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The event log."""
    return table("events", folder, **options)


def dead_letters(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The jobs that failed for good."""
    return table("dead_letters", folder, **options)


def steps(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The steps of workflows."""
    return table("steps", folder, **options)


def queues(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The queues."""
    return table("queues", folder, **options)


def cron(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The schedules."""
    return table("cron", folder, **options)


def audit(folder: Folder, **options: Unpack[Options]) -> pa.Table:
    """The trail: who changed what."""
    return table("audit", folder, **options)


def _texts(folder: Folder, options: Options) -> dict[str, str]:
    """The options as those of Spark's source."""
    found: dict[str, str] = {"path": os.fspath(folder)}
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise unknown_option("reading", name, Options.__annotations__)
        spelled = {"host": "hosts", "time_column": "timeColumn"}.get(name, name)
        if isinstance(value, datetime):
            found[spelled] = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
        elif name == "host":
            found[spelled] = json.dumps([value])
        elif isinstance(value, str):
            found[spelled] = value
        else:
            found[spelled] = json.dumps(list(value))  # type: ignore[call-overload]
    return found
