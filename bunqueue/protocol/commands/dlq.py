"""Dead letters: jobs that failed for good and wait for a person, or for another try."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.dead_letters import DlqConfig
from bunqueue.protocol.commands.base import (
    Command,
    JobId,
    Number,
    Offset,
    Ok,
    PageSize,
    QueueName,
    Reply,
    Route,
    Text,
    command,
)
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.commands.times import Time
from bunqueue.protocol.moments import MaybeMoment

Limit = Annotated[int, Meta(ge=0, le=100_000_000)]


class DlqFilter(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Which dead letters are meant: those to which all that is given applies. Other fields are refused: a
    misspelled one would mean more dead letters than somebody has asked for.

    ``name`` is that of the job, ``error`` a part of the error's text, in capitals or not; ``olderThan`` and
    ``newerThan`` compare ``enteredAt``; ``retriable`` are those whose automatic retry is due, ``expired``
    those which the next maintenance will remove.
    """

    reason: str | None = None
    name: Text | None = None
    error: Text | None = None
    older_than: Time | None = None
    newer_than: Time | None = None
    retriable: bool | None = None
    expired: bool | None = None
    limit: PageSize | None = None
    offset: Offset = 0


class DlqReply(Reply, kw_only=True):
    """The dead letters as ``jobs``, and in the same order as ``entries``: maps ``{job, enteredAt, reason,
    error, attempts, retryCount, lastRetryAt, nextRetryAt, expiresAt}``, where ``attempts`` is the history,
    ``[{attempt, startedAt, failedAt, reason, error, duration}]``.
    """

    jobs: Raw  # encoded by protocol.job_view
    entries: Raw


@command(Route.QUEUE, DlqReply, heavy=True)
class Dlq(Command, tag="Dlq"):
    """The dead letters of a queue, oldest first; at most ``count``."""

    queue: QueueName
    count: PageSize = 1000
    filter: DlqFilter | None = None


@command(Route.QUEUE, CountReply, heavy=True, since=3)
class CountDlq(Command, tag="CountDlq"):
    """How many dead letters of a queue a filter lets through; its ``limit`` and ``offset`` do not count."""

    queue: QueueName
    filter: DlqFilter | None = None


class RetriedReply(Reply, kw_only=True):
    """How many run again.  ``cancelled`` is there when cancelled jobs were left out, and says how many."""

    count: int
    cancelled: int | UnsetType = UNSET


@command(Route.QUEUE, RetriedReply, writes=True, repeatable=True, heavy=True)
class RetryDlq(Command, tag="RetryDlq"):
    """Move dead letters back to waiting with all their attempts: one job, or the oldest ``count`` of those
    that the filter lets through, without either all of the queue.

    Jobs that somebody cancelled are left out unless they are named: by ``jobId``, or with the filter's
    ``reason``.  So are those whose unique key a living job holds.
    """

    queue: QueueName
    job_id: JobId | None = None
    count: Limit | None = None
    filter: DlqFilter | None = None


@command(Route.QUEUE, CountReply, writes=True, repeatable=True, heavy=True)
class PurgeDlq(Command, tag="PurgeDlq"):
    """Remove all dead letters of a queue."""

    queue: QueueName


class Removed(Struct, gc=False):
    removed: bool


class RemovedReply(Reply, kw_only=True):
    data: Removed


@command(Route.QUEUE, RemovedReply, writes=True, repeatable=True, since=3)
class RemoveDlqJob(Command, tag="RemoveDlqJob"):
    """Remove one dead letter; ``removed`` is false when it is not there."""

    queue: QueueName
    job_id: JobId


@command(Route.QUEUE, CountReply, writes=True, repeatable=True, heavy=True)
class RetryCompleted(Command, tag="RetryCompleted"):
    """Run completed jobs again, their results forgotten: one job, or the oldest ``count`` of those that had
    completed by ``timestamp``, without either all of the queue."""

    queue: QueueName
    id: JobId | None = None
    count: Limit | None = None
    timestamp: Time | None = None


class DlqStats(Struct, rename="camel", gc=False):
    """``pendingRetry`` counts those whose automatic retry is due, ``expired`` those past ``maxAge``."""

    total: int
    by_reason: dict[str, int]
    by_queue: dict[str, int]
    pending_retry: int
    expired: int
    oldest_entry_ms: float | None = msgspec.field(name="oldestEntry")
    newest_entry_ms: float | None = msgspec.field(name="newestEntry")

    oldest_entry = MaybeMoment("oldest_entry_ms")
    newest_entry = MaybeMoment("newest_entry_ms")


class DlqStatsOf(Struct, gc=False):
    stats: DlqStats


class DlqStatsReply(Reply, kw_only=True):
    data: DlqStatsOf


@command(Route.QUEUE, DlqStatsReply, heavy=True, since=3)
class GetDlqStats(Command, tag="GetDlqStats"):
    """The dead letters of a queue in numbers."""

    queue: QueueName


class DlqSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What of a queue's DlqConfig to change; numbers may be given as text, ``maxAge`` null means for ever."""

    auto_retry: bool | UnsetType = UNSET
    auto_retry_interval: Number | UnsetType = UNSET
    max_auto_retries: Number | UnsetType = UNSET
    max_age: Number | UnsetType | None = UNSET
    max_entries: Number | UnsetType = UNSET


@command(Route.QUEUE, Ok, writes=True, repeatable=True, since=3)
class SetDlqConfig(Command, tag="SetDlqConfig"):
    """Change how the dead letters of a queue are kept and retried; what is not given stays as it is.

    With ``autoRetry``, jobs that die from now on are tried again every ``autoRetryInterval`` ms, at most
    ``maxAutoRetries`` times.  Maintenance runs once a minute.
    """

    queue: QueueName
    config: DlqSettings


class DlqConfigReply(Reply, kw_only=True):
    config: DlqConfig


@command(Route.QUEUE, DlqConfigReply, since=3)
class GetDlqConfig(Command, tag="GetDlqConfig"):
    """How the dead letters of a queue are kept and retried."""

    queue: QueueName
