"""The sources of the analytics: data folders of one or more hosts."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
from bunqueue.spark.errors import BadOption, UnreadableShard
from bunqueue.spark.read.conditions import Condition
from bunqueue.spark.read.event_rows import oldest
from bunqueue.spark.read.folders import Shard, find_shards
from bunqueue.spark.read.reading import check_readable
from bunqueue.spark.read.remote import fetched, is_remote, shown


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

    ``hosts`` names the machine of each; see `host_names`.  Jobs and attempts that ended before ``since``
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
