"""When an active job counts as stalled."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import DAY_MS


class StallConfig(Struct, rename="camel", frozen=True, gc=False):
    """When active jobs of a queue count as stalled.  Times are in ms."""

    enabled: bool = True
    stall_interval: Annotated[float, Meta(ge=1, le=DAY_MS)] = 30_000  # silence that makes a job suspect
    max_stalls: Annotated[int, Meta(ge=1, le=1000)] = 3  # the last of these makes the job a dead letter
    grace_period: Annotated[float, Meta(ge=0, le=DAY_MS)] = 5_000  # after the start of an attempt


DEFAULT_STALLS = StallConfig()
