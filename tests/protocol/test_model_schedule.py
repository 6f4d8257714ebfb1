"""When schedules run: expressions, time zones, and both changes of daylight-saving time."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bunqueue.model.schedule import ALIASES, ScheduleError, next_run, next_tick

MINUTE = 60


def ms(text: str, zone: str = "UTC") -> int:
    """Epoch ms of a local time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def runs(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next runs after a local time, as local times with their offsets."""
    at, found = ms(after, zone), []
    for _ in range(count):
        following = next_run(expression, zone, at)
        assert following > at
        at = following
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).strftime("%d %H:%M %z"))
    return found


# Expressions


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/5 * * * *", "2026-03-04T05:10"),
        ("30 3 * * *", "2026-03-05T03:30"),
        ("0 9 * * mon-fri", "2026-03-04T09:00"),
        ("0 9 * * 0", "2026-03-08T09:00"),
        ("0 9 * * 7", "2026-03-08T09:00"),
        ("0 0 1 JAN *", "2027-01-01T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 0 13 * fri", "2026-03-06T00:00"),  # day of month or day of week, as in crontab(5)
        ("10 */6 * * *", "2026-03-04T06:10"),
        ("1,2 5-6 * * *", "2026-03-04T06:01"),
        ("  0   0 * * *  ", "2026-03-05T00:00"),
        ("30 * * * * *", "2026-03-04T05:06:30"),  # six fields: seconds first
        ("*/10 * * * * *", "2026-03-04T05:06:10"),
        ("0 0 0 1 1 *", "2027-01-01T00:00"),
        ("@hourly", "2026-03-04T06:00"),
        ("@daily", "2026-03-05T00:00"),
        ("@midnight", "2026-03-05T00:00"),
        ("@WEEKLY", "2026-03-08T00:00"),
        ("@monthly", "2026-04-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("@annually", "2027-01-01T00:00"),
    ],
)
def test_expressions(expression: str, expected: str) -> None:
    assert next_run(expression, None, ms("2026-03-04T05:06:07")) == ms(expected)


def test_a_run_lies_after_the_given_time_to_the_millisecond() -> None:
    noon = ms("2026-03-04T12:00")
    assert next_run("0 12 * * *", None, noon - 1) == noon
    assert next_run("0 12 * * *", None, noon) == noon + 86_400_000
    assert next_run("0 12 * * *", None, noon + 999) == noon + 86_400_000


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "bad",
        "* * * *",
        "* * * * * * *",
        "61 * * * *",
        "* 25 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a b c d e",
        "-1 * * * *",
        "*/0 * * * *",
        "1.5 * * * *",
        "0 0 31 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 30 2 *",
        "@reboot",
        "@every 5m",
        "r * * * *",  # croniter would take these for a random and a hashed time
        "h(1-5)/2 * * * *",
        "R/5 * * * *",
        "٣ * * * *",
        "9" * 1000 + " * * * *",
    ],
)
def test_expressions_that_say_nothing_are_refused(expression: str) -> None:
    with pytest.raises(ScheduleError):
        next_run(expression, None, ms("2026-03-04T05:06"))


@given(st.text("0123456789*/,-#?lwrhLW@monjan. ", max_size=30))
def test_any_text_gives_a_later_time_or_a_schedule_error(text: str) -> None:
    now = ms("2026-03-04T05:06")
    with suppress(ScheduleError):
        assert next_run(text, "Europe/Rome", now) > now


@pytest.mark.parametrize(
    "zone", ["Nope/Zone", "Europe", "../etc/passwd", "/etc/localtime", "a" * 300, "\0", "ü"]
)
def test_unknown_time_zones_are_refused(zone: str) -> None:
    with pytest.raises(ScheduleError, match="time zone"):
        next_run("* * * * *", zone, 0)


def test_without_a_time_zone_it_is_utc() -> None:
    for zone in (None, "", "UTC"):
        assert next_run("0 12 * * *", zone, ms("2026-07-01T00:00")) == ms("2026-07-01T12:00")
    assert next_run("0 12 * * *", "Europe/Rome", ms("2026-07-01T00:00")) == ms("2026-07-01T10:00")


# Intervals


@given(st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**7))
def test_intervals_keep_their_grid(every: int, last: int, late: int) -> None:
    following = next_tick(every, last, last + late)
    assert (following - last) % every == 0
    assert last + late < following <= last + late + every


# Daylight-saving time, as docs/cron.md says it


def test_a_skipped_time_runs_at_the_moment_of_the_jump() -> None:
    assert runs("30 2 * * *", "Europe/Rome", "2026-03-28T00:00", 3) == [
        "28 02:30 +0100",
        "29 03:00 +0200",
        "30 02:30 +0200",
    ]
    assert runs("30 2 * * *", "America/New_York", "2026-03-07T00:00", 3) == [
        "07 02:30 -0500",
        "08 03:00 -0400",
        "09 02:30 -0400",
    ]


def test_several_skipped_times_run_once() -> None:
    assert runs("0,20,40 2,3 * * *", "Europe/Rome", "2026-03-29T00:00", 4) == [
        "29 03:00 +0200",
        "29 03:20 +0200",
        "29 03:40 +0200",
        "30 02:00 +0200",
    ]


def test_a_repeated_time_runs_the_first_time_only() -> None:
    assert runs("30 2 * * *", "Europe/Rome", "2026-10-24T03:00", 3) == [
        "25 02:30 +0200",
        "26 02:30 +0100",
        "27 02:30 +0100",
    ]
    assert runs("30 1 * * *", "America/New_York", "2026-10-31T03:00", 3) == [
        "01 01:30 -0400",
        "02 01:30 -0500",
        "03 01:30 -0500",
    ]


def test_a_rule_for_every_hour_leaves_skipped_times_out_and_runs_in_repeated_ones_twice() -> None:
    assert runs("30 * * * *", "Europe/Rome", "2026-03-29T00:00", 4) == [
        "29 00:30 +0100",
        "29 01:30 +0100",
        "29 03:30 +0200",
        "29 04:30 +0200",
    ]
    assert runs("30 * * * *", "Europe/Rome", "2026-10-25T01:00", 4) == [
        "25 01:30 +0200",
        "25 02:30 +0200",
        "25 02:30 +0100",
        "25 03:30 +0100",
    ]
    assert runs("0 0/5 * * * *", "America/New_York", "2026-11-01T01:50", 3) == [
        "01 01:55 -0400",
        "01 01:00 -0500",
        "01 01:05 -0500",
    ]


def test_a_time_that_is_asked_for_within_the_repeated_hour() -> None:
    second_pass = ms("2026-10-25T00:30") + 3_600_000  # 02:30 +0100
    assert next_run("45 2 * * *", "Europe/Rome", second_pass) == ms("2026-10-26T01:45")
    assert next_run("45 * * * *", "Europe/Rome", second_pass) == second_pass + 15 * 60_000


def test_changes_that_are_not_at_night_nor_of_an_hour() -> None:
    # Cairo skips the hour after midnight, Lord Howe half an hour, Samoa left out a whole day.
    assert runs("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", 2) == ["24 01:00 +0300", "25 00:00 +0300"]
    assert runs("15 2 * * *", "Australia/Lord_Howe", "2026-10-04T00:00", 2) == [
        "04 02:30 +1100",
        "05 02:15 +1100",
    ]
    assert runs("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00", 3) == [
        "29 12:00 -1000",
        "31 00:00 +1400",
        "31 12:00 +1400",
    ]


ZONES = (
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",  # two hours
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Europe/Rome",
)


def offset(zone: ZoneInfo, instant: int) -> int:
    found = datetime.fromtimestamp(instant, zone).utcoffset()
    assert found is not None
    return int(found.total_seconds())


def changes(name: str) -> list[int]:
    """Days at whose end a zone has another offset than at their beginning."""
    zone, day = ZoneInfo(name), 86_400
    first = int(datetime(2015, 1, 1, tzinfo=UTC).timestamp())
    days = range(first, first + 12 * 366 * day, day)
    return [at for at in days if offset(zone, at) != offset(zone, at + day)] or [first]


CHANGES = {name: changes(name) for name in ZONES}


class NaiveField:
    """One field of an expression: a star, a step, or numbers."""

    def __init__(self, text: str, low: int, high: int) -> None:
        every = range(low, high + 1)
        if text.startswith("*"):
            self.values = set(every[:: int(text[2:] or "1")] if text != "*" else every)
        else:
            self.values = {int(part) for part in text.split(",")}


class NaiveRule:
    """The rules of docs/cron.md, minute by minute."""

    def __init__(self, minute: str, hour: str, weekday: str) -> None:
        self.text = f"{minute} {hour} * * {weekday}"
        self.names_hours = not hour.startswith("*")
        self.minutes = NaiveField(minute, 0, 59).values
        self.hours = NaiveField(hour, 0, 23).values
        self.weekdays = NaiveField(weekday, 0, 6).values

    def fits(self, wall: datetime) -> bool:
        weekday = (wall.weekday() + 1) % 7
        return wall.minute in self.minutes and wall.hour in self.hours and weekday in self.weekdays

    def runs_at(self, zone: ZoneInfo, instant: int) -> bool:
        local = datetime.fromtimestamp(instant, zone)
        if not self.names_hours:
            return self.fits(local)
        skipped = offset(zone, instant) - offset(zone, instant - MINUTE)
        if any(self.fits(local - timedelta(seconds=back)) for back in range(MINUTE, skipped + 1, MINUTE)):
            return True
        return self.fits(local) and not local.fold

    def next_run(self, zone: ZoneInfo, after: int, days: int) -> int | None:
        first = (after // MINUTE + 1) * MINUTE
        minutes = range(first, first + days * 86_400, MINUTE)
        return next((instant for instant in minutes if self.runs_at(zone, instant)), None)


def lists(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(st.integers(low, high), min_size=1, max_size=4).map(lambda some: ",".join(map(str, some)))


MINUTES = st.one_of(st.just("*"), st.sampled_from(["*/7", "*/15", "*/30"]), lists(0, 59))
HOURS = st.one_of(st.just("*"), st.sampled_from(["*/2", "*/5"]), lists(0, 4), lists(0, 23))
WEEKDAYS = st.one_of(st.just("*"), lists(0, 6))


@given(st.data(), st.sampled_from(ZONES), st.builds(NaiveRule, MINUTES, HOURS, WEEKDAYS))
def test_it_runs_as_the_rules_say_minute_by_minute(data: st.DataObject, name: str, rule: NaiveRule) -> None:
    start = data.draw(st.sampled_from(CHANGES[name])) + data.draw(st.integers(-86_400, 2 * 86_400))
    zone = ZoneInfo(name)
    expected = rule.next_run(zone, start, days=2)
    found = next_run(rule.text, name, start * 1000)
    if expected is None:
        assert found > (start + 2 * 86_400 - MINUTE) * 1000
    else:
        assert found == expected * 1000


def test_aliases_are_expressions() -> None:
    for text in ALIASES.values():
        assert len(text.split()) == 5


@pytest.mark.parametrize("zone", [None, "Europe/Rome"])
@pytest.mark.parametrize("after_ms", [253_402_300_799_000, 10**15])
def test_the_calendar_ends_with_the_year_9999(zone: str | None, after_ms: int) -> None:
    with pytest.raises(ScheduleError, match=r"out of range|no such date"):
        next_run("* * * * *", zone, after_ms)
