"""Exports data folders to a lake: everything that has happened since the last run.

The event log says what is new.  Events are read from the number that the last run had reached in their
shard, and they name the jobs and attempts that have ended since.  If nothing has happened, nothing else is
read.  Of a shard that is new to the lake, or whose log no longer goes back that far, all jobs and attempts
are read.  Rows that the lake already has are left out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from bunqueue.analytics.facts import ENDED
from bunqueue.analytics.lake import ENDS, KEYS, columns_of, files_of
from bunqueue.analytics.lake_files import LakeWriter
from bunqueue.analytics.lake_log import TABLES, Commit, Gap, LakeLog, Reached
from bunqueue.analytics.pipeline import OnStep, silent
from bunqueue.analytics.times import time_of
from bunqueue.errors import OptionError
from bunqueue.server.folder.shard_file import current
from bunqueue.spark.errors import NotReadable, UnreadableShard
from bunqueue.spark.read.conditions import MAX_IN, Condition
from bunqueue.spark.read.event_rows import Bounds, bounds
from bunqueue.spark.read.folders import Shard, find_shards, host_names
from bunqueue.spark.read.reading import Piece, Selection, check_readable, read
from bunqueue.spark.read.remote import fetched
from bunqueue.spark.read.tables import TABLES as READ

OVERLAP_MS = 3_600_000  # looked for in the lake: the most by which times may be behind the numbers of events
NAMED = 50_000  # jobs that are looked up one by one; for more, it is faster to read all of a shard
_ATTEMPT_ENDS = ("completed", "failed", "stalled", "released")
_GONE = ("dropped", "removed", "revived")
logger = logging.getLogger("bunqueue.analytics")

Places = dict[str, dict[int, Reached]]  # host -> shard -> position


class News(NamedTuple):
    """What the new events of a shard say: ids of jobs that ended, with their queues, and of those with
    attempts that ended; the first and the last event."""

    ended: dict[str, str | None]
    tried: set[str]
    first: Reached | None
    last: Reached | None


class _Shard(NamedTuple):
    """A shard, and where the last run was.  ``begun``: leave out what ended before (epoch ms); ``is_whole``:
    all of the host's events should be in the lake."""

    shard: Shard
    reached: Reached | None
    begun: int
    is_whole: bool
    payload: bool


def export(
    folders: Sequence[str],
    lake: Path,
    *,
    hosts: Sequence[str] = (),
    payload: bool = False,
    since: int | None = None,
    skip_unreadable: bool = False,
    on_step: OnStep = silent,
) -> Commit:
    """Add everything that has happened in data folders since the last run to a lake.  Returns the commit,
    which is not written if nothing has.  ``payload``: with data and results.  ``since``: for hosts that are
    new to the lake, leave out everything that ended before (epoch ms), for good.

    Safe to repeat, and to kill at any moment.  Raises NotReadable when another run works on the lake, or when
    a folder is not the one that was exported before.  Raises OptionError when it is unclear which host a
    folder belongs to.
    """
    names = host_names(folders, hosts)
    shards = _by_host(find_shards(folders, names))
    counts = {host: len(found) for host, found in shards.items()}
    log = LakeLog(lake)
    with log.opened() as last:
        before = last or Commit(0, 0, {}, {}, [])
        if not hosts:
            _check_known(names, before.shards)
        _check_shards(counts, before.shards)
        begun = before.begun | ({} if since is None else _begin(names, before.shards, since))
        reached = {host: dict(places) for host, places in before.reached.items()}
        gaps: list[Gap] = []
        missing: Counter[str] = Counter()
        with LakeWriter(log.staging) as writer:
            for shard in (each for host in names for each in shards[host]):
                on_step(f"{shard.host}, shard {shard.number}")
                known = reached.get(shard.host, {})
                is_whole = shard.host in before.reached and shard.host not in begun
                each = _Shard(shard, known.get(shard.number), begun.get(shard.host, 0), is_whole, payload)
                try:
                    found = _export_shard(each, lake, writer, gaps, missing, skip=skip_unreadable)
                except UnreadableShard as error:
                    if not skip_unreadable:
                        raise
                    logger.warning("skipped: %s", error)
                    continue
                if found is not None:
                    reached.setdefault(shard.host, {})[shard.number] = found
            rows = {table: writer.rows[table] for table in TABLES}
        on_step("commit")
        number, made_at = before.number + 1, time.time_ns() // 1_000_000
        commit = Commit(number, made_at, rows, reached, gaps, dict(missing), begun=begun)
        commit.shards = before.shards | counts
        if any(rows.values()) or begun != before.begun:
            log.commit(commit)
        return commit


def _export_shard(
    this: _Shard, lake: Path, writer: LakeWriter, gaps: list[Gap], missing: Counter[str], *, skip: bool
) -> Reached | None:
    """Write the new rows of a shard.  Returns the last event that was read, or None if there is no new
    one."""
    shard = this.shard
    if skip:
        check_readable(shard)  # before anything is written: half a shard would count as a whole one
    with fetched(shard.path) as path:
        shard = shard._replace(path=str(path))
        with current(path) as file:
            ends = bounds(file)
        after = this.reached.seq if this.reached is not None else 0
        _check_is_same(this, ends)
        if ends.last <= after:
            return None
        # Events first: a job that ends after that is then in the table of jobs, and not missing.
        news = _write_events(shard, this, after, ends, writer)
        gap = _gap(this, ends, news)
        if gap is not None:
            gaps.append(gap)
        whole = this.reached is None or gap is not None
        floor = this.begun
        if this.reached is not None and gap is None:
            floor = max(floor, this.reached.at - OVERLAP_MS)
        known = _Known(lake, shard.host, None if this.reached is None else floor)
        for table, ids in (("attempts", news.tried), ("jobs", news.ended.keys())):
            for batch in _rows(shard, this, table, None if whole else set(ids), floor):
                found = known.without(table, batch)
                writer.add(table, found)
                if table == "jobs":
                    for id_ in batch["id"].to_pylist():
                        news.ended.pop(id_, None)
        missing.update(queue or "" for queue in news.ended.values())
    return news.last


def _check_is_same(this: _Shard, ends: Bounds) -> None:
    """Raise NotReadable if the log ends before what was read of it: it was put back from a backup."""
    if this.reached is not None and ends.last < this.reached.seq:
        raise NotReadable(
            f"shard {this.shard.number} of {this.shard.host} has {ends.last:,} events, and had"
            f" {this.reached.seq:,} at the last export: it was restored from a backup, perhaps; give it"
            " another name (--host), and the time of that as --since"
        )


def _gap(this: _Shard, ends: Bounds, news: News) -> Gap | None:
    """The events that were removed before they were read.  Some may have been deleted on request.  Those do
    not count as missing."""
    reached = this.reached or (Reached(0, 0) if this.is_whole else None)
    if reached is None or ends.first <= reached.seq + 1:
        return None
    until = news.first.at if news.first is not None else reached.at
    return Gap(this.shard.host, this.shard.number, reached.seq + 1, ends.first - 1, reached.at, until)


def _write_events(shard: Shard, this: _Shard, after: int, ends: Bounds, writer: LakeWriter) -> News:
    """Write the new events, and look at what they say."""
    conditions = [Condition("seq", ">=", after + 1), Condition("seq", "<=", ends.last)]
    ended: dict[str, str | None] = {}
    tried: set[str] = set()
    first, last = None, None
    for batch in _read(shard, "events", conditions, payload=False):
        table = pa.Table.from_batches([batch])
        times = table["at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        place = Reached(table["seq"][-1].as_py(), times[-1].as_py())
        first, last = first or Reached(table["seq"][0].as_py(), times[0].as_py()), place
        table = _since(table, "events", this.begun)
        writer.add("events", table)
        ends_attempt = table.filter(pc.is_in(table["kind"], pa.array([*_ATTEMPT_ENDS, *_GONE])))
        fields = (ends_attempt[name].to_pylist() for name in ("kind", "job_id", "queue", "terminal"))
        for kind, job, queue, terminal in zip(*fields, strict=True):
            if kind in _GONE:
                ended.pop(job, None)
            else:
                tried.add(job)
            if kind == "completed" or (kind == "failed" and terminal):
                ended[job] = queue
    return News(ended, tried, first, last)


def _rows(shard: Shard, this: _Shard, table: str, ids: set[str] | None, floor: int) -> Iterator[pa.Table]:
    """The rows of jobs or attempts that ended from ``floor`` (epoch ms) on: all, or those of some jobs."""
    key = "id" if table == "jobs" else "job_id"
    ended = [Condition("state", "in", list(ENDED))] if table == "jobs" else []
    if ids is None or len(ids) > NAMED:
        wanted = None if ids is None else pa.array(ids)
        for batch in _read(shard, table, ended, payload=this.payload):
            found = _since(pa.Table.from_batches([batch]), table, floor)
            yield found if wanted is None else found.filter(pc.is_in(found[key], wanted))
        return
    named = sorted(ids)
    for start in range(0, len(named), MAX_IN):
        some = Condition(key, "in", named[start : start + MAX_IN])
        for batch in _read(shard, table, [some, *ended], payload=this.payload):
            yield _since(pa.Table.from_batches([batch]), table, floor)


def _read(
    shard: Shard, table: str, conditions: Sequence[Condition], *, payload: bool
) -> Iterator[pa.RecordBatch]:
    now = time.time_ns() // 1_000_000
    selection = Selection(READ[table], columns_of(table, payload=payload), tuple(conditions), now)
    return read(Piece(shard), selection)


def _since(rows: pa.Table, table: str, floor: int) -> pa.Table:
    if not floor:
        return rows
    ended = rows[ENDS[table]]
    return rows.filter(pc.greater_equal(ended, pa.scalar(time_of(floor), ended.type)))


class _Known:
    """The keys of a host's rows in a lake, from ``floor`` on (epoch ms; None: the lake has no rows)."""

    def __init__(self, lake: Path, host: str, floor: int | None) -> None:
        self._lake, self._host, self._floor = lake, host, floor
        self._keys: dict[str, pa.Table | None] = {}

    def without(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows that are not in the lake."""
        if table not in self._keys:
            self._keys[table] = self._read(table)
        known = self._keys[table]
        if known is None or not len(known) or not len(rows):
            return rows
        keys = rows.select(KEYS[table]).append_column("row", pa.array(range(len(rows)), pa.int64()))
        return rows.take(keys.join(known, KEYS[table], join_type="left anti")["row"])

    def _read(self, table: str) -> pa.Table | None:
        files = [] if self._floor is None else files_of(self._lake, table, self._floor)
        if not files:
            return None
        mine = dataset.field("host") == self._host
        found = dataset.dataset([str(file) for file in files]).to_table(columns=KEYS[table], filter=mine)
        return found


def _by_host(shards: Iterable[Shard]) -> dict[str, list[Shard]]:
    found: dict[str, list[Shard]] = {}
    for shard in shards:
        found.setdefault(shard.host, []).append(shard)
    return found


def _begin(names: Iterable[str], known: Mapping[str, int], since: int) -> dict[str, int]:
    """The time from which each host is exported.  Raises OptionError when the lake already has one."""
    for name in names:
        if name in known:
            raise OptionError(
                f"since: the lake knows {name}, and goes on where it was; leave it out, or, if what it was"
                " exported from has been put back or resharded, give another name (--host)"
            )
    return dict.fromkeys(names, since)


def _check_known(names: Iterable[str], known: Mapping[str, int]) -> None:
    """Raise OptionError when a default host name is new to a lake.  A container has a new name each time, and
    all rows that the lake has of the host would be added again."""
    new = next((name for name in names if known and name not in known), None)
    if new is not None:
        raise OptionError(
            f"hosts: the lake knows {', '.join(sorted(known))}, and not {new}, as this would be called; name"
            " the host of each data folder (--host)"
        )


def _check_shards(shards: Mapping[str, int], before: Mapping[str, int]) -> None:
    """Raise NotReadable when a host was resharded: its events then have other shards or numbers than in the
    lake."""
    for host, count in shards.items():
        if before.get(host, count) != count:
            raise NotReadable(
                f"{host} has {count} shards, and had {before[host]} at the last export: its events would be"
                " added again; give it another name (--host), and the time of the resharding as --since"
            )
