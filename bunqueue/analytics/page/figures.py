"""The data of a report: rows of the tables in `bunqueue.analytics.numbers`, and a description of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from bunqueue.analytics import words
from bunqueue.analytics.anomalies import BY_NAME
from bunqueue.analytics.buckets import Buckets
from bunqueue.analytics.page.charts import Axis, Band

OUTCOMES = ("completed", "failed", "cancelled", "expired", "removed")  # of jobs, in the order of the charts
DASHBOARD = "http://127.0.0.1:6790"  # as a server has it unless told otherwise
MOST_STRETCHES = 2_000  # periods of time: more make a page of many MB, with columns thinner than a pixel

Row = Mapping[str, Any]


class About(NamedTuple):
    """The subject of the figures. ``until`` is the moment after the last bucket's last event."""

    since: datetime
    until: datetime
    unit: str  # of bunqueue.analytics.buckets.UNITS
    zone: ZoneInfo
    hosts: tuple[str, ...]
    made_at: datetime
    notes: tuple[str, ...] = ()  # what a reader must know about gaps in the data
    dashboard: str = DASHBOARD  # where links lead; {host} in it stands for the host


class Left(NamedTuple):
    """Jobs of a queue that are left at the end: those that are due and not taken, and others that have not
    ended."""

    waiting: int
    others: int


NOTHING_LEFT = Left(0, 0)


@dataclass(frozen=True)
class Figures:
    """The tables by name, each a list of rows, and the number of queues with enough attempts to judge."""

    about: About
    tables: Mapping[str, list[Row]]
    judged: int = 0

    @property
    def totals(self) -> Row:
        """The one row of the table of totals."""
        return self.tables["totals"][0]

    @cached_property
    def buckets(self) -> list[datetime]:
        """All buckets of the range, including those in which nothing happened."""
        return list(Buckets(self.about.unit, self.about.zone).between(self.about.since, self.about.until))

    @cached_property
    def left(self) -> dict[tuple[str, str], Left]:
        """The jobs that are left in each queue at the end of the range, by host and name."""
        rows = sorted(self.tables["backlog"], key=lambda row: row["bucket"])
        return {
            (row["host"], row["queue"]): Left(row["waiting"], row["unfinished"] - row["waiting"])
            for row in rows
        }

    def place(self, row: Row) -> str:
        """A row's queue, with its host if there are several."""
        return words.place(row["host"], row["queue"], len(self.about.hosts))

    def axis(self, about: str = "") -> Axis:
        """All buckets, with the bands of the anomalies that a chart is about; see `anomalies.Measure`."""
        buckets, zone = self.buckets, self.about.zone
        marks = [words.label(at, zone, self.about.unit) for at in buckets]
        if self.about.unit == "hour" and (self.about.until - self.about.since).days >= 2:
            marks = [self._day_mark(at) for at in buckets]
        when = f"{words.stretch(self.about.since, self.about.until, zone)}, {zone.key}"
        titles = [self.called(at) for at in buckets]
        return Axis(titles, marks, when, list(self._bands(about)))

    def _bands(self, about: str) -> Iterator[Band]:
        hosts = len(self.about.hosts)
        for row in self.tables["anomalies"]:
            if BY_NAME[row["what"]].about != about:
                continue
            inside = [place for place, at in enumerate(self.buckets) if row["since"] <= at < row["until"]]
            if inside:
                who = words.subject(row["host"], row["queue"], row["name"], hosts)
                text = f"{who} {words.brief(row['what'])}"
                yield Band(inside[0], inside[-1] + 1, row["finding"], text)

    def _day_mark(self, hour: datetime) -> str:
        """The day, at its first hour."""
        first = Buckets("day", self.about.zone).start(hour) == hour
        return words.label(hour, self.about.zone, "day") if first else ""

    def called(self, at: datetime) -> str:
        """The full name of a bucket."""
        text = words.moment(at, self.about.zone)
        return text.rpartition(",")[0] if self.about.unit == "day" else text

    def over_time(self, rows: Iterable[Row], number: str, missing: float | None = 0) -> list[float | None]:
        """One number of the rows that have buckets, with one value for each bucket."""
        known = {row["bucket"]: row[number] for row in rows}
        return [known.get(at, missing) for at in self.buckets]

    def summed(self, rows: Iterable[Row], number: str) -> list[float | None]:
        """One number added up over the rows of each bucket."""
        known: Counter[datetime] = Counter()
        for row in rows:
            known[row["bucket"]] += row[number]
        return [float(known[at]) for at in self.buckets]

    def carried(self, rows: Iterable[Row], number: str) -> list[float]:
        """The same for a table that omits rows without a change."""
        known = {row["bucket"]: float(row[number]) for row in rows}
        values, last = [], 0.0
        for at in self.buckets:
            last = known.get(at, last)
            values.append(last)
        return values


def left_out(rows: Sequence[Row], shown: int, table: str) -> str:
    """Says where to find the rows that a part of the page leaves out; empty if it shows all."""
    more = len(rows) - shown
    return f"<p class=range>{more} more in {table}.parquet.</p>" if more > 0 else ""
