"""Dead letters: why a job became one, and how a queue keeps them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import DAY_MS, YEAR_MS

# Reasons of attempts and dead letters
EXPLICIT_FAIL = "explicit_fail"
MAX_ATTEMPTS = "max_attempts_exceeded"
TIMEOUT = "timeout"
STALLED = "stalled"
UNKNOWN = "unknown"  # discarded, not failed
REASONS = (EXPLICIT_FAIL, MAX_ATTEMPTS, TIMEOUT, STALLED, "ttl_expired", "worker_lost", UNKNOWN)

CANCELLED = "cancelled"  # stopped on request while it ran
EXPIRED = "expired"  # dropped because its ttl ran out before a worker took it
QUEUE_FULL = "queue_full"  # dropped because newer jobs needed the space
INTERRUPTED = "interrupted"  # the outcome of an attempt that does not count
COMPLETED_OUTCOME = "completed"  # of an attempt that completed its job
TIMEOUT_TYPES = ("bunqueue.errors.JobTimeout", "TimeoutError")  # what a run that took too long counts as

_YEARS_MS = 10 * YEAR_MS

Interval = Annotated[float, Meta(ge=0, le=_YEARS_MS)]


class DlqConfig(Struct, rename="camel", frozen=True, gc=False):
    """How a queue keeps and retries its dead letters.  Times are in ms."""

    auto_retry: bool = False
    auto_retry_interval: Interval = 3_600_000
    max_auto_retries: Annotated[int, Meta(ge=0, le=1000)] = 3
    max_age: Interval | None = 7 * DAY_MS  # since the job died; None: kept forever
    max_entries: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000  # beyond, the oldest is removed


class AutoRetries(Struct, array_like=True, gc=False):
    """How often a dead letter was retried automatically, when last, and when next."""

    count: int = 0
    last_at: int | None = None
    next_at: int | None = None
