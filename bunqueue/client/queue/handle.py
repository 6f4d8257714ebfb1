"""One job, for those who added it or know its id."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from bunqueue.client import jobs as replies
from bunqueue.client.caller import AsyncCaller
from bunqueue.client.jobs import Job, JobProgress, as_result
from bunqueue.protocol.commands import query

R = TypeVar("R")


class AsyncJobHandle(Generic[R]):
    """A job that was added: its id, and questions about it to the server.

    R is the type of its result: what the annotation of a typed job says, else Any.
    """

    __slots__ = ("_caller", "_result_type", "created", "id", "queue")

    def __init__(
        self,
        caller: AsyncCaller,
        queue: str,
        job_id: str,
        result_type: Any = Any,
        *,
        created: bool | None = None,
    ) -> None:
        self._caller = caller
        self._result_type = result_type
        self.queue = queue
        self.id = job_id
        self.created = created
        """Whether adding it made a new job; False: there was one already. None: it was not just added."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r})"

    async def state(self) -> str:
        """waiting, delayed, active, completed, failed, or unknown when it is no longer there."""
        reply = await self._caller.call(query.GetState(id=self.id), query.StateReply)
        return reply.state

    async def result(self) -> R | None:
        """What the handler gave back; None as long as the job has not completed.

        Raises ResultError when it is not of the type that the typed job says.
        """
        reply = await self._caller.call(query.GetResult(id=self.id), replies.Outcome)
        return None if reply.result is None else as_result(reply.result, self._result_type, self.id)

    async def progress(self) -> JobProgress:
        """How far the active job is. Raises JobNotFound, or CommandFailed when it is not active."""
        reply = await self._caller.call(query.GetProgress(id=self.id), replies.ProgressOfJob)
        return JobProgress(reply.progress, reply.message)

    async def job(self) -> Job:
        """The whole job. Raises JobNotFound."""
        reply = await self._caller.call(query.GetJob(id=self.id), replies.OneJob)
        return reply.job
