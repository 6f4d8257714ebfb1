"""Logs schedules that were due while the server was down."""

from __future__ import annotations

from datetime import UTC, datetime

from bunqueue.logs import get_logger

from .engine.memory.timetable import Timetable

MAX_LINES = 20  # in one tick: thousands of schedules may have missed a run, and the metric counts them all

_log = get_logger("shard")


def log_all(timetable: Timetable) -> None:
    """Log a line for each schedule, up to MAX_LINES, and clear the list."""
    missed, timetable.missed = timetable.missed, []
    for each in missed[:MAX_LINES]:
        first = datetime.fromtimestamp(each.first / 1000, UTC).isoformat(timespec="milliseconds")
        _log.warning(
            "a schedule missed runs while the server was down",
            schedule=each.name,
            queue=each.queue,
            missed=each.times,
            first=first,
            made_up=each.made_up,
        )
    if len(missed) > MAX_LINES:
        more = missed[MAX_LINES:]
        _log.warning(
            "more schedules missed runs while the server was down",
            schedules=len(more),
            missed=sum(each.times for each in more),
        )
