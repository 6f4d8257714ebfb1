"""Dead letters: why a job became a dead letter, and how a queue keeps them."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from bunqueue.model.durations import DAY_MS, YEAR_MS

# Reasons of attempts and dead letters
EXPLICIT_FAIL = "explicit_fail"
MAX_ATTEMPTS = "max_attempts_exceeded"
TIMEOUT = "timeout"
STALLED = "stalled"
UNKNOWN = "unknown"  # discarded, not failed
REASONS = (EXPLICIT_FAIL, MAX_ATTEMPTS, TIMEOUT, STALLED, "ttl_expired", "worker_lost", UNKNOWN)

# Stored instead of MAX_ATTEMPTS when attempts were left; `reason` on the wire does not tell them apart
UNRECOVERABLE = "unrecoverable"  # the handler said that no other attempt helps
NEVER_ON = "never_on"  # the job's never_on names the error
RETRY_ON = "retry_on"  # the job's retry_on does not name the error

CANCELLED = "cancelled"  # stopped on request while it ran
EXPIRED = "expired"  # dropped because its ttl ran out before a worker took it
QUEUE_FULL = "queue_full"  # dropped because newer jobs needed the space
MAX_ENTRIES, MAX_AGE = "max_entries", "max_age"  # why a dead letter was dropped automatically
KEEP_FAILED = "keep_failed"  # the same, because of the job's own option
INTERRUPTED = "interrupted"  # the outcome of an attempt that does not count
COMPLETED_OUTCOME = "completed"  # the outcome of an attempt that completed its job
TIMEOUT_TYPES = ("bunqueue.errors.JobTimeout", "TimeoutError")  # error types of a run that took too long

_YEARS_MS = 10 * YEAR_MS

Interval = Annotated[float, Meta(ge=0, le=_YEARS_MS)]
MaxRetries = Annotated[int, Meta(ge=0, le=1000)]
MaxEntries = Annotated[int, Meta(ge=0, le=1_000_000_000)]


_CAUSES = {MAX_ATTEMPTS: "max_attempts", EXPLICIT_FAIL: "child_failed", UNKNOWN: "discarded"}
CAUSES = (
    "max_attempts",
    UNRECOVERABLE,
    NEVER_ON,
    RETRY_ON,
    TIMEOUT,
    STALLED,
    "child_failed",
    "discarded",
    CANCELLED,
    "stuck",
    "undone",
)
"""Why a job is a dead letter: one value a cause."""


def reason_of(stored: str) -> str:
    """The `reason` of a dead letter on the wire, which older clients know."""
    return MAX_ATTEMPTS if stored in (UNRECOVERABLE, NEVER_ON, RETRY_ON) else stored


def cause_of(stored: str) -> str:
    """Its `cause`, one of CAUSES."""
    return _CAUSES.get(stored, stored)


def is_meant(asked: str, stored: str) -> bool:
    """Whether a reason or a cause that somebody asks for is that of a dead letter."""
    return asked in (stored, reason_of(stored), cause_of(stored))


class DlqConfig(Struct, rename="camel", frozen=True, gc=False):
    """How a queue keeps and retries its dead letters.  Times are in ms."""

    auto_retry: bool = False
    auto_retry_interval: Interval = 3_600_000
    max_auto_retries: MaxRetries = 3
    max_age: Interval | None = 7 * DAY_MS  # since the job died; None: kept forever
    max_entries: MaxEntries = 10_000  # above this, the oldest is removed; 0: no limit


class OwnDlqConfig(Struct, rename="camel", frozen=True, gc=False, omit_defaults=True):
    """The settings of a queue; for those that are not set, the server's settings apply."""

    auto_retry: bool = False
    auto_retry_interval: Interval = 3_600_000
    max_auto_retries: MaxRetries = 3
    max_age: Interval | UnsetType | None = UNSET  # None: kept forever
    max_entries: MaxEntries | None = None

    def over(self, server: DlqConfig) -> DlqConfig:
        """The effective configuration of the queue."""
        return DlqConfig(
            self.auto_retry,
            self.auto_retry_interval,
            self.max_auto_retries,
            server.max_age if self.max_age is UNSET else self.max_age,
            server.max_entries if self.max_entries is None else self.max_entries,
        )


class AutoRetries(Struct, array_like=True, gc=False):
    """The automatic retries of a dead letter: how many, and the times of the last and the next one."""

    count: int = 0
    last_at: int | None = None
    next_at: int | None = None
