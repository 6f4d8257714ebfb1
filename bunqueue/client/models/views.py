"""What other queries return. Moments are datetimes in UTC, and epoch ms in the `..._ms` fields; durations are
ms.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from bunqueue.client.models.jobs import Job, read_result
from bunqueue.errors import JobCancelled, JobExpired, JobFailed, JobNotFound
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.events import Ended, LogPlace
from bunqueue.protocol.moments import MaybeMoment, Moment

R = TypeVar("R")

_CANCELLED = "Cancelled: "


class JobOutcome(Struct, Generic[R], frozen=True):
    """How a job ended."""

    state: str
    """completed, failed, cancelled, expired (its `ttl` was over), or unknown: it no longer exists."""
    result: R | None = None
    """The handler's result, if it completed."""
    error: str | None = None
    """The text of its last error, if it failed or was cancelled."""
    reason: str | None = None
    """Why it is a dead letter: max_attempts_exceeded, timeout, stalled, or unknown if it was discarded."""
    attempts: int = 0
    """The number of failed attempts."""
    cause: str | None = None
    """The same more precisely, for a job that failed: max_attempts, unrecoverable, never_on, retry_on (its
    `retry_on` does not name the error), timeout, stalled, child_failed, discarded, stuck or undone.
    """


def outcome(ended: Ended, result_type: Any) -> JobOutcome[Any]:
    """The end of a job, with its result converted. Raises ResultError."""
    result = None
    if isinstance(ended.result, Raw):
        result = read_result(ended.result, result_type, ended.id)
    return JobOutcome(ended.state, result, ended.error, ended.reason, ended.attempts, ended.cause)


def no_result(outcome: JobOutcome[Any], queue: str, job_id: str) -> Exception:
    """Why a job that has ended has no result."""
    what = f"job {job_id} in queue {queue!r}"
    if outcome.state == "failed":
        often = "attempt" if outcome.attempts == 1 else "attempts"
        how = f"failed after {outcome.attempts} {often}" if outcome.attempts else "was discarded"
        why = f": {outcome.error}" if outcome.error else ""
        cause = (outcome.cause if outcome.attempts else None) or outcome.reason
        return JobFailed(
            f"{what} {how}{why} ({cause}); JobHandle.retry() gives it all its attempts again",
            error=outcome.error,
            reason=outcome.reason,
            cause=outcome.cause,
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
    failed_at_ms: float = msgspec.field(name="failedAt")
    started_at_ms: float | None = msgspec.field(default=None, name="startedAt")
    duration: float | None = None
    reason: str | None = None
    """explicit_fail (the handler raised), timeout, stalled, ..."""
    error: str | None = None
    error_type: str | None = None
    """The class of the error, for example `httpx.ConnectTimeout`."""
    delay: float | None = None
    """The ms until the next attempt; None: there was no next attempt."""

    failed_at = Moment("failed_at_ms")
    started_at = MaybeMoment("started_at_ms")


class DeadLetter(Struct, rename="camel", frozen=True):
    """A job that failed for good, and how that happened."""

    job: Job
    entered_at_ms: float = msgspec.field(name="enteredAt")
    reason: str
    """As in `JobOutcome`."""
    error: str | None = None
    attempts: list[FailedAttempt] = msgspec.field(default_factory=list)
    retry_count: int = 0
    """The number of automatic retries."""
    last_retry_at_ms: float | None = msgspec.field(default=None, name="lastRetryAt")
    next_retry_at_ms: float | None = msgspec.field(default=None, name="nextRetryAt")
    expires_at_ms: float | None = msgspec.field(default=None, name="expiresAt")
    """When it will be removed; None: it is kept."""
    cause: str | None = None
    """As in `JobOutcome`."""

    entered_at = Moment("entered_at_ms")
    last_retry_at = MaybeMoment("last_retry_at_ms")
    next_retry_at = MaybeMoment("next_retry_at_ms")
    expires_at = MaybeMoment("expires_at_ms")


class DeadLetters(Reply, kw_only=True):
    """The reply to Dlq. ``more``: others that were asked for did not fit; ``cursor`` leads to them."""

    entries: list[DeadLetter]
    more: bool = False
    cursor: str | None = None


class RetriedCount(int):
    """The number of dead letters that run again."""

    cancelled: int = 0
    """The number left out because they had been cancelled."""
    dropped: int = 0
    """The number that could not be retried because they had been dropped: the queue had more than
    `max_entries`, or they were older than `max_age`.
    """


class TakenJob(Struct, frozen=True):
    """A job that was taken with `pull`."""

    job: Job
    lock_token: str | None
    """Reports on the job need this token; None: the job is not locked."""


class ServerInfo(Struct, frozen=True):
    """A server that has answered."""

    version: str
    time_ms: float
    """Its clock at the time of the answer."""

    time = Moment("time_ms")


class EventPage(Reply, kw_only=True):
    """A page of the event log."""

    events: list[dict[str, Any]]
    """Events in wire form, with `shard` and `seq`, their number in the shard's log. They come shard by shard;
    those of a shard are in the order in which they happened. They have no `data`.
    """
    places: list[LogPlace]
    """How far the log of each shard has been read."""

    @property
    def after(self) -> list[int]:
        """Where the next page begins: a number for each shard."""
        return [place.after for place in sorted(self.places, key=lambda place: place.shard)]

    @property
    def last(self) -> bool:
        """Whether there is nothing more to read."""
        return all(place.after >= place.last for place in self.places)

    @property
    def missed(self) -> int:
        """How many of the requested events had already been removed from the log."""
        return sum(place.missed for place in self.places)
