"""A handle for one job, from adding it or from its id."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from msgspec import UNSET, Struct, UnsetType

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.options import Duration, milliseconds, seconds, whole_milliseconds
from bunqueue.client.connection.replies import in_queue
from bunqueue.client.connection.requests import reply_of
from bunqueue.client.conversion.words import MAX_LINE, storable
from bunqueue.client.models import jobs as replies
from bunqueue.client.models import views
from bunqueue.client.models.flows import ChildValuesReply
from bunqueue.client.models.jobs import Job, JobProgress
from bunqueue.client.models.views import JobOutcome
from bunqueue.client.options import checks
from bunqueue.client.options.job import encode_data, job_data, job_id
from bunqueue.client.options.moments import When, time_left
from bunqueue.client.options.types import JobRef
from bunqueue.client.queue.whole_job import whole_job
from bunqueue.errors import BunqueueError, JobNotFound, LockLost, ResultTimeout, WrongState
from bunqueue.protocol.commands import Reply, dedup, dlq, flows, insight, jobs, query
from bunqueue.protocol.commands.base import AnsweredBy
from bunqueue.protocol.commands.core import (
    Ack,
    AckReply,
    Action,
    Applied,
    Conflict,
    Fail,
    JobFields,
    JobHeartbeat,
    PlainFields,
    PlainPush,
)
from bunqueue.protocol.commands.events import WaitJobs
from bunqueue.protocol.commands.insight import AttemptView, WaitReason
from bunqueue.protocol.commands.jobs import LogLine

R = TypeVar("R")
K = TypeVar("K")
A = TypeVar("A", bound=Reply)


ENDED = ("completed", "failed", "cancelled", "expired", "stuck")


class AsyncJobHandle(Generic[R]):
    """A job on the server: its id, queries about it, and operations on it.

    R is the type of its result: the annotation of a typed job, else Any.
    """

    __slots__ = ("_caller", "conflict", "created", "holder", "id", "queue", "result_type")

    def __init__(
        self,
        caller: AsyncCaller,
        queue: str,
        job_id: str,
        result_type: Any = Any,
        created: bool | None = None,  # given by name, it would cost a dict for each job
    ) -> None:
        self._caller = caller
        self.result_type = result_type
        """The type its result is converted to."""
        self.queue = queue
        self.id = job_id
        self.created = created
        """Whether adding it made a new job; False: it already existed; None: it was not just added."""
        self.conflict: Action | None = None
        """What happened because its unique key was taken: "kept", "extended", "replaced" or "superseded";
        None: the key was free.
        """
        self.holder: str | None = None
        """The id of the job that held the key."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r})"

    def _met(self, job: JobFields | PlainFields | PlainPush, conflict: Conflict | None) -> None:
        """Called by the queue: it was added as `job`, with this `conflict` if its key was taken."""
        if conflict is not None:
            self.conflict, self.holder = conflict.action, conflict.holder
        elif self.created is False and isinstance(job, JobFields) and job.unique_key and not job.job_id:
            self.conflict, self.holder = "kept", self.id

    def returning(self, kind: type[K]) -> AsyncJobHandle[K]:
        """The same job, with its result converted to a type: `handle.returning(Receipt)`. The type may be a
        dataclass, an attrs class, a Pydantic model, a msgspec struct, or any other type that jobs can carry.
        """
        other = AsyncJobHandle[K](self._caller, self.queue, self.id, kind, created=self.created)
        other.conflict, other.holder = self.conflict, self.holder
        return other

    @overload
    async def _ask(self, command: AnsweredBy[A]) -> A: ...

    @overload
    async def _ask(self, command: Struct, reply: type[A]) -> A: ...

    async def _ask(self, command: Any, reply: type[Any] | None = None) -> Any:
        """The reply to a command about this job. Errors name its queue, which the command does not."""
        try:
            return await self._caller.call(command, reply or reply_of(command))
        except BunqueueError as error:
            in_queue(error, self.queue)
            raise

    # -- what it is, and how it ends

    async def state(self) -> str:
        """waiting, prioritized (waiting with a priority above 0), waiting-children (for other jobs), delayed,
        active, completed, failed, cancelled, expired (no worker took it within its `ttl`), or unknown if it
        no longer exists.

        A job that was cancelled before it began, or that expired, is removed, but the server remembers for a
        while how it ended: the last 10,000 of each shard, until it restarts.
        """
        reply = await self._ask(query.GetState(id=self.id))
        if reply.state != "unknown":
            return reply.state
        command = WaitJobs(queue=self.queue, ids=[self.id], timeout=0)
        ended = (await self._ask(command)).ended
        return ended[0].state if ended else "unknown"

    async def job(self) -> Job:
        """The whole job as it is now. Raises JobNotFound."""
        try:
            return await whole_job(self._caller, query.GetJob(id=self.id))
        except BunqueueError as error:
            in_queue(error, self.queue)
            raise

    async def wait(self, timeout: Duration | None = None) -> JobOutcome[R]:  # noqa: ASYNC109
        """Wait until the job has ended in any way, and return how; at most `timeout` ms, 0: check once.

        Attempts that will be retried do not count as the end. Any number of jobs may be waited for at a time.
        Raises ResultTimeout if the job has not ended in time, and ResultError if its result does not have the
        type that the typed job declares.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        try:
            ended = await self._caller.ended(self.queue, self.id, limit)
            while ended.state == "unknown" and await self._has_moved():
                ended = await self._caller.ended(self.queue, self.id, limit)
        except TimeoutError as error:
            if type(error) is not TimeoutError:  # our own errors say more
                raise
            raise ResultTimeout(
                f"job {self.id} in queue {self.queue!r} has not ended within {limit:g} s; it goes on: "
                f"ask again, or cancel it",
                queue=self.queue,
                job_id=self.id,
            ) from None
        return views.outcome(ended, self.result_type)

    async def _has_moved(self) -> bool:
        """Whether the job was moved to another queue; if so, update the handle's queue."""
        try:
            job = await self.job()
        except JobNotFound:
            return False
        before, self.queue = self.queue, job.queue
        return job.queue != before

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109
        """The handler's result once the job has completed; waits for at most `timeout` ms.

        Raises JobFailed, JobCancelled, JobExpired or JobNotFound if it ended otherwise; else like `wait`.
        """
        outcome = await self.wait(timeout)
        if outcome.state != "completed":
            raise views.no_result(outcome, self.queue, self.id)
        return outcome.result  # type: ignore[return-value] # None is a valid result

    async def progress(self) -> JobProgress:
        """The progress last reported in the current attempt; between attempts and after the end, in the last
        attempt that reported any; 0 before that. Raises JobNotFound.
        """
        try:
            reply = await self._ask(query.GetProgress(id=self.id), replies.ProgressOfJob)
        except WrongState:
            job = await self.job()
            return job.last_report or JobProgress(job.progress, job.progress_message)
        return JobProgress(reply.progress, reply.message)

    async def attempts(self) -> list[AttemptView]:
        """Its last finished attempts, oldest first: those that failed or were interrupted, with the class of
        the error and the wait until the next attempt, and the one that completed it. The log lines of each
        are in `logs`. Raises JobNotFound.
        """
        return (await self._ask(insight.GetAttempts(id=self.id))).data.attempts

    async def why_waiting(self) -> list[WaitReason]:
        """Everything that currently holds it back; empty if it is active or has ended. Raises JobNotFound."""
        return (await self._ask(insight.WhyWaiting(id=self.id))).data.reasons

    async def logs(self, start: int = 0, end: int = -1) -> list[LogLine]:
        """The lines of its log, or those from `start` to `end`, both included; -1 is the last.

        At most 100 are kept. The log of an unknown job is empty.
        """
        command = checks.checked(jobs.GetLogs(id=self.id, start=start, end=end))
        reply = await self._ask(command)
        return reply.data.logs

    # -- changing it
    # These raise WrongState or JobNotFound if the job's state does not allow the operation.

    async def cancel(self, reason: str | None = None, *, grace: Duration = 10_000) -> bool:
        """Stop the job for good. True: it has already ended. False: it is running, and ends within `grace`.

        A job that has not begun is removed at once. For a running job the worker is notified, and within
        `grace` the job ends as cancelled, whatever the worker does: its result is refused. `wait` returns
        when it ends. Raises JobNotFound or WrongState if it had already ended.
        """
        lasting = milliseconds(grace, "grace")
        command = jobs.Cancel(id=self.id, running=True, reason=storable(reason), grace=lasting)
        reply = await self._ask(checks.checked(command))
        return reply.running is not True

    async def remove(self) -> bool:
        """Remove the job with its result and its log; False if it did not exist. Refused for active jobs."""
        reply = await self._ask(jobs.RemoveJob(id=self.id))
        return reply.data.removed

    async def retry(self) -> None:
        """Run a job again that has failed for good or completed, with all its attempts and without its old
        result.
        """
        if (await self._ask(dlq.RetryDlq(queue=self.queue, job_id=self.id), query.CountReply)).count:
            return
        if (await self._ask(dlq.RetryCompleted(queue=self.queue, id=self.id))).count:
            return
        about = {"queue": self.queue, "job_id": self.id}
        where, state = f"job {self.id} in queue {self.queue!r}", await self.state()
        if state == "unknown":
            raise JobNotFound(f"{where} cannot be retried: it is not there (any more)", **about)
        why = "and is not kept, or another job has its unique key" if state in ENDED else "and has not ended"
        text = f"{where} cannot be retried: it is {state}, {why}"
        raise WrongState(text, bound=", ".join(ENDED), **about)

    async def discard(self) -> None:
        """Make a waiting, delayed or active job a dead letter."""
        await self._ask(jobs.Discard(id=self.id, force=True))

    async def promote(self) -> None:
        """Let a delayed job, or a retry that is due later, run now."""
        await self._ask(jobs.Promote(id=self.id))

    async def move_to_delayed(self, delay: When) -> None:
        """Make a waiting, delayed or active job run `delay` from now, or at that moment. No attempt is
        counted.
        """
        command = jobs.MoveToDelayed(id=self.id, delay=time_left(delay, "delay"), force=True)
        await self._ask(checks.checked(command))

    async def move_to_wait(self) -> None:
        """Let a waiting, delayed, active or failed job run now. An active one returns to its queue; if its
        worker gets it again, that worker continues with it.
        """
        await self._ask(jobs.MoveToWait(id=self.id, force=True))

    async def change_delay(self, delay: When) -> None:
        """Make a waiting or delayed job run `delay` from now, or at that moment. An active job is treated as
        in `move_to_delayed`.
        """
        command = jobs.ChangeDelay(id=self.id, delay=time_left(delay, "delay"), force=True)
        await self._ask(checks.checked(command))

    async def change_priority(self, priority: int, *, lifo: bool | None = None) -> None:
        """Change the priority of a waiting or delayed job; with `lifo` also whether it goes before others of
        that priority.
        """
        command = jobs.ChangePriority(id=self.id, priority=priority, lifo=lifo)
        await self._ask(checks.checked(command))

    async def update_data(self, data: object) -> None:
        """Replace the data of a job that has not ended. An attempt that has begun does not see the change."""
        await self._ask(jobs.Update(id=self.id, data=job_data(data, "the data of the job")))

    async def update_progress(self, progress: float, message: str | None = None) -> None:
        """Report the progress of an active job: 0 to 100, values outside are clamped. Without a message the
        last one stays.
        """
        command = query.Progress(id=self.id, progress=progress, message=storable(message))
        await self._ask(checks.checked(command))

    async def log(self, message: str, level: str = "info") -> None:
        """Add a line to its log, in any state. The last 100 are kept."""
        line = storable(message, MAX_LINE)
        command = checks.checked(jobs.AddLog(id=self.id, message=line, level=level))
        await self._ask(command)

    async def clear_logs(self, *, keep: int = 0) -> None:
        """Delete its log, except for the last `keep` lines."""
        command = jobs.ClearLogs(id=self.id, keep_logs=keep)
        await self._ask(checks.checked(command, keep_logs="keep"))

    async def remove_unique_key(self) -> bool:
        """Release the `unique_key` that it holds, so that another job may have it; False if it held none."""
        reply = await self._ask(dedup.RemoveJobDeduplicationKey(id=self.id))
        return reply.data.removed

    # -- its parents and children; flows are added by `FlowProducer`

    async def children_values(self, *, partial: bool = False) -> dict[str, Any]:
        """The results of its children, by "queue:id"; children that have not completed are left out. Raises
        ResultError if a child has completed but its result is no longer stored; with `partial` that child is
        left out instead.
        """
        reply = await self._ask(flows.GetChildrenValues(id=self.id), ChildValuesReply)
        return reply.values(self.id, partial=partial)

    async def failed_children(self) -> dict[str, str]:
        """The errors of children that failed but let it run (policies "continue" and "ignore"), by
        "queue:id".
        """
        reply = await self._ask(flows.GetFailedChildrenValues(id=self.id))
        return {**reply.values, **await self.ignored_children()}

    async def ignored_children(self) -> dict[str, str]:
        """The part of `failed_children` with the policy "ignore", whose failure did not let it
        run at once.
        """
        reply = await self._ask(flows.GetIgnoredChildrenFailures(id=self.id))
        return reply.values

    async def set_parent(self, parent: JobRef) -> None:
        """Make it a child of another job, which then waits for it. Raises JobNotFound."""
        command = flows.UpdateParent(child_id=self.id, parent_id=job_id(parent, "parent"))
        await self._ask(command)

    async def leave_parent(self) -> None:
        """Detach it from its parent, which no longer waits for it. Raises CommandFailed if it has
        no parent.
        """
        await self._ask(flows.RemoveChildDependency(id=self.id))

    async def remove_children(self) -> None:
        """Remove its children that have not begun."""
        await self._ask(flows.RemoveUnprocessedChildren(id=self.id))

    # -- reporting on a job that was taken with `pull`
    # `lock_token` comes from `pull`. These raise LockLost if it is missing or its lock is no longer valid, or
    # if the report came too late to count; WrongState if the job is not active.

    async def complete(self, result: object = None, *, lock_token: str | None = None) -> None:
        """Complete the job. Raises PayloadError for a result that cannot be sent."""
        command = checks.checked(Ack(id=self.id, token=lock_token))
        if result is not None:
            command.result = encode_data(result, "the result")
        _must_count((await self._ask(command)).data)

    async def fail(
        self,
        error: str | None = None,
        *,
        lock_token: str | None = None,
        unrecoverable: bool = False,
        give_back: bool = False,
    ) -> None:
        """Report that the attempt has failed: the job is retried, or becomes a dead letter.

        With `unrecoverable` it becomes a dead letter at once. With `give_back` the attempt does not count,
        and the job returns to its old place in the queue.
        """
        command = Fail(
            id=self.id,
            error=storable(error, MAX_LINE),
            token=lock_token,
            unrecoverable=unrecoverable,
            interrupted=give_back,
        )
        _must_count((await self._ask(checks.checked(command), AckReply)).data)

    async def heartbeat(self, *, lock_token: str | None = None, duration: Duration | None = None) -> bool:
        """Report that the job is still being worked on. With its lock token, renew the lock, for `duration`
        or for as long as before. Returns False if the job was cancelled, so that work on it may stop.
        """
        lasting = None if duration is None else whole_milliseconds(duration, "duration")
        command = checks.checked(JobHeartbeat(id=self.id, token=lock_token, duration=lasting))
        return (await self._ask(command)).data.cancelled is UNSET


def _must_count(answer: Applied | UnsetType) -> None:
    if answer is not UNSET and not answer.applied:
        raise LockLost(f"it came too late to count: {answer.reason}")
