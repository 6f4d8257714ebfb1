"""Cron expressions, checked before anything is sent."""

from __future__ import annotations

import time

from bunqueue.client.connection.options import refused, shown
from bunqueue.errors import OptionError


def check_expression(
    expression: str, timezone: str | None, where: str = "", *, field: str = "schedule", zone: str = "timezone"
) -> None:
    """Raise OptionError, naming `field` or `zone`, if an expression never matches in that zone."""
    from bunqueue.model.schedule import (  # importing croniter is slow
        ScheduleError,
        UnknownZone,
        next_run,
    )

    before = f"{where}: " if where else ""
    for name, value in ((field, expression), (zone, timezone or "")):
        if not isinstance(value, str):
            raise refused(f"{before}{name}", value, "is not allowed; give a text")
    try:
        next_run(expression, timezone, time.time_ns() // 1_000_000)
    except ScheduleError as error:
        text = f"{before}{field}: {shown(expression)}: {error}"
        if isinstance(error, UnknownZone):
            raise OptionError(text, field=f"{before}{zone}", value=timezone) from None
        raise OptionError(text, field=f"{before}{field}", value=expression) from None
