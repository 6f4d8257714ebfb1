"""Made by scripts/unasync.py from client/queue/job_control.py; do not edit."""

from __future__ import annotations

from typing import TypeVar

from bunqueue.client.blocking.queue.job_base import JobBase
from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.options import checks
from bunqueue.client.options.job import job_data
from bunqueue.client.options.moments import When, time_left
from bunqueue.errors import WrongState
from bunqueue.protocol.commands import Ok, dedup, dlq, jobs, query

R = TypeVar("R")


class JobControl(JobBase[R]):
    """The part of a job's handle that changes it.

    Where a job is not in a state in which that is possible, WrongState or JobNotFound is raised.
    """

    __slots__ = ()

    def cancel(self, reason: str | None = None, *, grace: Duration = 10_000) -> bool:
        """Stop the job for good. True: it has ended already. False: it will, within `grace`, as it runs.

        One that has not begun is removed at once. The worker of one that runs is told, and within `grace` the
        job ends as cancelled, whatever its worker makes of that: its result is refused. `wait` sees the end.
        Raises JobNotFound or WrongState when it has ended before.
        """
        command = jobs.Cancel(id=self.id, running=True, reason=reason, grace=milliseconds(grace, "grace"))
        reply = self._ask(checks.checked(command), jobs.CancelReply)
        return reply.running is not True

    def remove(self) -> bool:
        """Remove the job with its result and its log; False when it was not there. Not an active one."""
        reply = self._ask(jobs.RemoveJob(id=self.id), jobs.RemovedReply)
        return reply.data.removed

    def retry(self) -> None:
        """Run a job again that failed for good, or that has completed: with all its attempts, and without the
        result that it had."""
        if (self._ask(dlq.RetryDlq(queue=self.queue, job_id=self.id), query.CountReply)).count:
            return
        if (self._ask(dlq.RetryCompleted(queue=self.queue, id=self.id), query.CountReply)).count:
            return
        raise WrongState(
            f"job {self.id} in queue {self.queue!r} cannot be retried: it has not ended, is not there, "
            f"or another job has its unique key",
            queue=self.queue,
            job_id=self.id,
        )

    def discard(self) -> None:
        """Make a waiting, delayed or active job a dead letter."""
        self._ask(jobs.Discard(id=self.id), Ok)

    def promote(self) -> None:
        """Let a delayed job, or a retry that waits, run now."""
        self._ask(jobs.Promote(id=self.id), Ok)

    def move_to_delayed(self, delay: When) -> None:
        """Have a waiting, delayed or active job run `delay` from now, or at that moment. No attempt is
        counted."""
        command = jobs.MoveToDelayed(id=self.id, delay=time_left(delay, "delay"))
        self._ask(checks.checked(command), Ok)

    def move_to_wait(self) -> None:
        """Let a waiting, delayed, active or failed job run now. An active one goes back to its queue; its
        worker goes on with it if it is the one to get it again."""
        self._ask(jobs.MoveToWait(id=self.id), Ok)

    def change_delay(self, delay: When) -> None:
        """Have a waiting or delayed job run `delay` from now, or at that moment; an active one as
        `move_to_delayed` does."""
        command = jobs.ChangeDelay(id=self.id, delay=time_left(delay, "delay"))
        self._ask(checks.checked(command), Ok)

    def change_priority(self, priority: int, *, lifo: bool | None = None) -> None:
        """Give a waiting or delayed job another priority; with `lifo` also say whether it goes before others
        of that."""
        command = jobs.ChangePriority(id=self.id, priority=priority, lifo=lifo)
        self._ask(checks.checked(command), Ok)

    def update_data(self, data: object) -> None:
        """Give a job that has not ended other data. A run that has begun does not see it."""
        self._ask(jobs.Update(id=self.id, data=job_data(data, "the data of the job")), Ok)

    def update_progress(self, progress: float, message: str | None = None) -> None:
        """Say how far an active job is: 0 to 100, less counts as 0 and more as 100. Without a message the
        last one stays."""
        command = query.Progress(id=self.id, progress=progress, message=message)
        self._ask(checks.checked(command), Ok)

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to its log, in any state. The last 100 are kept."""
        command = checks.checked(jobs.AddLog(id=self.id, message=message, level=level))
        self._ask(command, jobs.AddLogReply)

    def clear_logs(self, *, keep: int = 0) -> None:
        """Forget its log but for the last `keep` lines."""
        command = jobs.ClearLogs(id=self.id, keep_logs=keep)
        self._ask(checks.checked(command, keep_logs="keep"), Ok)

    def remove_unique_key(self) -> bool:
        """Free the `unique_key` that it holds, so that another job may have it; False when it held none."""
        reply = self._ask(dedup.RemoveJobDeduplicationKey(id=self.id), dedup.RemovedReply)
        return reply.data.removed
