"""The limits for the groups of a queue."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import YEAR_MS

MAX_WEIGHT = 1000

Most = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]


class GroupDefaults(Struct, rename="camel", frozen=True, gc=False):
    """The limits for groups without limits of their own: at most ``concurrency`` active jobs, and at most
    ``max`` starts within ``duration`` ms, counted from the first of them.  None: no limit."""

    concurrency: Most | None = None
    max: Most | None = None
    duration: Annotated[int, Meta(ge=1, le=YEAR_MS)] = 1000


NO_DEFAULTS = GroupDefaults()
