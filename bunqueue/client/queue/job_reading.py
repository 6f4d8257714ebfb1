"""What a job is, and how it ends."""

from __future__ import annotations

from typing import TypeVar

from bunqueue.client.connection.options import Duration, seconds
from bunqueue.client.models import jobs as replies
from bunqueue.client.models import views
from bunqueue.client.models.jobs import Job, JobProgress
from bunqueue.client.models.views import JobOutcome
from bunqueue.client.options import checks
from bunqueue.client.queue.job_base import AsyncJobBase
from bunqueue.errors import ResultTimeout, WrongState
from bunqueue.protocol.commands import insight, jobs, query
from bunqueue.protocol.commands.events import WaitJobs, WaitManyReply
from bunqueue.protocol.commands.insight import AttemptView, WaitReason
from bunqueue.protocol.commands.jobs import LogLine

R = TypeVar("R")


class AsyncJobReading(AsyncJobBase[R]):
    """The part of a job's handle that asks about it."""

    __slots__ = ()

    async def state(self) -> str:
        """waiting, delayed, active, completed, failed, cancelled, expired (nobody took it within its `ttl`),
        or unknown when it is no longer there.

        A job that was cancelled before it began, or that expired, is gone, but the server remembers for a
        while how it ended: the last 10,000 of each shard, until that is started anew.
        """
        reply = await self._ask(query.GetState(id=self.id), query.StateReply)
        if reply.state != "unknown":
            return reply.state
        command = WaitJobs(queue=self.queue, ids=[self.id], timeout=0)
        ended = (await self._ask(command, WaitManyReply)).ended
        return ended[0].state if ended else "unknown"

    async def job(self) -> Job:
        """The whole job as it is now. Raises JobNotFound."""
        reply = await self._ask(query.GetJob(id=self.id), replies.OneJob)
        return reply.job

    async def wait(self, timeout: Duration | None = None) -> JobOutcome[R]:  # noqa: ASYNC109
        """Wait until the job has ended in whatever way, and say how; at most `timeout` ms, 0: look only.

        Attempts that will be retried are no end. Any number of jobs may be waited for at a time. Raises
        ResultTimeout when it has not ended in time, ResultError when its result is not of the type that the
        typed job says.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            ended = await self._caller.ended(self.queue, self.id, limit)
        except TimeoutError as error:
            if type(error) is not TimeoutError:  # one of ours says more
                raise
            raise ResultTimeout(
                f"job {self.id} in queue {self.queue!r} has not ended within {limit:g} s; it goes on: "
                f"ask again, or cancel it",
                queue=self.queue,
                job_id=self.id,
            ) from None
        return views.outcome(ended, self.result_type)

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109
        """What the handler gave back, once the job has completed; waits for at most `timeout` ms.

        Raises JobFailed, JobCancelled, JobExpired or JobNotFound when it ended otherwise; else as `wait`.
        """
        outcome = await self.wait(timeout)
        if outcome.state != "completed":
            raise views.no_result(outcome, self.queue, self.id)
        return outcome.result  # type: ignore[return-value]  # None is a result, too

    async def progress(self) -> JobProgress:
        """How far the job is: what it has said in this attempt or, between attempts and when it has ended, in
        the last one that said anything; 0 before that. Raises JobNotFound."""
        try:
            reply = await self._ask(query.GetProgress(id=self.id), replies.ProgressOfJob)
        except WrongState:
            job = await self.job()
            return job.last_report or JobProgress(job.progress, job.progress_message)
        return JobProgress(reply.progress, reply.message)

    async def attempts(self) -> list[AttemptView]:
        """Its last attempts that failed or were broken off, the oldest first. Raises JobNotFound."""
        return (await self._ask(insight.GetAttempts(id=self.id), insight.AttemptsReply)).data.attempts

    async def why_waiting(self) -> list[WaitReason]:
        """All that holds it back at present; nothing when it is active or has ended. Raises JobNotFound."""
        return (await self._ask(insight.WhyWaiting(id=self.id), insight.WaitingReply)).data.reasons

    async def logs(self, start: int = 0, end: int = -1) -> list[LogLine]:
        """The lines of its log, or those from `start` to `end`, both included; -1 is the last.

        At most 100 are kept. Of an unknown job there are none.
        """
        command = checks.checked(jobs.GetLogs(id=self.id, start=start, end=end))
        reply = await self._ask(command, jobs.GetLogsReply)
        return reply.data.logs
