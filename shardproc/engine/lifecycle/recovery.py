"""Restores jobs that were active when they were stored."""

from __future__ import annotations

from bunqueue.model.job import ACTIVE, Job

from ..ready import deadlines, queue_limits
from ..state import QueueState, State


def recover_active(state: State, queue: QueueState, job: Job) -> None:
    """Make a stored active job active again.  Its lock restarts."""
    lock = job.lock
    assert lock is not None
    job.state = ACTIVE
    lock.until = max(lock.until, state.now + lock.ttl)
    lock.heartbeat_at = state.now
    queue.active[job.seq] = job
    queue_limits.readopt(queue, job)
    state.orphans.add(job)
    deadlines.watch(state, job)
