"""Ranges of time in SQL: epoch ms as whole numbers, and the buckets that contain them.

The buckets are those of `bunqueue.analytics.buckets`, written out for the range, so no engine has to know
time zones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from zoneinfo import ZoneInfo

from bunqueue.analytics.buckets import Buckets


def ms_of(moment: datetime) -> int:
    """Epoch ms."""
    return round(moment.timestamp() * 1000)


def time_of(ms: int) -> datetime:
    """The moment; UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


class Range:
    """From ``since`` to before ``until`` (epoch ms), divided into ``unit`` of ``zone``.  Its methods return
    SQL, for moments within the range."""

    def __init__(self, since: int, until: int, unit: str, zone: ZoneInfo) -> None:
        self.since, self.until, self.unit, self.zone = since, until, unit, zone

    @property
    def buckets(self) -> Buckets:
        """The buckets, without the range."""
        return Buckets(self.unit, self.zone)

    @cached_property
    def starts(self) -> list[int]:
        """The starts of all buckets; epoch ms."""
        return [ms_of(at) for at in self.buckets.between(time_of(self.since), time_of(self.until))]

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """The first of buckets of equal length that follow each other, and that length.  Only days around
        changes of clocks have another one than the rest."""
        runs: list[tuple[int, int]] = []
        end = ms_of(self.buckets.next(time_of(self.starts[-1])))
        for start, following in pairwise([*self.starts, end]):
            if not runs or runs[-1][1] != following - start:
                runs.append((start, following - start))
        return runs

    def covers(self, ms: str) -> str:
        """Whether a moment is in the range."""
        return f"({ms} >= {self.since} and {ms} < {self.until})"

    def bucket(self, ms: str) -> str:
        """The start of the bucket that contains a moment; epoch ms."""
        return self._by_run(ms, lambda first, length: f"{ms} - ({ms} - {first}) % {length}")

    def end(self, bucket: str) -> str:
        """The end of the bucket that starts at a moment; epoch ms."""
        return self._by_run(bucket, lambda _, length: f"{bucket} + {length}")

    def seconds(self, bucket: str) -> str:
        """The seconds of the range that are in a bucket.  Without a bucket, those of the whole range."""
        inside = f"least({self.end(bucket)}, {self.until}) - greatest({bucket}, {self.since})"
        return f"((case when {bucket} is null then {self.until - self.since} else {inside} end) / 1000.0)"

    def _by_run(self, ms: str, sql: Callable[[int, int], str]) -> str:
        """An expression that depends on the run of buckets that contains a moment."""
        whens = "".join(f"when {ms} < {after[0]} then {sql(*run)} " for run, after in pairwise(self._runs))
        last = sql(*self._runs[-1])
        return f"(case {whens}else {last} end)" if whens else f"({last})"
