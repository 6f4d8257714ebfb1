"""Computes all tables of a source: the order of Spark's jobs, and their progress."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bunqueue.analytics import aggregates, anomalies, files, numbers, words
from bunqueue.analytics.aggregates import GROUPS, Range
from bunqueue.analytics.buckets import UNITS, Buckets, unit_for
from bunqueue.analytics.facts import Facts, Source, facts
from bunqueue.analytics.page.figures import About, Row
from bunqueue.analytics.tuning import few_partitions
from bunqueue.spark import BadOption, options

MOST_STRETCHES = 20_000  # periods of time: two weeks of minutes, and each queue has rows for them
STEPS = (
    "reading jobs and events",
    "counting, and percentiles",
    "backlog",
    "workers",
    "failures",
    "slowest jobs",
    "what stood out",
)
_SPAN = re.compile(r"(\d+)([mhdw])")
_SPANS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

OnStep = Callable[[int, str], None]
"""Called before each step with its position in `STEPS` and its name."""


class Wanted(NamedTuple):
    """The wanted range.  ``since``: the first end of a job unless given; ``until``: the last event unless
    given; ``unit``: chosen by the length of the range unless given."""

    since: datetime | None = None
    until: datetime | None = None
    unit: str | None = None
    zone: ZoneInfo = ZoneInfo("UTC")


ALL = Wanted()


class Result(NamedTuple):
    """All tables by name, and a description of them."""

    about: About
    tables: dict[str, pa.Table]


def wanted(
    since: str | None = None, until: str | None = None, bucket: str | None = None, zone: str = "UTC"
) -> Wanted:
    """Parse options given as texts.  ``since`` and ``until`` are in ISO 8601, in the zone unless they have an
    offset, or a span before now such as 24h or 7d.  Raises BadOption when something is wrong."""
    try:
        place = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise BadOption(f"tz: there is no time zone {zone!r}; give one such as Europe/Rome") from None
    if bucket not in (None, *UNITS):
        raise BadOption(f"bucket: {bucket!r} is not allowed; give {', '.join(UNITS)}")
    first, last = moment("since", since, place), moment("until", until, place)
    if first is not None and last is not None and first >= last:
        raise BadOption(f"since: {since!r} is not before until, which is {until!r}")
    return Wanted(first, last, bucket, place)


def moment(option: str, text: str | None, zone: ZoneInfo) -> datetime | None:
    """A time in the format that `wanted` takes.  None if none is given."""
    span = _SPAN.fullmatch(text or "")
    if span is not None:
        try:
            return datetime.now(UTC) - timedelta(**{_SPANS[span[2]]: int(span[1])})
        except OverflowError:
            raise BadOption(f"{option}: {text} before now is before the year 1; give less") from None
    return None if text is None else options.moment(option, text, zone, ", or 24h, 7d for before now")


def aggregate(
    source: Source,
    asked: Wanted = ALL,
    *,
    notes: tuple[str, ...] = (),
    on_step: OnStep = lambda step, name: None,
    most: int = MOST_STRETCHES,
) -> Result:
    """All tables of a source.  Raises BadOption when the range has more than ``most`` buckets."""
    if asked.since is not None and asked.until is not None:  # otherwise the jobs are needed to know
        check_stretches(asked.unit, asked.since, asked.until, asked.zone, most)
    with few_partitions(source.jobs.sparkSession):
        return _aggregate(source, asked, notes, on_step, most)


def check_stretches(asked: str | None, since: datetime, until: datetime, zone: ZoneInfo, most: int) -> None:
    """Raise BadOption when a range has more than ``most`` buckets."""
    unit = asked or unit_for(since, until)
    count = Buckets(unit, zone).how_many(since, until)
    if count <= most:
        return
    coarser = [one for one in UNITS if Buckets(one, zone).how_many(since, until) <= most]
    what = f"give {' or '.join(coarser)}, or a shorter range" if coarser else "give a shorter range"
    raise BadOption(
        f"bucket: {unit} cuts {words.stretch(since, until, zone)} into {count:,} stretches of time, and"
        f" {most:,} are the most; {what} (since, until)"
    )


def _aggregate(source: Source, asked: Wanted, notes: tuple[str, ...], on_step: OnStep, most: int) -> Result:
    made_at = datetime.now(UTC)
    on_step(0, STEPS[0])
    known = facts(source, _ms(asked.until) if asked.until else _ms(made_at) + 1)
    try:
        span, hosts = _range(known, asked, made_at)
        check_stretches(span.unit, _time(span.since), _time(span.until), asked.zone, most)
        notes += _forgotten(known, span)
        about = About(_time(span.since), _time(span.until), span.unit, asked.zone, hosts, made_at, notes)
        return Result(about, _tables(known, span, about, on_step))
    finally:
        known.release()


def _tables(known: Facts, span: Range, about: About, on_step: OnStep) -> dict[str, pa.Table]:
    tables: dict[str, pa.Table] = {}

    def keep(table: numbers.Table, frame: DataFrame) -> None:
        tables[table.name] = files.shaped(table, frame.toArrow())

    on_step(1, STEPS[1])
    everything = aggregates.activity(known, span).toArrow()
    for place, table in enumerate(GROUPS):
        mine = everything.filter(pc.equal(everything["grouping"], place))
        tables[table.name] = files.shaped(table, mine)
    if not tables["totals"].num_rows:
        tables["totals"] = _nothing()
    on_step(2, STEPS[2])
    changes = aggregates.comings_and_goings(known, span).persist()
    for table in (numbers.BACKLOG, numbers.BACKLOG_OVER_TIME):
        keep(table, aggregates.backlog(changes, [key.name for key in table.keys]))
    changes.unpersist()
    on_step(3, STEPS[3])
    work = aggregates.work_by_bucket(known, span).persist()
    keep(numbers.WORKERS, aggregates.workers(work))
    keep(numbers.WORKERS_OVER_TIME, aggregates.workers_over_time(work, span))
    work.unpersist()
    on_step(4, STEPS[4])
    failed = aggregates.failed_attempts(known, span).persist()
    for table, frame in zip(
        (numbers.FAILURES, numbers.FAILURES_OVER_TIME), aggregates.failures(failed), strict=True
    ):
        keep(table, frame)
    failed.unpersist()
    on_step(5, STEPS[5])
    keep(numbers.SLOWEST, aggregates.slowest(known, span))
    on_step(6, STEPS[6])
    tables["anomalies"] = _anomalies(tables, about)
    return tables


def _nothing() -> pa.Table:
    """`numbers.TOTALS` where nothing has happened."""
    counted = ("run_total", "run_wasted", "throughput")
    sums = [
        each.name for each in numbers.ACTIVITY if each.unit in ("jobs", "attempts") or each.name in counted
    ]
    row = dict.fromkeys(sums, 0)
    return pa.Table.from_pylist([row], files.schema_of(numbers.TOTALS))


def _range(known: Facts, asked: Wanted, now: datetime) -> tuple[Range, tuple[str, ...]]:
    """The range of the report, and the hosts in it."""
    jobs = known.jobs.agg(
        F.min("ended"),
        F.min("created"),
        F.max(F.greatest("created", "ended")),
        F.array_sort(F.collect_set("host")),
    ).first()
    first, created, last, hosts = jobs if jobs is not None else (None, None, None, [])
    hosts = sorted({*hosts, *(begin.host for begin in known.log.begins)})
    until = _ms(asked.until) if asked.until else _ms(now) if last is None else last + 1
    if asked.since is not None:
        since = _ms(asked.since)
        if asked.until is None and until <= since:  # nothing has happened since then
            until = _ms(now)
    else:
        since = next((moment for moment in (first, created) if moment is not None), until - 1)
    since = min(since, until - 1)
    unit = asked.unit or unit_for(_time(since), _time(until))
    if asked.since is None:
        since = _ms(Buckets(unit, asked.zone).start(_time(since)))
    return Range(since, until, unit, asked.zone.key), tuple(hosts)


def _forgotten(known: Facts, span: Range) -> tuple[str, ...]:
    """Notes for the reader if the event log does not go back to the start of the range."""
    begun = max((each.at for each in known.log.begins if each.seq > 1), default=span.since)
    if begun <= span.since:
        return ()
    begin = words.moment(_time(begun), ZoneInfo(span.zone))
    return (
        f"Jobs that were removed as they ended, or expired, are counted from {begin} on: the event log goes"
        " back no further.",
    )


def _anomalies(tables: dict[str, pa.Table], about: About) -> pa.Table:
    """`numbers.ANOMALIES`."""
    busiest = files.busiest(tables["queues"], "queue", "attempts", anomalies.WATCHED_QUEUES)
    rows = files.only(tables["queues_over_time"], busiest, "queue").to_pylist()
    failed = tables["failures_over_time"].to_pylist()
    found = []
    for each in anomalies.find(rows, Buckets(about.unit, about.zone).next):
        reason = _reason(failed, each) if each.what == "attempt_failure_rate" else None
        text = words.describe(each, about.zone, len(about.hosts), reason)
        found.append({**each._asdict(), "text": text})
    return pa.Table.from_pylist(found, files.schema_of(numbers.ANOMALIES))


def _reason(failed: list[Row], anomaly: anomalies.Anomaly) -> str | None:
    """The most common error among the attempts of an anomaly."""
    key = itemgetter("pattern")
    during = [
        row
        for row in failed
        if (row["host"], row["queue"]) == (anomaly.host, anomaly.queue)
        and anomaly.since <= row["bucket"] < anomaly.until
    ]
    counts = {
        pattern: sum(row["attempts"] for row in rows)
        for pattern, rows in groupby(sorted(during, key=key), key)
    }
    return max(counts, key=lambda pattern: counts[pattern], default=None) or None


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
