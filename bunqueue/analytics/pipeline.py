"""Computes all tables of a source: the order of the queries, and their progress."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from bunqueue.analytics import aggregates, anomalies, facts, files, numbers, words
from bunqueue.analytics.aggregates import GROUPS, mask_of
from bunqueue.analytics.buckets import UNITS, Buckets, unit_for
from bunqueue.analytics.engine import Engine
from bunqueue.analytics.facts import Log, Source
from bunqueue.analytics.page.figures import About, Row
from bunqueue.analytics.times import Range, ms_of, time_of
from bunqueue.errors import OptionError
from bunqueue.model.errors_alike import kind_of_pattern
from bunqueue.spark import options

MOST_STRETCHES = 20_000  # periods of time: two weeks of minutes, and each queue has rows for them
_SPAN = re.compile(r"(\d+)([mhdw])")
_SPANS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

OnStep = Callable[[str], object]
"""Called before each step with its name."""


def silent(step: str) -> None:
    """An `OnStep` that reports nothing."""


class Wanted(NamedTuple):
    """The wanted range.  ``since``: the first end of a job unless given; ``until``: the last event unless
    given; ``unit``: chosen by the length of the range unless given."""

    since: datetime | None = None
    until: datetime | None = None
    unit: str | None = None
    zone: ZoneInfo = ZoneInfo("UTC")

    @property
    def read_since(self) -> int | None:
        """From when on (epoch ms) ended jobs have to be read: what is usual shows before the range."""
        if self.since is None:
            return None
        unit = self.unit or unit_for(self.since, self.until or max(datetime.now(UTC), self.since))
        return ms_of(self.since - anomalies.history_of(unit))


ALL = Wanted()


class Result(NamedTuple):
    """All tables by name, and a description of them."""

    about: About
    tables: dict[str, pa.Table]


def wanted(
    since: str | None = None, until: str | None = None, bucket: str | None = None, zone: str = "UTC"
) -> Wanted:
    """Parse options given as texts.  ``since`` and ``until`` are in ISO 8601, in the zone unless they have an
    offset, or a span before now such as 24h or 7d.  Raises OptionError when something is wrong."""
    try:
        place = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise OptionError(f"tz: there is no time zone {zone!r}; give one such as Europe/Rome") from None
    if bucket not in (None, *UNITS):
        raise OptionError(f"bucket: {bucket!r} is not allowed; give {', '.join(UNITS)}")
    first, last = moment("since", since, place), moment("until", until, place)
    if first is not None and last is not None and first >= last:
        raise OptionError(f"since: {since!r} is not before until, which is {until!r}")
    return Wanted(first, last, bucket, place)


def moment(option: str, text: str | None, zone: ZoneInfo) -> datetime | None:
    """A time in the format that `wanted` takes.  None if none is given."""
    span = _SPAN.fullmatch(text or "")
    if span is not None:
        try:
            return datetime.now(UTC) - timedelta(**{_SPANS[span[2]]: int(span[1])})
        except OverflowError:
            raise OptionError(f"{option}: {text} before now is before the year 1; give less") from None
    return None if text is None else options.moment(option, text, zone, ", or 24h, 7d for before now")


def aggregate(
    engine: Engine,
    source: Source,
    asked: Wanted = ALL,
    *,
    notes: tuple[str, ...] = (),
    on_step: OnStep = silent,
    most: int = MOST_STRETCHES,
) -> Result:
    """All tables of a source, whose views the engine has.  Raises OptionError when the range has more than
    ``most`` buckets."""
    if asked.since is not None and asked.until is not None:  # otherwise the jobs are needed to know
        check_stretches(asked.unit, asked.since, asked.until, asked.zone, most)
    made_at = datetime.now(UTC)
    on_step("reading jobs and events")
    log = facts.make(engine, source, ms_of(asked.until) if asked.until else ms_of(made_at) + 1)
    span, hosts = _range(engine, log, asked, made_at)
    check_stretches(span.unit, time_of(span.since), time_of(span.until), asked.zone, most)
    notes += _forgotten(log, span)
    about = About(time_of(span.since), time_of(span.until), span.unit, asked.zone, hosts, made_at, notes)
    usual = _before(span) if asked.since is not None else None
    return Result(about, _tables(engine, span, usual, about, on_step))


def check_stretches(asked: str | None, since: datetime, until: datetime, zone: ZoneInfo, most: int) -> None:
    """Raise OptionError when a range has more than ``most`` buckets."""
    unit = asked or unit_for(since, until)
    count = Buckets(unit, zone).how_many(since, until)
    if count <= most:
        return
    coarser = [one for one in UNITS if Buckets(one, zone).how_many(since, until) <= most]
    what = f"give {' or '.join(coarser)}, or a shorter range" if coarser else "give a shorter range"
    raise OptionError(
        f"bucket: {unit} cuts {words.stretch(since, until, zone)} into {count:,} stretches of time, and"
        f" {most:,} are the most; {what} (since, until)"
    )


def _before(span: Range) -> Range:
    """The range that shows what is usual."""
    begin = span.buckets.start(time_of(span.since))
    return Range(ms_of(begin - anomalies.history_of(span.unit)), ms_of(begin), span.unit, span.zone)


def _tables(
    engine: Engine, span: Range, usual: Range | None, about: About, on_step: OnStep
) -> dict[str, pa.Table]:
    tables: dict[str, pa.Table] = {}

    def add(table: numbers.Table, sql: str) -> None:
        tables[table.name] = files.shaped(table, engine.table(sql))

    on_step("counting, and percentiles")
    tables |= _activity(engine, span)
    before = _activity(engine, usual) if usual is not None else {}
    on_step("backlog")
    engine.keep("changes", aggregates.changes(span))
    for table in (numbers.BACKLOG, numbers.BACKLOG_OVER_TIME):
        add(table, aggregates.backlog(table))
    on_step("workers")
    engine.give("buckets", pa.table({"start": pa.array(span.starts, pa.int64())}))
    engine.keep("work", aggregates.work(span))
    add(numbers.WORKERS, aggregates.workers())
    add(numbers.WORKERS_OVER_TIME, aggregates.workers_over_time(span))
    on_step("failures")
    engine.keep_with_patterns("failed", aggregates.failed(span))
    tables["failures"] = files.shaped(numbers.FAILURES, _with_kinds(engine.table(aggregates.failures())))
    add(numbers.FAILURES_OVER_TIME, aggregates.failures_over_time())
    on_step("slowest jobs")
    add(numbers.SLOWEST, aggregates.slowest(span))
    on_step("what stood out")
    tables["anomalies"] = _anomalies(tables, before, about)
    return tables


def _activity(engine: Engine, span: Range) -> dict[str, pa.Table]:
    """The tables of `aggregates.GROUPS`."""
    whole = engine.table(aggregates.activity(engine, span))
    masks = whole["mask"]
    return {
        table.name: files.shaped(table, whole.filter(pc.equal(masks, mask_of(table)))) for table in GROUPS
    }


def _with_kinds(failures: pa.Table) -> pa.Table:
    pairs = zip(failures["error_type"].to_pylist(), failures["pattern"].to_pylist(), strict=True)
    kinds = [kind_of_pattern(error_type, pattern) for error_type, pattern in pairs]
    return failures.append_column("kind", pa.array(kinds, pa.string()))


def _range(engine: Engine, log: Log, asked: Wanted, now: datetime) -> tuple[Range, tuple[str, ...]]:
    """The range of the report, and the hosts in it."""
    (row,) = engine.rows(
        "select min(ended) as ended, min(created) as created, max(greatest(created, ended)) as last from jobs"
    )
    hosts = {row["host"] for row in engine.rows("select distinct host from jobs")}
    hosts |= {begin.host for begin in log.begins}
    until = ms_of(asked.until) if asked.until else ms_of(now) if row["last"] is None else row["last"] + 1
    if asked.since is not None:
        since = ms_of(asked.since)
        if asked.until is None and until <= since:  # nothing has happened since then
            until = ms_of(now)
    else:
        since = next((row[name] for name in ("ended", "created") if row[name] is not None), until - 1)
    since = min(since, until - 1)
    unit = asked.unit or unit_for(time_of(since), time_of(until))
    if asked.since is None:
        since = ms_of(Buckets(unit, asked.zone).start(time_of(since)))
    return Range(since, until, unit, asked.zone), tuple(sorted(hosts))


def _forgotten(log: Log, span: Range) -> tuple[str, ...]:
    """Notes for the reader if the event log does not go back to the start of the range."""
    begun = max((each.at for each in log.begins if each.seq > 1), default=span.since)
    if begun <= span.since:
        return ()
    begin = words.moment(time_of(begun), span.zone)
    return (
        f"Jobs that were removed as they ended, or expired, are counted from {begin} on: the event log goes"
        " back no further.",
    )


def _anomalies(tables: dict[str, pa.Table], before: dict[str, pa.Table], about: About) -> pa.Table:
    """`numbers.ANOMALIES`."""
    watched: dict[str, list[Row]] = {}
    for whole, keys in (("queues", ["host", "queue"]), ("names", ["host", "queue", "name"])):
        busiest = files.busiest(tables[whole], keys, "attempts", anomalies.WATCHED)
        found = [some for some in (tables, before) if some]
        over_time = pa.concat_tables([some[f"{whole}_over_time"] for some in found])
        watched[whole] = files.only(over_time, busiest).to_pylist()
    buckets = Buckets(about.unit, about.zone)
    failed = tables["failures_over_time"].to_pylist()
    rows = []
    for each in anomalies.find([*watched["queues"], *watched["names"]], buckets.start(about.since), buckets):
        reason = _reason(failed, each) if each.is_failures else None
        name = anomalies.worst_name(watched["names"], each)
        text = words.describe(each, about.zone, len(about.hosts), reason, name)
        rows.append({**each._asdict(), "text": text})
    return pa.Table.from_pylist(rows, files.schema_of(numbers.ANOMALIES))


def _reason(failed: list[Row], anomaly: anomalies.Anomaly) -> str | None:
    """The most common error among the attempts of an anomaly."""
    counts: Counter[str] = Counter()
    for row in failed:
        mine = (row["host"], row["queue"]) == (anomaly.host, anomaly.queue)
        if mine and anomaly.since <= row["bucket"] < anomaly.until:
            counts[row["pattern"]] += row["attempts"]
    return max(counts, key=lambda pattern: counts[pattern], default=None) or None
