"""The sources of the analytics: data folders of one or more hosts, read with the Spark source
``bunqueue``."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bunqueue.analytics.facts import ATTEMPT_COLUMNS, EVENT_COLUMNS, JOB_COLUMNS, Begin, Source
from bunqueue.server.folder.shard_file import opened
from bunqueue.spark import BadOption, UnreadableShard
from bunqueue.spark.read.event_rows import oldest
from bunqueue.spark.read.folders import Shard, find_shards
from bunqueue.spark.read.remote import fetched, is_remote, shown
from bunqueue.spark.read.snapshots import is_live, snapshot


def host_names(folders: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """A name for each folder: the given ones, or this machine's name for a single folder, or the names of the
    folders.

    Raises BadOption when there are too few or too many names, or when two are the same.
    """
    if hosts and len(hosts) != len(folders):
        raise BadOption(f"hosts: {len(hosts)} names for {len(folders)} data folders; give one for each")
    names = list(hosts)
    if not names:
        names = [socket.gethostname()] if len(folders) == 1 else [_own_name(path) for path in folders]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadOption(f"hosts: {twice!r} names two data folders; give each a name of its own")
    return names


def _own_name(folder: str) -> str:
    return Path(shown(folder) if is_remote(folder) else folder).name


@contextmanager
def at_rest(
    folders: Sequence[str], scratch: str | None = None, *, skip_unreadable: bool = False
) -> Iterator[list[str]]:
    """The folders, with copies in place of those that a server writes to.  The copies exist as long as the
    block runs.  So all tables are of one moment, and no log grows while they are read.

    ``scratch`` is the folder for the copies, by default the system's temporary folder.  Raises NotReadable
    when that folder does not exist, or has no room.
    """
    with ExitStack() as copies:
        yield [
            copies.enter_context(snapshot(folder, scratch, skip_unreadable=skip_unreadable))
            if is_live(folder)
            else folder
            for folder in folders
        ]


def from_folders(
    spark: SparkSession,
    folders: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    since: int | None = None,
    skip_unreadable: bool = False,
) -> Source:
    """The tables of data folders, whether their servers run or the folders are copies.

    ``hosts`` names the machine of each; see `host_names`.  Jobs and attempts that ended before ``since``
    (epoch ms) are left out, because no number is about them.
    """
    given = host_names(folders, hosts)
    shards = find_shards(folders, given)  # reports a wrong path here, not from within Spark
    names = json.dumps(given)

    def table(name: str, columns: str, **more: bool | str) -> DataFrame:
        reader = spark.read.format("bunqueue").option("table", name).option("columns", columns)
        reader = reader.option("hosts", names).option("unreadable", "skip" if skip_unreadable else "fail")
        return reader.options(**more).load(list(folders))

    def begins() -> list[Begin]:
        return _begins(spark, shards, skip=skip_unreadable)

    jobs = table("jobs", JOB_COLUMNS)
    attempts = table("attempts", ATTEMPT_COLUMNS, pushFilters=True)  # few failed; only one filter
    if since is not None:
        begin, ended = F.timestamp_millis(F.lit(since)), F.col("finished_at")
        jobs = jobs.where(ended.isNull() | (ended >= begin))
        attempts = attempts.where(F.col("ended_at") >= begin)
    return Source(
        jobs,
        attempts,
        lambda kinds: table("events", EVENT_COLUMNS, kinds=",".join(kinds)),
        begins,
    )


def _begins(spark: SparkSession, shards: Sequence[Shard], *, skip: bool) -> list[Begin]:
    """Where their event logs begin.  Read here, which is quicker than by a task, unless the files have to be
    fetched."""
    if any(is_remote(shard.path) for shard in shards):
        spread = spark.sparkContext.parallelize(shards, len(shards))
        return spread.flatMap(lambda shard: list(_begin(shard, skip=skip))).collect()
    return [begin for shard in shards for begin in _begin(shard, skip=skip)]


def _begin(shard: Shard, *, skip: bool) -> Iterator[Begin]:
    """The start of the log of one shard, if it has events."""
    try:
        with fetched(shard.path) as path, opened(path) as file:
            found = oldest(file)
    except UnreadableShard:
        if not skip:
            raise
        return
    if found is not None:
        yield Begin(shard.host, shard.number, *found)
