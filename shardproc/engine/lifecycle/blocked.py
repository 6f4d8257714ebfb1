"""The part of `lifecycle` that concerns jobs which depend on others: into BLOCKED and out of it."""

from __future__ import annotations

from bunqueue.model.dead_letters import EXPLICIT_FAIL
from bunqueue.model.job import BLOCKED, FAILED, WAITING, Job, Moment

from ..outbox import ROW
from ..ready import gate
from ..state import QueueState, State
from . import events, moves, progress, transitions
from .events import PUSHED, READY, WAITING_CHILDREN, emit
from .timeline import note


def add(state: State, queue: QueueState, job: Job) -> None:
    """A job becomes live that has to wait for others."""
    gate.join(queue, job)
    state.jobs[job.id] = job
    queue.jobs[job.seq] = job
    emit(state, PUSHED, job)
    _stop(state, queue, job)


def recover(queue: QueueState, job: Job) -> None:
    """A job that was stored while it waited for others."""
    job.state = BLOCKED
    queue.blocked[job.seq] = job


def block(state: State, queue: QueueState, job: Job) -> Job:
    """WAITING or DELAYED to BLOCKED: it has got something to wait for.  The job as it is from now on."""
    if job.state == WAITING:
        job = moves.stand_in(state, queue, job)
    else:
        transitions.withdraw(state, queue, job, BLOCKED)
    _stop(state, queue, job)
    return job


def put_back(state: State, job: Job) -> None:
    """ACTIVE to BLOCKED: its worker found that it has to wait for its children."""
    queue = state.queues[job.queue]
    transitions.let_go(state, queue, job)
    job.started_at = None
    progress.forget(state, job)
    _stop(state, queue, job)


def _stop(state: State, queue: QueueState, job: Job) -> None:
    recover(queue, job)
    state.out.touch(job, ROW)
    emit(state, WAITING_CHILDREN, job)


def unblock(state: State, job: Job) -> None:
    """BLOCKED to WAITING, or DELAYED while its time has not come: nothing holds it back any more."""
    queue = state.queues[job.queue]
    del queue.blocked[job.seq]
    if job.extra is not None:
        job.extra.parked = False
    transitions.enqueue(state, queue, job)
    state.out.touch(job, ROW)
    emit(state, READY, job)


def fail(state: State, job: Job, error: str) -> None:
    """BLOCKED to FAILED: a child failed without which it cannot run."""
    queue = state.queues[job.queue]
    transitions.withdraw(state, queue, job, FAILED)
    job.error = error
    note(job, Moment("failed", state.now, error))
    emit(state, events.FAILED, job, error=error, terminal=True)
    transitions.dead_letter(state, queue, job, EXPLICIT_FAIL)
