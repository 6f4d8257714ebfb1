"""One job, for those who added it or know its id."""

from __future__ import annotations

from typing import Any

from bunqueue.client import jobs as replies
from bunqueue.client.caller import AsyncCaller
from bunqueue.client.jobs import Job, JobProgress
from bunqueue.protocol.commands import query


class AsyncJobHandle:
    """A job that was added: its id, and questions about it to the server."""

    __slots__ = ("_caller", "id", "queue")

    def __init__(self, caller: AsyncCaller, queue: str, job_id: str) -> None:
        self._caller = caller
        self.queue = queue
        self.id = job_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r})"

    async def state(self) -> str:
        """waiting, delayed, active, completed, failed, or unknown when it is no longer there."""
        reply = await self._caller.call(query.GetState(id=self.id), query.StateReply)
        return reply.state

    async def result(self) -> Any:
        """What the handler gave back; None as long as the job has not completed."""
        reply = await self._caller.call(query.GetResult(id=self.id), replies.Outcome)
        return reply.result

    async def progress(self) -> JobProgress:
        """How far the active job is. Raises JobNotFound, or CommandFailed when it is not active."""
        reply = await self._caller.call(query.GetProgress(id=self.id), replies.ProgressOfJob)
        return JobProgress(reply.progress, reply.message)

    async def job(self) -> Job:
        """The whole job. Raises JobNotFound."""
        reply = await self._caller.call(query.GetJob(id=self.id), replies.OneJob)
        return reply.job
