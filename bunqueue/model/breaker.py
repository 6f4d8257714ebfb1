"""Circuit breakers: when a queue, or its jobs of one name, are paused because they fail, and for how long.

While a breaker is closed, jobs run.  After too many failures it opens, and no job runs for a while.  Then it
is half open: a few jobs run as a trial.  If all of them complete, it closes; if one fails, it opens again,
for longer.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import DAY_MS

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half-open"

MAX_FAILURES, MAX_TRIALS, MAX_ERRORS = 10_000, 1000, 64
Pause = Annotated[float, Meta(ge=1, le=7 * DAY_MS)]
Errors = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=MAX_ERRORS)
]


class BreakerConfig(Struct, rename="camel", frozen=True, gc=False):
    """When a breaker opens, and for how long.  Times are in ms."""

    failures: Annotated[int, Meta(ge=1, le=MAX_FAILURES)] = 5  # in a row
    rate: Annotated[float, Meta(gt=0, le=1)] | None = None  # or this fraction of the attempts in a window
    window: Annotated[float, Meta(ge=1, le=DAY_MS)] = 60_000  # for the rate
    pause: Pause = 30_000  # until the next trial; doubled after each failed trial
    max_pause: Pause = 600_000  # upper limit of the pause
    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] = 1  # jobs that run as a trial
    errors: Errors = ()  # classes of errors that count; empty: all
