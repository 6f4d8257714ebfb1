"""Made by scripts/unasync.py from client/queue/control.py; do not edit."""

from __future__ import annotations

from typing import Literal, get_args

from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.options import checks
from bunqueue.client.options.moments import PastMoment, When, age, past_moment
from bunqueue.protocol.commands import Ok, dlq, events, query, queues

Cleanable = Literal["waiting", "delayed", "prioritized", "paused", "completed", "failed"]


class Control(QueueBase):
    """The part of a queue that rules over all of its jobs."""

    def pause(self) -> None:
        """Give out no more jobs until `resume`; all else goes on. It outlives a restart of the server."""
        self._caller.call(queues.Pause(queue=self.name), Ok)

    def resume(self) -> None:
        """Give out jobs again."""
        self._caller.call(queues.Resume(queue=self.name), Ok)

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        reply = self._caller.call(queues.IsPaused(queue=self.name), queues.PausedReply)
        return reply.paused

    def drain(self) -> int:
        """Remove all waiting and delayed jobs; how many that were. Not those that wait for others."""
        reply = self._caller.call(queues.Drain(queue=self.name), query.CountReply)
        return reply.count

    def clean(self, older_than: When = 0, *, state: Cleanable | None = None, limit: int = 1000) -> list[str]:
        """Remove jobs of a state that are older than a span (ms or a timedelta), or than a moment (a datetime
        with a time zone), the oldest first, at most `limit`; their ids.

        Without a state, those that wait for their turn or their time. These age from when they were added,
        completed ones from their completion, failed ones from their last attempt. `limit` is at most
        1,000,000.
        """
        checks.states(get_args(Cleanable), [] if state is None else [state])
        grace = age(older_than, "older_than")
        command = queues.Clean(queue=self.name, grace=grace, state=state, limit=limit)
        reply = self._caller.call(checks.checked(command, grace="older_than"), queues.CleanReply)
        return reply.ids

    def obliterate(self) -> None:
        """Remove the queue: its jobs in all states, active ones too, and all that was set for it."""
        self._caller.call(queues.Obliterate(queue=self.name), Ok)

    def promote_jobs(self, count: int | None = None) -> int:
        """Let delayed jobs run now: all, or the `count` that were added first. How many that were."""
        command = checks.checked(queues.PromoteJobs(queue=self.name, count=count))
        reply = self._caller.call(command, query.CountReply)
        return reply.count

    def retry_completed(
        self, job_id: str | None = None, *, count: int | None = None, before: PastMoment | None = None
    ) -> int:
        """Run completed jobs again, their results forgotten: one, or the oldest `count` of those that had
        completed at a moment (a datetime with a time zone, a timedelta for so long ago, or ms since the
        epoch), or all. How many that were."""
        timestamp = None if before is None else past_moment(before, "before")
        command = dlq.RetryCompleted(queue=self.name, id=job_id, count=count, timestamp=timestamp)
        reply = self._caller.call(checks.checked(command, id="job_id", timestamp="before"), query.CountReply)
        return reply.count

    def trim_events(self, keep: int) -> int:
        """Forget the oldest events of the queue in the server's log, but for the last `keep`. How many."""
        command = events.TrimEvents(queue=self.name, max_length=keep)
        reply = self._caller.call(checks.checked(command, max_length="keep"), events.TrimReply)
        return reply.data.removed
