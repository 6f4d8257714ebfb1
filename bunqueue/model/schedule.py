"""When a schedule runs: cron expressions in time zones with daylight-saving time.  docs/cron.md explains the
rules.

Pure: the same arguments always give the same result.  `croniter` finds matching times on a wall clock without
a time zone; this module decides how a change of the offset affects them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from croniter import croniter

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
DEFAULT_ZONE = "UTC"

_FIELD = re.compile(r"[0-9a-z*/,\-#?]+", re.ASCII)
_BY_CHANCE = re.compile(r"[hr](\W|$)", re.ASCII)  # croniter's hashed and random fields
_EPOCH = datetime(1970, 1, 1)  # wall clocks are datetimes without a time zone
_SECOND = timedelta(seconds=1)
_PROBE = 5 * 86_400  # seconds; since 1970, a zone's changes are always at least a week apart


class ScheduleError(ValueError):
    """An invalid cron expression or time zone, or one that never runs."""


class UnknownZone(ScheduleError):
    """A time zone that this machine does not know."""


def next_run(expression: str, timezone: str | None, after_ms: int) -> int:
    """The first run time of the schedule after ``after_ms``; both in epoch ms.

    ScheduleError if it never runs again, the expression is malformed, or the time zone is unknown.
    """
    return _next_run(expression, timezone or DEFAULT_ZONE, after_ms // 1000) * 1000


def next_tick(every: int, last: int, after_ms: int) -> int:
    """The first of ``last + every``, ``last + 2 * every`` ... that is after ``after_ms``; epoch ms."""
    return last + every * max(1, (after_ms - last) // every + 1)


def times_between(
    expression: str | None, every: int | None, timezone: str | None, first: int, until: int, *, at_most: int
) -> int:
    """How many run times of a schedule are in ``[first, until)``, in epoch ms.  ``first`` must be a run time.

    Run times of a cron expression are found one by one, so at most ``at_most`` are counted.
    """
    if not expression:
        return 1 + max(0, until - 1 - first) // every if every else 1
    count, at = 1, first
    with suppress(ScheduleError):
        while count < at_most and (at := next_run(expression, timezone, at)) < until:
            count += 1
    return count


@lru_cache(maxsize=4096)  # thousands of schedules with equal times are due in the same second
def _next_run(expression: str, timezone: str, after: int) -> int:
    rule, zone = _Rule(_fields(expression)), _zone(timezone)
    try:
        return _first(rule, zone, after)
    except ScheduleError:
        raise
    except (OverflowError, ValueError, OSError):  # from `datetime`, which ends with the year 9999
        raise ScheduleError("the time is out of range") from None


def _fields(expression: str) -> list[str]:
    """The five or six fields of an expression."""
    text = expression.strip().lower()
    fields = ALIASES.get(text, text).split()
    if len(fields) not in (5, 6):
        raise ScheduleError("an expression has 5 fields, or 6 with leading seconds")
    for field in fields:
        if not _FIELD.fullmatch(field) or _BY_CHANCE.match(field):
            raise ScheduleError(f"{field!r} is not a field of a cron expression")
    return fields


@lru_cache(maxsize=256)
def _zone(timezone: str) -> ZoneInfo:
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise UnknownZone(f"unknown time zone {timezone!r}, use an IANA name such as Europe/Rome") from None


class _Rule:
    """A cron expression on a wall clock without a time zone."""

    __slots__ = ("_rule", "names_hours")

    def __init__(self, fields: list[str]) -> None:
        try:
            self._rule = croniter(
                " ".join(fields), 0.0, ret_type=datetime, second_at_beginning=len(fields) == 6
            )
        except Exception as error:  # anything that croniter fails on is not a valid expression
            raise ScheduleError(str(error) or "the expression is malformed") from None
        self.names_hours = not fields[-4].startswith("*")

    def following(self, wall: datetime) -> datetime:
        """The first match after ``wall``."""
        try:
            found: datetime = self._rule.get_next(start_time=wall)
        except Exception:
            raise ScheduleError("there is no such date") from None
        return found


def _first(rule: _Rule, zone: ZoneInfo, after: int) -> int:
    """The first run after ``after``; epoch seconds.

    This proceeds from one change of the offset to the next: in between, wall clock and time advance equally.
    """
    offset = _offset(zone, after)
    wall = _wall(after, offset)
    if rule.names_hours and (repeated := _repeated(zone, after)):
        wall = max(wall, repeated)
    while True:
        candidate = rule.following(wall)
        at = _instant(candidate, offset)
        change = _change(zone, after, at)
        if change is None:
            return at
        before, offset = offset, _offset(zone, change)
        after = change
        if not rule.names_hours:
            wall = _wall(change, offset) - _SECOND
        elif candidate < _wall(change, offset):  # it is a time that was skipped
            return change
        else:  # repeated times have already had their run
            wall = max(_wall(change, before), _wall(change, offset)) - _SECOND


def _repeated(zone: ZoneInfo, instant: int) -> datetime | None:
    """The last repeated second, if ``instant`` is in the second pass of a repeated hour; None if it is
    not."""
    local = datetime.fromtimestamp(instant, zone)
    if not local.fold:
        return None
    before = int((local.replace(fold=0).utcoffset() or timedelta()).total_seconds())
    change = _change(zone, instant - (before - _offset(zone, instant)), instant)
    return _wall(change, before) - _SECOND if change is not None else None


def _offset(zone: ZoneInfo, instant: int) -> int:
    """The offset from UTC in seconds."""
    offset = datetime.fromtimestamp(instant, zone).utcoffset() or timedelta()
    return int(offset.total_seconds())


def _wall(instant: int, offset: int) -> datetime:
    return _EPOCH + timedelta(seconds=instant + offset)


def _instant(wall: datetime, offset: int) -> int:
    return int((wall - _EPOCH).total_seconds()) - offset


def _change(zone: ZoneInfo, after: int, until: int) -> int | None:
    """The first second in ``(after, until]`` whose offset differs from that of ``after``."""
    if zone.key == DEFAULT_ZONE:
        return None
    offset, low = _offset(zone, after), after
    while low < until:
        high = min(low + _PROBE, until)
        if _offset(zone, high) == offset:
            low = high
            continue
        while high - low > 1:
            middle = (low + high) // 2
            if _offset(zone, middle) == offset:
                low = middle
            else:
                high = middle
        return high
    return None
