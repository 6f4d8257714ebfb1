"""The sources of the analytics: data folders of one or more hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bunqueue.analytics.engine import Engine, Folders
from bunqueue.analytics.facts import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    JOB_COLUMNS,
    NOT_COMPLETED,
    Begin,
    Source,
)
from bunqueue.analytics.times import time_of
from bunqueue.server.folder.shard_file import opened
from bunqueue.spark.errors import UnreadableShard
from bunqueue.spark.read.conditions import Condition
from bunqueue.spark.read.event_rows import oldest
from bunqueue.spark.read.folders import Shard, find_shards, host_names
from bunqueue.spark.read.reading import check_readable
from bunqueue.spark.read.remote import fetched


def from_folders(
    engine: Engine,
    folders: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    since: int | None = None,
    skip_unreadable: bool = False,
) -> tuple[Source, tuple[str, ...]]:
    """The tables of data folders, whether their servers run or the folders are copies, and what is missing in
    them.

    ``hosts`` names the machine of each; see `find_shards`.  Jobs and attempts that ended before ``since``
    (epoch ms) are left out, because no number is about them.
    """
    given = host_names(folders, hosts)
    shards = find_shards(folders, given)
    notes: list[str] = []
    if skip_unreadable:
        shards = list(_readable(shards, notes))
    place = Folders(folders, given, shards, skip_unreadable)
    recent, ended = "true", [Condition("outcome", "in", list(NOT_COMPLETED))]
    if since is not None:
        recent = f"finished_at is null or unix_millis(finished_at) >= {since}"
        ended.append(Condition("ended_at", ">=", time_of(since)))
    engine.folders("read_jobs", "jobs", JOB_COLUMNS, place, (), recent)
    engine.folders("read_attempts", "attempts", ATTEMPT_COLUMNS, place, ended)

    def events(kinds: Sequence[str]) -> str:
        engine.folders("read_events", "events", EVENT_COLUMNS, place, [Condition("kind", "in", list(kinds))])
        return "read_events"

    def begins() -> list[Begin]:
        return [begin for shard in shards for begin in _begin(shard)]

    return Source("read_jobs", "read_attempts", events, begins), tuple(notes)


def _readable(shards: Iterable[Shard], notes: list[str]) -> Iterator[Shard]:
    """The shards that can be read.  The others are noted."""
    for shard in shards:
        try:
            check_readable(shard)
        except UnreadableShard as error:
            notes.append(f"Shard {shard.number} of {shard.host} is left out: {error}.")
        else:
            yield shard


def _begin(shard: Shard) -> Iterator[Begin]:
    """The start of the log of one shard, if it has events."""
    with fetched(shard.path) as path, opened(path) as file:
        found = oldest(file)
    if found is not None:
        yield Begin(shard.host, shard.number, *found)
