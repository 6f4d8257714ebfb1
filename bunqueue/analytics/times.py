"""Ranges of time in SQL: epoch ms as whole numbers, and the buckets that contain them.

The buckets are those of `bunqueue.analytics.buckets`.  Their arithmetic is written out for the changes of
clocks within the range, so no engine has to know time zones."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from zoneinfo import ZoneInfo

from bunqueue.analytics.buckets import Buckets

LENGTH = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}  # ms; of a day, where clocks do not change
_EPOCH = datetime(1970, 1, 1).toordinal()


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

    def covers(self, ms: str) -> str:
        """Whether a moment is in the range."""
        return f"({ms} >= {self.since} and {ms} < {self.until})"

    def bucket(self, ms: str) -> str:
        """The start of the bucket that contains a moment; epoch ms."""
        if self.unit == "day":
            return self._midnight(self._day(ms))
        length = LENGTH[self.unit]
        shift = _steps(ms, _merged((at, offset % length) for at, offset in self._offsets))
        return f"({ms} - ({ms} + {shift}) % {length})"

    def end(self, bucket: str) -> str:
        """The end of the bucket that starts at a moment; epoch ms."""
        if self.unit == "day":
            return self._midnight(f"({self._day(bucket)} + 1)")
        return f"({bucket} + {LENGTH[self.unit]})"

    def seconds(self, bucket: str) -> str:
        """The seconds of the range that are in a bucket.  Without a bucket, those of the whole range."""
        inside = f"least({self.end(bucket)}, {self.until}) - greatest({bucket}, {self.since})"
        return f"((case when {bucket} is null then {self.until - self.since} else {inside} end) / 1000.0)"

    def _day(self, ms: str) -> str:
        """The number of the local day of a moment."""
        return f"cast(floor(({ms} + {_steps(ms, self._offsets)}) / {LENGTH['day']}) as bigint)"

    def _midnight(self, day: str) -> str:
        """The first moment of a local day, given by its number; epoch ms."""
        return f"({day} * {LENGTH['day']} - {_steps(day, self._midnights)})"

    @cached_property
    def _offsets(self) -> list[tuple[int, int]]:
        """From which moment on local time differs from UTC, and by how much; ms."""
        day = LENGTH["day"]
        first, last = self.since - 2 * day, self.until + 2 * day
        found = [(first, self._offset(first))]
        for before, after in pairwise([*range(first, last, day), last]):
            if self._offset(before) != self._offset(after):
                found.append((self._change(before, after), self._offset(after)))
        return found

    def _offset(self, ms: int) -> int:
        offset = time_of(ms).astimezone(self.zone).utcoffset() or timedelta()
        return round(offset.total_seconds() * 1000)

    def _change(self, before: int, after: int) -> int:
        """The first moment at which clocks are as at ``after``."""
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == self._offset(after):
                after = middle
            else:
                before = middle
        return after

    @cached_property
    def _midnights(self) -> list[tuple[int, int]]:
        """From which day on its first moment differs from that of UTC, and by how much; ms."""
        days = Buckets("day", self.zone)
        until = days.next(days.next(time_of(self.until)))
        starts = days.between(time_of(self.since) - timedelta(days=1), until)
        numbered = ((at, at.astimezone(self.zone).date().toordinal() - _EPOCH) for at in starts)
        return _merged((number, number * LENGTH["day"] - ms_of(at)) for at, number in numbered)


def _merged(steps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without steps that change nothing."""
    found: list[tuple[int, int]] = []
    for at, value in steps:
        if not found or found[-1][1] != value:
            found.append((at, value))
    return found


def _steps(value: str, steps: list[tuple[int, int]]) -> str:
    """A number that changes at some values."""
    if len(steps) == 1:
        return str(steps[0][1])
    whens = " ".join(f"when {value} < {after[0]} then {before[1]}" for before, after in pairwise(steps))
    return f"(case {whens} else {steps[-1][1]} end)"
