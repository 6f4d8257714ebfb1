"""Unique keys: who holds one, and giving one up before its time."""

from __future__ import annotations

from bunqueue.client.options import checks
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.protocol.commands import dedup


class AsyncUniqueKeys(AsyncQueueBase):
    """The part of a queue that is about the keys of its jobs."""

    async def get_unique_job_id(self, unique_key: str) -> str | None:
        """The id of the job that holds a `unique_key`; None when it is free."""
        command = dedup.GetDeduplicationJobId(queue=self.name, deduplication_id=unique_key)
        checks.checked(command, deduplication_id="unique_key")
        reply = await self._caller.call(command, dedup.HolderReply)
        return reply.data.job_id

    async def remove_unique_key(self, unique_key: str) -> bool:
        """Free a `unique_key`, so that another job may have it; False when nobody held it. The job that did
        stays."""
        command = dedup.RemoveDeduplicationKey(queue=self.name, deduplication_id=unique_key)
        checks.checked(command, deduplication_id="unique_key")
        reply = await self._caller.call(command, dedup.FreedReply)
        return reply.data.count > 0
