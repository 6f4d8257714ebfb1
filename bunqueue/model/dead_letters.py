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

CANCELLED = "cancelled"  # stopped while it ran, as somebody asked for that
EXPIRED = "expired"  # dropped, as its ttl was over before anybody took it
INTERRUPTED = "interrupted"  # the outcome of an attempt that counts for nothing

_YEARS_MS = 10 * YEAR_MS

Interval = Annotated[float, Meta(ge=0, le=_YEARS_MS)]


class DlqConfig(Struct, rename="camel", frozen=True, gc=False):
    """How a queue keeps its dead letters and tries them again.  Times in ms."""

    auto_retry: bool = False
    auto_retry_interval: Interval = 3_600_000
    max_auto_retries: Annotated[int, Meta(ge=0, le=1000)] = 3
    max_age: Interval | None = 7 * DAY_MS  # since the job died; None: kept for ever
    max_entries: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000  # beyond, the oldest goes


class AutoRetries(Struct, array_like=True, gc=False):
    """How often a job was taken out of the dead letters by itself, when last, and when next."""

    count: int = 0
    last_at: int | None = None
    next_at: int | None = None
