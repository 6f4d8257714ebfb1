"""Periods of time as moments: minutes, hours and days of a time zone.

A day is from midnight to midnight, so it has 23 or 25 hours when clocks change.  An hour that occurs twice on
such a day is two buckets, because it is two moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

UNITS = ("minute", "hour", "day")
_LENGTH = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
# The unit that shows a range well: minutes up to this length, hours up to that one.
_MINUTES_UP_TO = timedelta(hours=3)
_HOURS_UP_TO = timedelta(days=14)


def unit_for(since: datetime, until: datetime) -> str:
    """The unit that divides the range into some dozens to some hundreds of buckets."""
    if until - since <= _MINUTES_UP_TO:
        return "minute"
    return "hour" if until - since <= _HOURS_UP_TO else "day"


class Buckets(NamedTuple):
    """Divides time into buckets of one unit in one time zone."""

    unit: str
    zone: ZoneInfo

    def start(self, moment: datetime) -> datetime:
        """The start of the bucket that contains an aware moment; UTC."""
        local = moment.astimezone(self.zone)
        if self.unit == "day":
            return self._midnight(local)
        past = timedelta(seconds=local.second, microseconds=local.microsecond)
        if self.unit == "hour":
            past += timedelta(minutes=local.minute)
        return moment.astimezone(UTC) - past

    def next(self, start: datetime) -> datetime:
        """The start of the next bucket, which is the end of the one that begins at ``start``; UTC."""
        if self.unit != "day":
            return start.astimezone(UTC) + _LENGTH[self.unit]
        noon = start.astimezone(self.zone).replace(hour=12, fold=0)
        return self._midnight(noon + timedelta(days=1))

    def between(self, since: datetime, until: datetime) -> Iterator[datetime]:
        """The starts of all buckets that overlap the range from ``since`` to before ``until``."""
        start = self.start(since)
        while start < until:
            yield start
            start = self.next(start)

    def how_many(self, since: datetime, until: datetime) -> int:
        """The number of buckets that `between` returns."""
        if self.unit == "day":
            last = until.astimezone(UTC) - timedelta(microseconds=1)
            return (last.astimezone(self.zone).date() - since.astimezone(self.zone).date()).days + 1
        return -((self.start(since) - until.astimezone(UTC)) // _LENGTH[self.unit])

    def _midnight(self, local: datetime) -> datetime:
        """The first moment of a local day.  Where clocks move forward at midnight, that is one o'clock."""
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        return midnight.astimezone(UTC)
