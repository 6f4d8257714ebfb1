"""Circuit breakers: when a queue, or its jobs of one name, rest because they fail, and for how long.

Closed, jobs run.  After too many failures it opens, and nothing runs for a while.  Then it is half open: a
few jobs are let through to try.  If all of them complete it closes; if one fails it opens again, for longer.
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
    rate: Annotated[float, Meta(gt=0, le=1)] | None = None  # or this part of the attempts of a window
    window: Annotated[float, Meta(ge=1, le=DAY_MS)] = 60_000  # over which the rate is taken
    pause: Pause = 30_000  # until it is tried again; doubled each time that this fails
    max_pause: Pause = 600_000  # at most
    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] = 1  # jobs let through to try
    errors: Errors = ()  # classes of errors that count; none: all
