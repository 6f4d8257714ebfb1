"""Made by scripts/unasync.py from client/queue/dead_letters.py; do not edit."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from msgspec import UNSET, UnsetType

from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.connection.options import Duration, unknown_option
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import Job
from bunqueue.client.models.views import DeadLetter, DeadLetters, RetriedCount
from bunqueue.client.options import checks
from bunqueue.client.options.checks import given, given_span
from bunqueue.client.options.moments import PastMoment, past_moment
from bunqueue.model.dead_letters import CANCELLED, REASONS, DlqConfig
from bunqueue.protocol.commands import Ok, dlq, query
from bunqueue.protocol.commands.dlq import DlqStats


class DlqFilter(TypedDict, total=False):
    """Which dead letters are meant: those to which all that is given applies."""

    reason: str | None
    """max_attempts_exceeded (also of those that raised Unrecoverable before), timeout, stalled, cancelled, or
    unknown when somebody discarded it."""
    name: str | None
    """Those of jobs with this name."""
    error: str | None
    """Those whose error contains this text, in capitals or not."""
    older_than: PastMoment | None
    """Those that failed before this moment: a datetime with a time zone, a timedelta for so long ago, or ms
    since the epoch."""
    newer_than: PastMoment | None
    """Those that failed after this moment, given in the same way."""
    retriable: bool | None
    """Those whose automatic retry is due."""
    expired: bool | None
    """Those that the next maintenance will remove."""


class Dlq(QueueBase):
    """The part of a queue that is about its dead letters."""

    def dlq(self, count: int = 1000) -> list[Job]:
        """The jobs that failed for good, oldest first; at most `count`, which is at most 10,000."""
        command = checks.checked(dlq.Dlq(queue=self.name, count=count))
        reply = self._caller.call(command, replies.ManyJobs)
        return reply.jobs

    def dlq_entries(
        self, *, limit: int = 100, offset: int = 0, **which: Unpack[DlqFilter]
    ) -> list[DeadLetter]:
        """Dead letters with their attempts, oldest first; see `DlqFilter` for which."""
        wanted = checks.checked(dlq.DlqFilter(**_filter(which), limit=limit, offset=offset))
        command = dlq.Dlq(queue=self.name, count=limit, filter=wanted)
        reply = self._caller.call(command, DeadLetters)
        return reply.entries

    def count_dlq(self, **which: Unpack[DlqFilter]) -> int:
        """How many dead letters there are, or those that `DlqFilter` describes."""
        wanted = checks.checked(dlq.DlqFilter(**_filter(which))) if which else None
        reply = self._caller.call(dlq.CountDlq(queue=self.name, filter=wanted), query.CountReply)
        return reply.count

    def retry_dlq(
        self, job_id: str | None = None, *, count: int | None = None, **which: Unpack[DlqFilter]
    ) -> RetriedCount:
        """Give dead letters all their attempts again: one of them, or the oldest `count` of those that
        `DlqFilter` describes, or all of the queue. Returns how many. Jobs that somebody cancelled are left
        out, and counted in `cancelled` of what is returned, unless you name them: by `job_id`, or with
        `reason="cancelled"`."""
        wanted = checks.checked(dlq.DlqFilter(**_filter(which))) if which else None
        command = checks.checked(dlq.RetryDlq(queue=self.name, job_id=job_id, count=count, filter=wanted))
        reply = self._caller.call(command, dlq.RetriedReply)
        retried = RetriedCount(reply.count)
        retried.cancelled = reply.cancelled or 0
        return retried

    def purge_dlq(self) -> int:
        """Remove all dead letters; how many that were."""
        reply = self._caller.call(dlq.PurgeDlq(queue=self.name), query.CountReply)
        return reply.count

    def remove_dlq_job(self, job_id: str) -> bool:
        """Remove one dead letter; False when it is none of this queue."""
        command = checks.checked(dlq.RemoveDlqJob(queue=self.name, job_id=job_id))
        reply = self._caller.call(command, dlq.RemovedReply)
        return reply.data.removed

    def dlq_stats(self) -> DlqStats:
        """The dead letters in numbers."""
        reply = self._caller.call(dlq.GetDlqStats(queue=self.name), dlq.DlqStatsReply)
        return reply.data.stats

    def dlq_config(self) -> DlqConfig:
        """How dead letters are kept, and retried by themselves."""
        reply = self._caller.call(dlq.GetDlqConfig(queue=self.name), dlq.DlqConfigReply)
        return reply.config

    def set_dlq_config(
        self,
        *,
        auto_retry: bool | None = None,
        auto_retry_interval: Duration | None = None,
        max_auto_retries: int | None = None,
        max_age: Duration | UnsetType | None = UNSET,
        max_entries: int | None = None,
    ) -> None:
        """Change how dead letters are kept; what is not given stays as it is.

        With `auto_retry`, jobs that die from now on are tried again every `auto_retry_interval`, at most
        `max_auto_retries` times. Those older than `max_age` (None: never), and the oldest of more than
        `max_entries`, are removed once a minute.
        """
        settings = dlq.DlqSettings(
            auto_retry=given(auto_retry),
            auto_retry_interval=given_span(auto_retry_interval, "auto_retry_interval"),
            max_auto_retries=given(max_auto_retries),
            max_age=None if max_age is None else given_span(max_age, "max_age"),
            max_entries=given(max_entries),
        )
        checks.settings(DlqConfig, settings)
        self._caller.call(dlq.SetDlqConfig(queue=self.name, config=settings), Ok)


def _filter(which: DlqFilter) -> dict[str, Any]:
    """As the protocol has it. OptionError."""
    for name in which:
        if name not in DlqFilter.__annotations__:
            raise unknown_option("a choice of dead letters", name, DlqFilter.__annotations__)
    if (reason := which.get("reason")) is not None:
        checks.one_of("reason", reason, (*REASONS, CANCELLED))
    return {
        name: past_moment(value, name) if name in ("older_than", "newer_than") else value  # type: ignore[arg-type]
        for name, value in which.items()
        if value is not None
    }
