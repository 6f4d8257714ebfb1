"""Dead letters: jobs that failed for good and wait for a person."""

from __future__ import annotations

from bunqueue.protocol.commands.base import Command, JobId, PageSize, QueueName, Route, command
from bunqueue.protocol.commands.query import CountReply, JobsReply


@command(Route.QUEUE, JobsReply, heavy=True)
class Dlq(Command, tag="Dlq"):
    """The dead letters of a queue, oldest first; at most ``count``."""

    queue: QueueName
    count: PageSize = 1000


@command(Route.QUEUE, CountReply, writes=True, repeatable=True, heavy=True)
class RetryDlq(Command, tag="RetryDlq"):
    """Move dead letters back to waiting with all their attempts: one job, or all of the queue."""

    queue: QueueName
    job_id: JobId | None = None
