"""Jobs of which nothing is left, for those who waited for them."""

from __future__ import annotations

from bunqueue.model.job import REMOVED, Job

from .state import State

MAX_GONE = 50_000  # removed jobs that are remembered as completed


def completed(state: State, job: Job) -> None:
    """A removed job counts as completed for those who depend on it, for a while."""
    state.gone[job.id] = None
    if len(state.gone) > MAX_GONE:
        del state.gone[next(iter(state.gone))]


def tell_parent(state: State, job: Job) -> None:
    """A job is removed that never completed: for its parent that is as if it had failed."""
    if job.extra is not None and job.extra.has_policy:
        state.settled.append(job)


def is_asked_for(state: State, job: Job) -> bool:
    """Whether other shards may ask, later or again after a crash, what became of a removed job."""
    if job.state != REMOVED or state.shards == 1:
        return False
    awaited = state.awaited.get(job.id)
    if awaited is not None and awaited.shards:
        return True
    return job.extra is not None and job.extra.has_policy and job.finished_at is None
