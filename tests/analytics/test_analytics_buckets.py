"""Minutes, hours and days of time zones, also when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from bunqueue.analytics.buckets import UNITS, Buckets, unit_for

ROME = ZoneInfo("Europe/Rome")


@pytest.mark.parametrize(("day", "hours"), [("2026-03-28", 24), ("2026-03-29", 23), ("2026-10-25", 25)])
def test_days_are_as_long_as_they_are(day: str, hours: int) -> None:
    buckets = Buckets("day", ROME)
    begin = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ROME).astimezone(UTC)
    for minutes in (0, 90, 60 * hours - 1):
        assert buckets.start(begin + timedelta(minutes=minutes)) == begin
    assert buckets.next(begin) - begin == timedelta(hours=hours)
    assert buckets.start(buckets.next(begin)) == buckets.next(begin)


def test_the_hour_that_passes_twice_is_two_buckets() -> None:
    since = datetime(2026, 10, 24, 22, tzinfo=UTC)  # midnight in Rome
    hours = list(Buckets("hour", ROME).between(since, since + timedelta(hours=25)))
    assert len(hours) == 25
    assert [hour.astimezone(ROME).hour for hour in hours[:5]] == [0, 1, 2, 2, 3]


def test_a_day_that_has_no_midnight_begins_at_one() -> None:
    cairo = ZoneInfo("Africa/Cairo")
    noon = datetime(2026, 4, 24, 12, tzinfo=cairo)  # clocks went forward at midnight
    begin = Buckets("day", cairo).start(noon)
    assert begin.astimezone(cairo).hour == 1
    assert Buckets("day", cairo).start(begin) == begin
    assert Buckets("day", cairo).next(begin) - begin == timedelta(hours=23)


def test_hours_of_a_zone_between_hours() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    begin = Buckets("hour", kolkata).start(datetime(2026, 11, 21, 12, 45, tzinfo=UTC))
    assert begin == datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Rome", "Africa/Cairo", "Asia/Kolkata"])
@pytest.mark.parametrize("since", ["2026-03-28T23:00", "2026-04-23T22:10:07", "2026-10-24T21:59:59.999"])
@pytest.mark.parametrize("length", [0.001, 60, 3600, 86_399, 86_400, 200_000])
def test_how_many_there_are(unit: str, zone: str, since: str, length: float) -> None:
    buckets, begin = Buckets(unit, ZoneInfo(zone)), datetime.fromisoformat(since).replace(tzinfo=UTC)
    for first in (begin, begin.astimezone(ROME)):
        until = first.astimezone(UTC) + timedelta(seconds=length)
        assert buckets.how_many(first, until) == len(list(buckets.between(first, until)))


@pytest.mark.parametrize(
    ("hours", "unit"), [(3, "minute"), (4, "hour"), (14 * 24, "hour"), (14 * 24 + 1, "day")]
)
def test_the_unit_of_a_range(hours: int, unit: str) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert unit_for(since, since + timedelta(hours=hours)) == unit
