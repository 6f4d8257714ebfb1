"""The kinds of records that clients set, and how many of each a shard keeps: see `memory.kept`."""

from __future__ import annotations

from collections.abc import Mapping

from .handlers import queues
from .lifecycle import breakers
from .memory import timetable
from .memory.kept import Bound
from .ready import queue_limits

KEPT: Mapping[str, Bound] = {
    breakers.RECORD: Bound(20_000, "circuit breakers", by_queue=False),
    queue_limits.GROUP_RECORD: Bound(100_000, "groups with settings", by_queue=False),
    queue_limits.DEFAULTS_RECORD: Bound(50_000, "queues with limits for their groups"),
    queue_limits.RECORD: Bound(50_000, "queues with a rate limit or a concurrency"),
    queues.PAUSE: Bound(50_000, "paused queues"),
    timetable.KIND: Bound(100_000, "schedules", by_queue=False),
    "dlq": Bound(50_000, "queues with settings of dead letters"),
    "bounds": Bound(50_000, "queues with bounds"),
    "stall": Bound(50_000, "queues with settings of stalled jobs"),
    "functions": Bound(50_000, "queues with declared functions"),
    "signal_types": Bound(50_000, "queues with types of signals"),
}
