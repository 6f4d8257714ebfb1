"""What queries other than those for jobs and counts give. Moments are datetimes in UTC, and as `..._ms` epoch
ms; spans are ms."""

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
    failed_at_ms: float = msgspec.field(name="failedAt")
    started_at_ms: float | None = msgspec.field(default=None, name="startedAt")
    duration: float | None = None
    reason: str | None = None
    """explicit_fail (the handler raised), timeout, stalled, ..."""
    error: str | None = None
    error_type: str | None = None
    """The class of the error, as `httpx.ConnectTimeout`."""
    delay: float | None = None
    """How many ms after it the next attempt was to begin; None: there was to be none."""

    failed_at = Moment("failed_at_ms")
    started_at = MaybeMoment("started_at_ms")


class DeadLetter(Struct, rename="camel", frozen=True):
    """A job that failed for good, and how it came to that."""

    job: Job
    entered_at_ms: float = msgspec.field(name="enteredAt")
    reason: str
    """As in `JobOutcome`."""
    error: str | None = None
    attempts: list[FailedAttempt] = msgspec.field(default_factory=list)
    retry_count: int = 0
    """How often it was retried by itself."""
    last_retry_at_ms: float | None = msgspec.field(default=None, name="lastRetryAt")
    next_retry_at_ms: float | None = msgspec.field(default=None, name="nextRetryAt")
    expires_at_ms: float | None = msgspec.field(default=None, name="expiresAt")
    """When it will be removed; None: it is kept."""

    entered_at = Moment("entered_at_ms")
    last_retry_at = MaybeMoment("last_retry_at_ms")
    next_retry_at = MaybeMoment("next_retry_at_ms")
    expires_at = MaybeMoment("expires_at_ms")


class DeadLetters(Reply, kw_only=True):
    """The reply of Dlq. ``more``: there is no room for others that were asked for; ``cursor`` leads to
    them."""

    entries: list[DeadLetter]
    more: bool = False
    cursor: str | None = None


class RetriedCount(int):
    """How many dead letters run again."""

    cancelled: int = 0
    """How many were left out, as somebody had cancelled them."""
    dropped: int = 0
    """How many could not be retried, as they had been dropped: the queue had more than `max_entries`, or they
    were older than `max_age`."""


class TakenJob(Struct, frozen=True):
    """A job that was taken with `pull`."""

    job: Job
    lock_token: str | None
    """What reports on the job need; None: it is not locked."""


class ServerInfo(Struct, frozen=True):
    """A server that has answered."""

    version: str
    time_ms: float
    """Its clock, when it answered."""

    time = Moment("time_ms")


class EventPage(Reply, kw_only=True):
    """A page of the event log."""

    events: list[dict[str, Any]]
    """Events as on the wire, with `shard` and `seq`, their number in the shard's log. Those of a shard are in
    the order in which they happened, one shard after the other. They have no `data`."""
    places: list[LogPlace]
    """How far the log of each shard has been read."""

    @property
    def after(self) -> list[int]:
        """Where the next page begins: a number for each shard."""
        return [place.after for place in sorted(self.places, key=lambda place: place.shard)]

    @property
    def last(self) -> bool:
        """Whether there was nothing more to read."""
        return all(place.after >= place.last for place in self.places)

    @property
    def missed(self) -> int:
        """How many of the events asked for had been removed from the log before."""
        return sum(place.missed for place in self.places)
