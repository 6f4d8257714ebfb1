"""Taking jobs by hand, where a `Worker` does not fit: in scripts, or between other loops."""

from __future__ import annotations

from bunqueue.client.connection.options import Duration, milliseconds, whole_milliseconds
from bunqueue.client.models.jobs import PulledJob
from bunqueue.client.models.views import TakenJob
from bunqueue.client.options import checks
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.errors import CommandFailed
from bunqueue.model.job import DEFAULT_LOCK_TTL_MS
from bunqueue.protocol.commands.core import Pull


class AsyncPulling(AsyncQueueBase):
    """The part of a queue that gives out jobs."""

    async def pull(
        self,
        timeout: Duration = 0,  # noqa: ASYNC109
        *,
        owner: str | None = None,
        lock: Duration = DEFAULT_LOCK_TTL_MS,
    ) -> TakenJob | None:
        """Take the next job; wait up to `timeout` for one, at most a minute. None: there was none.

        Report its end with `handle(id).complete()` or `fail()`. The job stays active when the connection or
        this program ends. With an `owner` it is locked for the time of `lock`, and whoever reports on it
        needs its lock token; renew the lock with `heartbeat()`. Without, the queue's stall time applies.

        A job whose data cannot be read becomes a dead letter, and CommandFailed is raised.
        """
        command = Pull(
            queue=self.name,
            timeout=milliseconds(timeout, "timeout"),
            owner=owner,
            lock_ttl=whole_milliseconds(lock, "lock"),
            detach=True,
        )
        reply = await self._caller.call(checks.checked(command, lock_ttl="lock"), PulledJob)
        job = reply.job
        if job is None:
            return None
        if job.unreadable:
            text = f"the job's {job.unreadable}"
            await self.handle(job.id).fail(text, lock_token=reply.token, unrecoverable=True)
            raise CommandFailed(f"job {job.id} of queue {self.name} is a dead letter now: {text}")
        return TakenJob(job, reply.token)
