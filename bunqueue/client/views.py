"""What queries other than those for jobs and counts give. Times are ms since the epoch, spans ms."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from bunqueue.client.jobs import Job, read_result
from bunqueue.errors import JobCancelled, JobExpired, JobFailed, JobNotFound
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.events import Ended

R = TypeVar("R")

_CANCELLED = "Cancelled: "


class JobOutcome(Struct, Generic[R], frozen=True):
    """How a job has ended."""

    state: str
    """completed, failed, cancelled, expired (its `ttl` was over), or unknown: it is not there any more."""
    result: R | None = None
    """What the handler gave back, of a completed job."""
    error: str | None = None
    """The text of its last error, of one that failed or was cancelled."""
    reason: str | None = None
    """Why it is a dead letter: max_attempts_exceeded, timeout, stalled, or unknown when it was discarded."""
    attempts: int = 0
    """How many attempts have failed."""


def outcome(ended: Ended, result_type: Any) -> JobOutcome[Any]:
    """The end of a job for its users. Raises ResultError."""
    result = None
    if isinstance(ended.result, Raw):
        result = read_result(ended.result, result_type, ended.id)
    return JobOutcome(ended.state, result, ended.error, ended.reason, ended.attempts)


def no_result(outcome: JobOutcome[Any], queue: str, job_id: str) -> Exception:
    """Why a job that has ended has no result."""
    what = f"job {job_id} in queue {queue!r}"
    if outcome.state == "failed":
        often = "attempt" if outcome.attempts == 1 else "attempts"
        how = f"failed after {outcome.attempts} {often}" if outcome.attempts else "was discarded"
        why = f": {outcome.error}" if outcome.error else ""
        return JobFailed(
            f"{what} {how}{why} ({outcome.reason}); JobHandle.retry() gives it all its attempts again",
            error=outcome.error,
            reason=outcome.reason,
            attempts=outcome.attempts,
            queue=queue,
            job_id=job_id,
        )
    if outcome.state == "cancelled":
        said = outcome.error or ""
        reason = said.removeprefix(_CANCELLED) if said.startswith(_CANCELLED) else None
        why = f": {reason}" if reason else "; whoever did so gave no reason"
        return JobCancelled(f"{what} was cancelled{why}", reason=reason, queue=queue, job_id=job_id)
    if outcome.state == "expired":
        text = f"{what} was dropped, as nobody took it within its ttl; a longer ttl, or more workers"
        return JobExpired(text, queue=queue, job_id=job_id)
    text = f"{what} is not there: it was removed, perhaps on completion, or never added to this server"
    return JobNotFound(text, reason="Job not found", queue=queue, job_id=job_id)


class FailedAttempt(Struct, rename="camel", frozen=True):
    """An attempt that did not complete its job."""

    attempt: int
    """1, 2, ..."""
    failed_at: float
    started_at: float | None = None
    duration: float | None = None
    reason: str | None = None
    """explicit_fail (the handler raised), timeout, stalled, ..."""
    error: str | None = None


class DeadLetter(Struct, rename="camel", frozen=True):
    """A job that failed for good, and how it came to that."""

    job: Job
    entered_at: float
    reason: str
    """As in `JobOutcome`."""
    error: str | None = None
    attempts: list[FailedAttempt] = msgspec.field(default_factory=list)
    retry_count: int = 0
    """How often it was retried by itself."""
    last_retry_at: float | None = None
    next_retry_at: float | None = None
    expires_at: float | None = None
    """When it will be removed; None: it is kept."""


class DeadLetters(Reply, kw_only=True):
    """The reply of Dlq."""

    entries: list[DeadLetter]
