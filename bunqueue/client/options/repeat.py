"""Jobs that are added again when they have completed: from the user's options to the wire format."""

from __future__ import annotations

from datetime import datetime

from bunqueue.client.connection.options import Duration, milliseconds, refused, unfit
from bunqueue.client.options import checks
from bunqueue.client.options.cron_expression import check_expression
from bunqueue.client.options.moments import epoch_ms
from bunqueue.client.options.types import Repeat
from bunqueue.protocol.commands import times
from bunqueue.protocol.commands.base import MAX_SAFE

_NAMES = {"start_date": "startDate", "end_date": "endDate"}
_SHOWN = ("every", "limit")  # shown even if they are unset


def repeat_map(value: Duration | Repeat, name: str) -> dict[str, object]:
    """The fields to send. Raises OptionError."""
    repeat = value if isinstance(value, Repeat) else Repeat(value)
    if (repeat.every is None) == (repeat.pattern is None):
        raise unfit(name, "give either every, or pattern, a cron expression")
    if repeat.pattern is not None:
        check_expression(repeat.pattern, repeat.tz, name, field="pattern", zone="tz")
    elif repeat.tz is not None:
        raise unfit(f"{name}: tz", "it goes with pattern; every knows no time zone")
    fields: dict[str, object] = {
        "every": None if repeat.every is None else milliseconds(repeat.every, name),
        "limit": repeat.limit,
        "pattern": repeat.pattern,
        "tz": repeat.tz,
        "start_date": _epoch_ms(repeat.start, f"{name}: start"),
        "end_date": _epoch_ms(repeat.end, f"{name}: end"),
    }
    checks.nested(times.Repeat, fields, name)
    return {
        _NAMES.get(field, field): each
        for field, each in fields.items()
        if each is not None or field in _SHOWN
    }


def _epoch_ms(value: datetime | float | None, name: str) -> float | None:
    if value is None or isinstance(value, datetime):
        return None if value is None else epoch_ms(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SAFE:
        raise refused(name, value, "is no moment; give a datetime with a time zone, or epoch ms")
    return value
