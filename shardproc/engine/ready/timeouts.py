"""When the running attempts of jobs have taken too long."""

from __future__ import annotations

from heapq import heapify, heappush

from bunqueue.model.job import Job

from ..state import State


def timeout_at(job: Job) -> int:
    """When the running attempt has taken too long, or its time to stop is over; 0: it may take for ever."""
    timeout = job.shared.options.timeout
    at = 0 if not timeout or job.started_at is None else job.started_at + int(timeout)
    if job.extra is not None and (asked := job.extra.cancellation) is not None:
        at = min(at, asked.until) if at else asked.until
    return at


def watch(state: State, job: Job) -> None:
    """Have the engine look at a job that became active when its timeout is over."""
    at = timeout_at(job)
    if at:
        state.serial += 1
        heappush(state.timeouts, (at, state.serial, job.id))
        if len(state.timeouts) > state.timeouts_limit:
            _forget_timeouts(state)


def _forget_timeouts(state: State) -> None:
    """Drop the timeouts of attempts that ended before them: at most half of the heap is ever stale."""
    jobs = state.jobs
    state.timeouts = [
        entry
        for entry in state.timeouts
        if (job := jobs.get(entry[2])) is not None and timeout_at(job) == entry[0]
    ]
    heapify(state.timeouts)
    state.timeouts_limit = max(256, 2 * len(state.timeouts))
