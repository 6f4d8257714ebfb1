"""Made by scripts/unasync.py from client/queue/looking.py; do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bunqueue.client import checks
from bunqueue.client import jobs as replies
from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.jobs import Job, JobCounts, JobProgress
from bunqueue.errors import JobNotFound
from bunqueue.protocol.commands import query


class Looking(QueueBase):
    """The part of a queue that reads jobs, and counts them."""

    def get_job(self, job_id: str) -> Job | None:
        """The job, or None when there is none."""
        try:
            reply = self._caller.call(query.GetJob(id=job_id), replies.OneJob)
            return reply.job
        except JobNotFound:
            return None

    def get_jobs(
        self, state: str | Sequence[str] | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[Job]:
        """Jobs of one state, of several, or all, oldest first; `limit` is at most 10,000."""
        states = [state] if isinstance(state, str) else list(state or ())
        checks.states(JobCounts.__struct_encode_fields__, states)
        command = query.GetJobs(queue=self.name, state=states or None, limit=limit, offset=offset)
        reply = self._caller.call(command, replies.ManyJobs)
        return reply.jobs

    def get_state(self, job_id: str) -> str:
        """waiting, delayed, active, completed, failed, or unknown when there is no such job."""
        return self.handle(job_id).state()

    def get_result(self, job_id: str) -> Any:
        """What the handler gave back; None when the job has not completed or is gone."""
        return self.handle(job_id).result()

    def progress(self, job_id: str) -> JobProgress:
        """How far an active job is. Raises JobNotFound, or CommandFailed when it is not active."""
        return self.handle(job_id).progress()

    def counts(self) -> JobCounts:
        """How many jobs are in each state."""
        reply = self._caller.call(query.GetJobCounts(queue=self.name), replies.CountsOfJobs)
        return reply.counts

    def count(self) -> int:
        """How many jobs the queue has, in all states."""
        reply = self._caller.call(query.Count(queue=self.name), query.CountReply)
        return reply.count
