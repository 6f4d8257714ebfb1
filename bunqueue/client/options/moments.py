"""Moments, and spans until or since them, as users give them. docs/client.md#times says where which one is
accepted.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from bunqueue.client import engine_override
from bunqueue.client.connection.options import Duration, milliseconds, refused

When = Duration | datetime
"""A duration, or the moment when it ends or began: a datetime with a time zone."""
PastMoment = datetime | timedelta | str | float
"""A datetime with a time zone, a timedelta or a text such as "5m" (so long ago), or ms since the epoch."""


def now_ms() -> float:
    """Epoch ms; in a sandbox, by its clock."""
    sandbox = engine_override.current
    return time.time() * 1000 if sandbox is None else sandbox.now_ms


def elapsed_ms() -> float:
    """The ms since some moment, by a clock that nobody sets; in a sandbox, by its clock."""
    sandbox = engine_override.current
    return time.monotonic() * 1000 if sandbox is None else sandbox.now_ms


def epoch_ms(moment: datetime, name: str) -> float:
    """A moment in ms since the epoch. Raises OptionError, beginning with `name`, if it has no time zone."""
    if moment.utcoffset() is None:
        raise refused(
            name,
            moment,
            "has no time zone; if it is local time give its .astimezone(), if it is UTC its "
            ".replace(tzinfo=UTC)",
        )
    return moment.timestamp() * 1000


def time_left(value: When, name: str) -> float:
    """The ms of a span, or until a moment; 0 for a moment that has passed. Raises OptionError."""
    if isinstance(value, datetime):
        return max(0.0, epoch_ms(value, name) - now_ms())
    return milliseconds(value, name)


def age(value: When, name: str) -> float:
    """The ms of a span, or since a moment; 0 for a moment in the future. Raises OptionError."""
    if isinstance(value, datetime):
        return max(0.0, now_ms() - epoch_ms(value, name))
    return milliseconds(value, name)


def past_moment(value: PastMoment, name: str) -> float:
    """ms since the epoch. Raises OptionError."""
    if isinstance(value, datetime):
        return epoch_ms(value, name)
    if isinstance(value, timedelta | str):
        return now_ms() - milliseconds(value, name)
    return milliseconds(value, name)
