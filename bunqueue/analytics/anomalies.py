"""Queues that left their usual band: periods during which they failed more often than usual, or kept jobs
waiting longer.

The band is robust.  Its middle is the median over the queue's buckets, its width the median distance from it
(MAD), so a bad afternoon does not make bad afternoons usual.  Buckets with little activity do not count.
Weekdays are not considered: a queue that is always slow on Mondays is flagged on Mondays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

Row = Mapping[str, Any]

MIN_BUCKETS = 8  # with enough attempts; fewer do not show what is usual
MIN_ATTEMPTS = 20  # in a bucket; with fewer, one more failure proves nothing
MIN_FAILED = 5  # failed attempts in a bucket that is flagged for failures
WIDTH = 5.0  # scaled MADs from the median to the edge of the band
SCALE = 1.4826  # times the MAD is the standard deviation, for normally distributed values
MIN_RATE = 0.05  # a smaller increase of the failure rate is not reported
MIN_WAIT_MS = 1000.0  # the smallest increase of the waiting time that is reported
MIN_TIMES = 3.0  # and the waiting time must be this many times as long
WATCHED_QUEUES = 500  # the busiest queues, which are searched for anomalies


class Anomaly(NamedTuple):
    """A row of the table of anomalies, without its text."""

    host: str
    queue: str
    what: str
    since: datetime
    until: datetime
    usual: float
    bound: float
    worst: float
    attempts: int


class _Measure(NamedTuple):
    name: str
    counts: Callable[[Row], bool]  # whether the value of a bucket is meaningful
    bound: Callable[[float, float], float]  # from the median and the scaled MAD, the edge of the band
    matters: Callable[[Row], bool]  # whether a bucket beyond the edge is worth reporting


def _is_busy(row: Row) -> bool:
    return int(row["attempts"]) >= MIN_ATTEMPTS


def _rate_bound(usual: float, spread: float) -> float:
    return usual + max(WIDTH * spread, MIN_RATE)


def _wait_bound(usual: float, spread: float) -> float:
    return max(usual + max(WIDTH * spread, MIN_WAIT_MS), usual * MIN_TIMES)


MEASURES = (
    _Measure("attempt_failure_rate", _is_busy, _rate_bound, lambda row: row["failed_attempts"] >= MIN_FAILED),
    _Measure("wait_p95", lambda row: _is_busy(row) and row["wait_p95"] is not None, _wait_bound, _is_busy),
)


def find(rows: Iterable[Row], after: Callable[[datetime], datetime]) -> list[Anomaly]:
    """The anomalies in rows of `numbers.QUEUES_OVER_TIME`, the worst first within a measure.

    ``after`` returns the start of the next bucket.
    """
    key = itemgetter("host", "queue")
    found: list[Anomaly] = []
    for _, group in groupby(sorted(rows, key=itemgetter("host", "queue", "bucket")), key):
        buckets = list(group)
        for measure in MEASURES:
            found += _unusual(buckets, measure, after)
    return sorted(found, key=lambda each: (each.what, -(each.worst - each.usual), each.since))


def _unusual(
    buckets: list[Row], measure: _Measure, after: Callable[[datetime], datetime]
) -> Iterator[Anomaly]:
    rows = [row for row in buckets if measure.counts(row)]
    if len(rows) < MIN_BUCKETS:
        return
    values = [float(row[measure.name]) for row in rows]
    usual = median(values)
    bound = measure.bound(usual, SCALE * median(abs(value - usual) for value in values))
    beyond = [row for row in rows if float(row[measure.name]) > bound and measure.matters(row)]
    for run in _neighbours(beyond, after):
        yield Anomaly(
            run[0]["host"],
            run[0]["queue"],
            measure.name,
            run[0]["bucket"],
            after(run[-1]["bucket"]),
            usual,
            bound,
            max(float(row[measure.name]) for row in run),
            sum(int(row["attempts"]) for row in run),
        )


def _neighbours(rows: list[Row], after: Callable[[datetime], datetime]) -> Iterator[list[Row]]:
    """Rows in runs without a gap.  One quiet bucket between two others does not end an incident."""
    run: list[Row] = []
    for row in rows:
        if run and row["bucket"] > after(after(run[-1]["bucket"])):
            yield run
            run = []
        run.append(row)
    if run:
        yield run
