"""Dead letters: jobs that failed for good."""

from __future__ import annotations

from bunqueue.client import jobs as replies
from bunqueue.client.jobs import Job
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.protocol.commands import dlq, query


class AsyncDeadLetters(AsyncQueueBase):
    """The part of a queue that is about its dead letters."""

    async def dlq(self, count: int = 1000) -> list[Job]:
        """The jobs that failed for good, oldest first; at most `count`."""
        reply = await self._caller.call(dlq.Dlq(queue=self.name, count=count), replies.ManyJobs)
        return reply.jobs

    async def retry_dlq(self, job_id: str | None = None) -> int:
        """Give dead letters all their attempts again: one of them, or all. How many that were."""
        command = dlq.RetryDlq(queue=self.name, job_id=job_id)
        reply = await self._caller.call(command, query.CountReply)
        return reply.count
