"""Groups: the jobs of a queue with the same `group`, which have their own limits and pause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.options import Duration, whole_milliseconds
from bunqueue.client.models.jobs import Job, JobCounts, ManyJobs
from bunqueue.client.options import checks
from bunqueue.client.options.moments import When, time_left
from bunqueue.protocol.commands import groups
from bunqueue.protocol.commands.groups import GroupRate


class AsyncJobGroup:
    """One group of a queue: `queue.group("acme")`."""

    __slots__ = ("_caller", "id", "queue")

    def __init__(self, caller: AsyncCaller, queue: str, group_id: str) -> None:
        self._caller = caller
        self.queue = queue
        self.id = group_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(queue={self.queue!r}, id={self.id!r})"

    async def count(self) -> int:
        """The number of its queued jobs: all except the active ones."""
        command = groups.GetGroupJobsCount(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.count

    async def active_count(self) -> int:
        """The number of its active jobs."""
        command = groups.GetGroupActiveCount(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.count

    async def pause(self) -> bool:
        """Stop handing out its jobs until `resume`; returns whether this changed anything."""
        command = groups.PauseGroup(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.changed

    async def resume(self) -> bool:
        """Hand out its jobs again; returns whether this changed anything."""
        command = groups.ResumeGroup(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.changed

    async def is_paused(self) -> bool:
        """Whether it is paused."""
        command = groups.IsGroupPaused(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.paused

    async def set_concurrency(self, limit: int) -> None:
        """Allow at most `limit` active jobs at a time, whatever a worker's settings say."""
        command = groups.SetGroupConcurrency(queue=self.queue, group_id=self.id, concurrency=limit)
        await self._caller.call(checks.checked(command, concurrency="limit"))

    async def concurrency(self) -> int | None:
        """The limit that was set, or None."""
        command = groups.GetGroupConcurrency(queue=self.queue, group_id=self.id)
        limit = (await self._caller.call(command)).data.concurrency
        return None if limit is None else int(limit)

    async def clear_concurrency(self) -> bool:
        """Remove that limit; returns whether there was one."""
        command = groups.RemoveGroupConcurrency(queue=self.queue, group_id=self.id)
        return bool((await self._caller.call(command)).data.removed)

    async def set_rate_limit(self, limit: int, *, per: Duration) -> None:
        """Allow at most `limit` jobs to start within `per`, counted from the first of them."""
        span = whole_milliseconds(per, "per")
        command = groups.SetGroupRateLimit(queue=self.queue, group_id=self.id, max=limit, duration=span)
        await self._caller.call(checks.checked(command, max="limit", duration="per"))

    async def rate_limit(self) -> GroupRate | None:
        """The rate limit that was set, or None."""
        command = groups.GetGroupRateLimit(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.limit

    async def clear_rate_limit(self) -> bool:
        """Remove the rate limit; returns whether there was one."""
        command = groups.RemoveGroupRateLimit(queue=self.queue, group_id=self.id)
        return bool((await self._caller.call(command)).data.removed)

    async def rate_limit_ttl(self) -> int | None:
        """The ms that remain of the current rate limit window; None if no window is running."""
        command = groups.GetGroupRateLimitTtl(queue=self.queue, group_id=self.id)
        ttl = (await self._caller.call(command)).data.ttl
        return None if ttl < 0 else int(ttl)

    async def set_weight(self, weight: int) -> None:
        """Give it a larger share of the turns: `weight` turns for each turn of a group without a weight,
        which counts as 1. From 1 to 1000.
        """
        command = groups.SetGroupWeight(queue=self.queue, group_id=self.id, weight=weight)
        await self._caller.call(checks.checked(command))

    async def weight(self) -> int | None:
        """The weight that was set; None if unset, which counts as 1."""
        command = groups.GetGroupWeight(queue=self.queue, group_id=self.id)
        return (await self._caller.call(command)).data.weight

    async def clear_weight(self) -> bool:
        """Remove the weight; returns whether there was one."""
        command = groups.RemoveGroupWeight(queue=self.queue, group_id=self.id)
        return bool((await self._caller.call(command)).data.removed)

    async def jobs(
        self, state: str | Sequence[str] | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[Job]:
        """Its jobs that have not ended, in the order in which they were added: those of one state, of
        several, or all. `limit` is at most 10,000; states are those of `JobCounts`.
        """
        states = [state] if isinstance(state, str) else list(state or ())
        checks.states(JobCounts.__struct_encode_fields__, states)
        command = groups.GetGroupJobs(
            queue=self.queue, group_id=self.id, state=states or None, limit=limit, offset=offset
        )
        return (await self._caller.call(checks.checked(command), ManyJobs)).jobs

    async def hold(self, duration: When) -> None:
        """Stop handing out its jobs for a while, or until a moment: for example when a service that they use
        asks for a pause. A moment that has passed has no effect.
        """
        span = whole_milliseconds(time_left(duration, "duration"), "duration")
        if span < 1 and isinstance(duration, datetime):
            return
        command = groups.RateLimitGroup(queue=self.queue, group_id=self.id, duration=span)
        await self._caller.call(checks.checked(command))
