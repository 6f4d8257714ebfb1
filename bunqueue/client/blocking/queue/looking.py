"""Made by scripts/unasync.py from client/queue/looking.py; do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import Job, JobCounts, JobProgress
from bunqueue.client.options import checks
from bunqueue.errors import JobNotFound
from bunqueue.protocol.commands import query, queues

PAGE = 500  # jobs read at once by who wants all


class Looking(QueueBase):
    """The part of a queue that reads jobs, and counts them."""

    def get_job(self, job_id: str) -> Job | None:
        """The job, or None when there is none."""
        try:
            reply = self._caller.call(checks.checked(query.GetJob(id=job_id), id="job_id"), replies.OneJob)
            return reply.job
        except JobNotFound:
            return None

    def get_job_by_custom_id(self, custom_id: str) -> Job | None:
        """The job with an id that its adder chose, if it has not ended; else None."""
        try:
            reply = self._caller.call(
                checks.checked(query.GetJobByCustomId(custom_id=custom_id)), replies.OneJob
            )
            return reply.job
        except JobNotFound:
            return None

    def get_jobs(
        self,
        state: str | Sequence[str] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
        newest_first: bool = False,
    ) -> list[Job]:
        """Jobs of one state, of several, or all, in the order in which they were made; `limit` is at most
        10,000. States are those of `JobCounts`."""
        states = [state] if isinstance(state, str) else list(state or ())
        checks.states(JobCounts.__struct_encode_fields__, states)
        command = query.GetJobs(
            queue=self.name, state=states or None, limit=limit, offset=offset, asc=not newest_first
        )
        reply = self._caller.call(checks.checked(command), replies.ManyJobs)
        return reply.jobs

    def iter_jobs(
        self, state: str | Sequence[str] | None = None, *, newest_first: bool = False, page: int = PAGE
    ) -> Iterator[Job]:
        """All jobs of some states, read page by page: for loops over more than one would hold at once.

        The queue goes on meanwhile. A job that is there, in these states, all the time may be met twice when
        others are added, and missed when others go; an id tells the one, asking again the other.
        """
        checks.whole("page", page)
        offset = 0
        while True:
            jobs = self.get_jobs(state, limit=page, offset=offset, newest_first=newest_first)
            for job in jobs:
                yield job
            if len(jobs) < page:
                return
            offset += page

    def get_state(self, job_id: str) -> str:
        """waiting, delayed, active, completed, failed, cancelled, expired, or unknown when there is no such
        job; see `JobHandle.state`."""
        return self.handle(job_id).state()

    def get_result(self, job_id: str) -> Any:
        """What the handler gave back; None when the job has not completed or is gone. It does not wait:
        `handle(job_id).result()` does."""
        reply = self._caller.call(checks.checked(query.GetResult(id=job_id), id="job_id"), replies.Outcome)
        return reply.result

    def progress(self, job_id: str) -> JobProgress:
        """How far a job is, see `JobHandle.progress`. Raises JobNotFound."""
        return self.handle(job_id).progress()

    def counts(self) -> JobCounts:
        """How many jobs are in each state."""
        reply = self._caller.call(query.GetJobCounts(queue=self.name), replies.CountsOfJobs)
        return reply.counts

    def count(self) -> int:
        """How many jobs the queue has, in all states."""
        reply = self._caller.call(query.Count(queue=self.name), query.CountReply)
        return reply.count

    def counts_per_priority(self) -> dict[int, int]:
        """How many jobs wait for their turn or their time, by priority."""
        command = queues.GetCountsPerPriority(queue=self.name)
        reply = self._caller.call(command, queues.PriorityCountsReply)
        return {int(priority): count for priority, count in reply.counts.items()}
