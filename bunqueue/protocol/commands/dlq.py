"""Dead letters: jobs that failed for good and are kept for inspection or another try."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.dead_letters import DlqConfig
from bunqueue.model.marks import DEAD_LETTERS, JOB, JOBS, Mark
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    ContentText,
    Data,
    JobId,
    Number,
    Offset,
    OfQueue,
    Ok,
    PageSize,
    QueueOf,
    Removed,
    Reply,
    Route,
    Tag,
    Text,
    command,
    http,
)
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.commands.times import Time
from bunqueue.protocol.moments import MaybeMoment

Limit = Annotated[int, Meta(ge=0, le=100_000_000)]


ErrorGroupId = Annotated[
    str, Meta(pattern="^([0-9a-f]{12}|other)$", description="the id of a group of errors")
]
DlqCursor = Annotated[str, Meta(pattern=r"^([0-9]{1,16}-[0-9]{1,16})?$", max_length=33)]


class DlqFilter(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Selects the dead letters that match every given field.  Unknown fields are refused, because a
    misspelled one would select more than intended.

    ``reason`` is a reason or a cause; ``name`` is the job's name; ``error`` is a part of the error text, in
    upper or lower case; ``errorType`` is the class of the error, with or without its module; ``errorGroup``
    is the id of a group of ListErrors; ``olderThan`` and ``newerThan`` compare ``enteredAt``; ``retriable``
    selects those whose automatic retry is due, ``expired`` those that the next maintenance will remove.  A
    ``cursor`` selects only those after the last one of another page; "" begins with the first page.
    """

    reason: str | None = None
    name: Text | None = None
    error: Annotated[Text, Mark.CONTENT] | None = None
    error_type: Text | None = None
    error_group: ErrorGroupId | None = None
    older_than: Time | None = None
    newer_than: Time | None = None
    retriable: bool | None = None
    expired: bool | None = None
    limit: PageSize | None = None
    offset: Offset = 0
    cursor: DlqCursor | None = None


class Dropped(Struct, rename="camel", gc=False):
    """The dead letters of a queue that were dropped automatically since its last PurgeDlq: ``tooMany``
    because the queue had more than ``maxEntries``, ``tooOld`` because they were older than ``maxAge``.  The
    times of the first and the last one are in epoch ms."""

    too_many: int = 0
    too_old: int = 0
    first_at_ms: float | None = msgspec.field(default=None, name="firstAt")
    last_at_ms: float | None = msgspec.field(default=None, name="lastAt")

    first_at = MaybeMoment("first_at_ms")
    last_at = MaybeMoment("last_at_ms")

    @property
    def count(self) -> int:
        """The total number of dropped dead letters."""
        return self.too_many + self.too_old


class PastAttempt(Struct, rename="camel", gc=False):
    """One attempt of a dead letter.  Times in ms."""

    attempt: int
    started_at: float
    failed_at: float
    reason: str
    error: ContentText | None
    duration: float
    error_type: str | None
    delay: float | None  # until the next attempt


class DeadLetterView(Struct, rename="camel", gc=False):
    """A dead letter, as an entry."""

    job: Annotated[Raw, JOB]
    entered_at: float
    reason: str
    error: ContentText | None
    attempts: list[PastAttempt]
    retry_count: int
    last_retry_at: float | None
    next_retry_at: float | None
    expires_at: float | None
    cause: str


class DlqReply(Reply, kw_only=True):
    """The dead letters as ``jobs``, and in the same order as ``entries``: maps ``{job, enteredAt, reason,
    error, attempts, retryCount, lastRetryAt, nextRetryAt, expiresAt, cause}``, where ``attempts`` is
    the history, ``[{attempt, startedAt, failedAt, reason, error, duration}]``.  ``cause`` is more
    precise than ``reason``: max_attempts, unrecoverable, never_on, retry_on (the job's ``retryOn`` does
    not name the error), timeout, stalled, child_failed, discarded, cancelled, stuck or undone.
    ``dropped``, if present, says how many others were dropped.
    """

    jobs: Annotated[Raw, JOBS]  # encoded by protocol.job_view
    entries: Annotated[Raw, DEAD_LETTERS]
    more: bool | UnsetType = UNSET  # this and the cursor are as in the reply to GetJobs
    cursor: str | UnsetType = UNSET
    dropped: Dropped | UnsetType = UNSET


@http("GET /queues/{queue}/dlq", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.SEE | Verb.READ, heavy=True)
class Dlq(OfQueue[DlqReply], tag="Dlq"):
    """List the dead letters of a queue, oldest first, at most ``count``."""

    count: PageSize = 1000
    filter: DlqFilter | None = None


@http("GET /queues/{queue}/dlq/count", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.SEE, heavy=True, since=3)
class CountDlq(OfQueue[CountReply], tag="CountDlq"):
    """Count the dead letters of a queue that match a filter; its ``limit`` and ``offset`` are ignored."""

    filter: DlqFilter | None = None


class RetriedReply(Reply, kw_only=True):
    """``count`` jobs were moved.  ``cancelled``, if present, is the number of cancelled jobs that were left
    out.  ``dropped``, if present, says how many could not be moved because they had been dropped before; only
    if the command selected all dead letters of the queue."""

    count: int
    cancelled: int | UnsetType = UNSET
    dropped: Dropped | UnsetType = UNSET


@http("POST /queues/{queue}/dlq/retry", Tag.DEAD_LETTERS)
@http("POST /queues/{queue}/dlq/{jobId}/retry", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True, heavy=True)
class RetryDlq(OfQueue[RetriedReply], tag="RetryDlq"):
    """Move dead letters back to waiting with all their attempts: one job, the oldest ``count`` that match the
    filter, or all of the queue.

    Cancelled jobs are left out unless they are selected by ``jobId`` or by the filter's ``reason``.  Jobs
    whose unique key is held by an unfinished job are left out as well.
    """

    job_id: JobId | None = None
    count: Limit | None = None
    filter: DlqFilter | None = None


@http("DELETE /queues/{queue}/dlq", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.DESTROY, writes=True, repeatable=True, heavy=True)
class PurgeDlq(OfQueue[CountReply], tag="PurgeDlq"):
    """Remove all dead letters of a queue, and reset the counts of dropped ones; with a ``filter``, only those
    that match."""

    filter: DlqFilter | None = None


@http("DELETE /queues/{queue}/dlq/{jobId}", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.DESTROY, writes=True, repeatable=True, since=3)
class RemoveDlqJob(OfQueue[Data[Removed]], tag="RemoveDlqJob"):
    """Remove one dead letter; ``removed`` is false if it does not exist."""

    job_id: JobId


@http("POST /queues/{queue}/retry-completed", Tag.QUEUES)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True, heavy=True)
class RetryCompleted(OfQueue[CountReply], tag="RetryCompleted"):
    """Run completed jobs again and discard their results: one job, the oldest ``count`` that had completed by
    ``timestamp``, or all of the queue."""

    id: JobId | None = None
    count: Limit | None = None
    timestamp: Time | None = None


class DlqStats(Struct, rename="camel", gc=False):
    """``byCause`` counts as in ``cause`` of DlqReply.  ``pendingRetry`` counts those whose automatic retry is
    due, ``expired`` those past ``maxAge``; ``dropped`` says how many were dropped."""

    total: int
    by_reason: dict[str, int]
    by_queue: dict[QueueOf, int]
    pending_retry: int
    expired: int
    oldest_entry_ms: float | None = msgspec.field(name="oldestEntry")
    newest_entry_ms: float | None = msgspec.field(name="newestEntry")
    dropped: Dropped = msgspec.field(default_factory=Dropped)
    by_cause: dict[str, int] = {}

    oldest_entry = MaybeMoment("oldest_entry_ms")
    newest_entry = MaybeMoment("newest_entry_ms")


class DlqStatsOf(Struct, gc=False):
    stats: DlqStats


@http("GET /queues/{queue}/dlq/stats", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.SEE, heavy=True, since=3)
class GetDlqStats(OfQueue[Data[DlqStatsOf]], tag="GetDlqStats"):
    """Get statistics on the dead letters of a queue."""


class DlqSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The changes to a queue's DlqConfig.  Numbers may be given as text.  ``maxAge`` null means forever.
    ``maxEntries`` null means the server's setting, 0 means any number."""

    auto_retry: bool | UnsetType = UNSET
    auto_retry_interval: Number | UnsetType = UNSET
    max_auto_retries: Number | UnsetType = UNSET
    max_age: Number | UnsetType | None = UNSET
    max_entries: Number | UnsetType | None = UNSET


@http("PUT /queues/{queue}/dlq/config", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True, since=3)
class SetDlqConfig(OfQueue[Ok], tag="SetDlqConfig"):
    """Change how the dead letters of a queue are kept and retried; absent fields keep their values.

    With ``autoRetry``, jobs that fail for good from now on are retried every ``autoRetryInterval`` ms, at
    most ``maxAutoRetries`` times.  Maintenance runs once a minute.
    """

    config: DlqSettings


class DlqConfigReply(Reply, kw_only=True):
    """The effective configuration: what was set for the queue, and the server's settings for the rest.
    ``dropped`` says how many dead letters were dropped because of it."""

    config: DlqConfig
    dropped: Dropped = msgspec.field(default_factory=Dropped)


@http("GET /queues/{queue}/dlq/config", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.SEE, since=3)
class GetDlqConfig(OfQueue[DlqConfigReply], tag="GetDlqConfig"):
    """Get how the dead letters of a queue are kept and retried."""
