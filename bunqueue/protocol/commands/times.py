"""Points in time, cron expressions, and the repetition of a job."""

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import YEAR_MS
from bunqueue.protocol.commands.base import MAX_SAFE, Text

Expression = Annotated[str, Meta(max_length=1024, description="5 or 6 fields, or @hourly, @daily, ...")]
Time = Annotated[float, Meta(ge=0, le=1e15, description="epoch ms")]
Times = Annotated[int, Meta(ge=0, le=MAX_SAFE)]  # how many times


class Repeat(Struct, rename="camel", gc=False):
    """Push the job again after its completion: ``every`` ms later, or at the next time of the cron expression
    ``pattern`` in the time zone ``tz``; at most ``limit`` times, and only between ``startDate`` and
    ``endDate`` (epoch ms).
    """

    every: (
        Annotated[
            float,
            Meta(
                ge=1,
                le=YEAR_MS,
                extra={"problem": "must be a positive number of milliseconds, at most a year"},
            ),
        ]
        | None
    ) = None
    limit: Times | None = None
    count: Times = 0
    pattern: Expression | None = None
    tz: Text | None = None
    start_date: Time | None = None
    end_date: Time | None = None
