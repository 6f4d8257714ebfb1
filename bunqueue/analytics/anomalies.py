"""Periods in which a queue, or one name of its jobs, left its usual band: it failed more often than usual, or
its jobs waited, ran or took longer in all.

"Usual" are the same hours of the days before, or all of the range where there are too few of them.  The band
is robust.  Its middle is the median, its width the median distance from it (MAD), so a bad afternoon does not
make bad afternoons usual.  Buckets with little activity do not count.  Weekdays are not considered: a queue
that is always slow on Mondays is flagged on Mondays.

What happened at the same time is one finding, however many queues and numbers it shows in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

from bunqueue.analytics.buckets import Buckets

Row = Mapping[str, Any]

MIN_BUCKETS = 8  # with enough attempts; fewer do not show what is usual
MIN_ATTEMPTS = 20  # in a bucket; with fewer, one more failure proves nothing
MIN_FAILED = 5  # failed attempts in a bucket that is flagged for failures
WIDTH = 5.0  # scaled MADs from the median to the edge of the band
SCALE = 1.4826  # times the MAD is the standard deviation, for normally distributed values
MIN_TIMES = 3.0  # a time must be this many times as long as usual
WATCHED = 500  # the busiest queues, and as many names, which are searched for anomalies
NEAR = timedelta(hours=1)  # how far from a time of day the same hours reach
_BEFORE = {"minute": timedelta(days=7), "hour": timedelta(days=7), "day": timedelta(days=28)}


class Measure(NamedTuple):
    """A number that is judged.  ``least``: the smallest increase that matters, in ms or as a rate; ``about``:
    what its readers call it, and the chart that shows it; ``part_of``: measures that explain this one."""

    name: str
    about: str
    least: float
    part_of: tuple[str, ...] = ()


FAILURES = Measure("attempt_failure_rate", "failures", 0.05)
MEASURES = (
    FAILURES,
    Measure("wait_p95", "waiting", 1000.0),
    Measure("run_p50", "running", 100.0),  # workers report completed jobs up to 50 ms late
    Measure("run_p95", "running", 1000.0, ("run_p50",)),
    Measure("total_p95", "waiting", 1000.0, ("wait_p95", "run_p50", "run_p95")),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


class Anomaly(NamedTuple):
    """A row of the table of anomalies, without its text.  ``name``: None for all jobs of the queue;
    ``finding``: the number of what happened, from 1 on."""

    host: str
    queue: str
    name: str | None
    what: str
    since: datetime
    until: datetime
    usual: float
    bound: float
    worst: float
    attempts: int
    finding: int = 0

    @property
    def is_failures(self) -> bool:
        """Whether it is about failed attempts, and not about times."""
        return self.what == FAILURES.name

    def overlaps(self, other: Anomaly) -> bool:
        """Whether both were at some moment."""
        return self.since < other.until and other.since < self.until


def history_of(unit: str) -> timedelta:
    """How far before a bucket the same hours reach."""
    return _BEFORE[unit]


def find(rows: Iterable[Row], since: datetime, buckets: Buckets) -> list[Anomaly]:
    """The anomalies from ``since`` on, in rows of `numbers.QUEUES_OVER_TIME` and `numbers.NAMES_OVER_TIME`.

    Rows before that show what is usual.  Those of one finding are together, the gravest finding first.
    """

    def key(row: Row) -> tuple[str, str, bool, str]:
        return row["host"], row["queue"], "name" in row, row.get("name") or ""

    found: list[Anomaly] = []
    ordered = sorted(rows, key=lambda row: (*key(row), row["bucket"]))
    for _, group in groupby(ordered, key):
        series = list(group)
        for measure in MEASURES:
            found += _unusual(series, measure, since, buckets)
    return _numbered(_without_parts(found))


def _unusual(rows: Sequence[Row], measure: Measure, since: datetime, buckets: Buckets) -> Iterator[Anomaly]:
    known = [row for row in rows if int(row["attempts"]) >= MIN_ATTEMPTS and row[measure.name] is not None]
    if len(known) < MIN_BUCKETS:
        return
    values = [float(row[measure.name]) for row in known]
    least = min(values)
    if max(values) < _bound(measure, least, 0.0):  # nothing can be beyond its band
        return
    usual_at = _Usual(known, values, buckets)
    beyond = []
    for place, row in enumerate(known):
        if row["bucket"] < since or values[place] < _bound(measure, least, 0.0):
            continue
        if measure is FAILURES and row["failed_attempts"] < MIN_FAILED:
            continue
        usual, spread = usual_at.before(place)
        bound = _bound(measure, usual, spread)
        if values[place] > bound:
            beyond.append((row, values[place], usual, bound))
    for run in _neighbours(beyond, buckets):
        first, last, worst = run[0][0], run[-1][0], max(run, key=lambda each: each[1])
        yield Anomaly(
            first["host"],
            first["queue"],
            first.get("name"),
            measure.name,
            first["bucket"],
            buckets.next(last["bucket"]),
            worst[2],
            worst[3],
            worst[1],
            sum(int(row["attempts"]) for row, *_ in run),
        )


def _bound(measure: Measure, usual: float, spread: float) -> float:
    """The edge of the band, from its middle and its scaled MAD."""
    edge = usual + max(WIDTH * spread, measure.least)
    return edge if measure is FAILURES else max(edge, usual * MIN_TIMES)


class _Usual:
    """The middle and the width of the band of one number, for each bucket."""

    def __init__(self, rows: Sequence[Row], values: Sequence[float], buckets: Buckets) -> None:
        self._values = values
        self._all: tuple[float, float] | None = None
        self._back = history_of(buckets.unit).days
        local = [row["bucket"].astimezone(buckets.zone) for row in rows]
        self._days = [at.toordinal() for at in local]
        is_day = buckets.unit == "day"
        self._minutes = [0 if is_day else at.hour * 60 + at.minute for at in local]
        self._by_day: dict[int, list[int]] = {}
        for place, day in enumerate(self._days):
            self._by_day.setdefault(day, []).append(place)

    def before(self, place: int) -> tuple[float, float]:
        """Usual value and spread in the same hours of earlier days; in all buckets if those are few."""
        day, minute, near = self._days[place], self._minutes[place], NEAR.total_seconds() / 60
        same = [
            self._values[other]
            for earlier in range(day - self._back, day)
            for other in self._by_day.get(earlier, ())
            if abs(self._minutes[other] - minute) <= near
        ]
        if len(same) >= MIN_BUCKETS:
            return _band(same)
        if self._all is None:
            self._all = _band(self._values)
        return self._all


def _band(values: Sequence[float]) -> tuple[float, float]:
    usual = median(values)
    return usual, SCALE * median(abs(value - usual) for value in values)


_Beyond = tuple[Row, float, float, float]


def _neighbours(beyond: list[_Beyond], buckets: Buckets) -> Iterator[list[_Beyond]]:
    """Buckets in runs without a gap.  One quiet bucket between two others does not end an incident."""
    run: list[_Beyond] = []
    for each in beyond:
        if run and each[0]["bucket"] > buckets.next(buckets.next(run[-1][0]["bucket"])):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _without_parts(found: list[Anomaly]) -> list[Anomaly]:
    """Without those that another one explains: of a name if its queue has the same, and of a number that
    another one is part of."""
    kept = []
    for one in found:
        mine = [
            other
            for other in found
            if other is not one and (other.host, other.queue) == (one.host, one.queue) and one.overlaps(other)
        ]
        whole = one.name is not None and any(each.name is None and each.what == one.what for each in mine)
        part_of = BY_NAME[one.what].part_of
        explained = any(each.what in part_of and each.name in (None, one.name) for each in mine)
        if not whole and not explained:
            kept.append(one)
    return kept


def _numbered(found: list[Anomaly]) -> list[Anomaly]:
    """The anomalies by findings: in one queue those that overlap, in several those of mostly the same
    time."""
    findings: list[list[Anomaly]] = []
    for one in sorted(found, key=lambda each: (each.since, each.until, each.host, each.queue, each.what)):
        mine = next((some for some in findings if any(_is_same(one, other) for other in some)), None)
        if mine is None:
            findings.append([one])
        else:
            mine.append(one)
    findings.sort(key=lambda some: (not any(each.is_failures for each in some), -_weight(some)))
    return [
        each._replace(finding=number)
        for number, some in enumerate(findings, 1)
        for each in sorted(some, key=_place)
    ]


def _place(one: Anomaly) -> tuple[bool, str, str, int, datetime]:
    """The order within a finding."""
    return not one.is_failures, one.host, one.queue, MEASURES.index(BY_NAME[one.what]), one.since


def _weight(some: Iterable[Anomaly]) -> int:
    return sum(each.attempts for each in some)


def _is_same(one: Anomaly, other: Anomaly) -> bool:
    if not one.overlaps(other):
        return False
    if (one.host, one.queue) == (other.host, other.queue):
        return True
    both = min(one.until, other.until) - max(one.since, other.since)
    either = max(one.until, other.until) - min(one.since, other.since)
    return both * 2 >= either


def worst_name(names: Iterable[Row], anomaly: Anomaly) -> tuple[str, float] | None:
    """The name of a queue's jobs that was much worse than the others meanwhile, and how bad.  None if the
    anomaly is of one name, or the names do not differ much."""
    if anomaly.name is not None:
        return None
    worst: dict[str, float] = {}
    for row in names:
        mine = (row["host"], row["queue"]) == (anomaly.host, anomaly.queue)
        if mine and anomaly.since <= row["bucket"] < anomaly.until and row[anomaly.what] is not None:
            value = float(row[anomaly.what]) if row["attempts"] >= MIN_FAILED else 0.0
            worst[row["name"]] = max(worst.get(row["name"], 0.0), value)
    ordered = sorted(worst.items(), key=lambda each: -each[1])
    if len(ordered) < 2 or ordered[0][1] < 2 * ordered[1][1]:
        return None
    return ordered[0]
