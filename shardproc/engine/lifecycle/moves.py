"""Moves by command: to another time, to another place in the order, to the dead letters, and back."""

from __future__ import annotations

from copy import copy

from msgspec.structs import replace

from bunqueue.model.dead_letters import INTERRUPTED
from bunqueue.model.job import ACTIVE, DELAYED, FAILED, NIL, REMOVED, WAITING, Job, Moment
from bunqueue.protocol.job_view import timeline

from ..memory.unique_keys import retake_key
from ..memory.worker_presence import remember
from ..outbox import CLEAN, ROW, Attempt
from ..state import QueueState, State
from . import dlq_retries, events, last_runs, progress, transitions
from .dedup import living_holder
from .events import emit
from .timeline import note, planned
from .transitions import let_go, withdraw

DISCARDED = "unknown"  # the reason of a dead letter: SEMANTICS.md, "DLQ reasons"


def discard(state: State, queue: QueueState, job: Job) -> None:
    """WAITING, DELAYED or ACTIVE to FAILED by command.  The job is kept even if it has remove_on_fail."""
    if transitions.is_cancelled(job):
        return transitions.cancel(state, job)
    withdraw(state, queue, job, FAILED)
    emit(state, events.DISCARDED, job)
    transitions.dead_letter(state, queue, job, DISCARDED, keep=True)


def revive(state: State, queue: QueueState, job: Job, *, by_itself: bool = False) -> None:
    """FAILED or COMPLETED to WAITING with all its attempts, as RetryDlq and RetryCompleted ask, or by
    itself; ``job`` is from the archive.  If it was a child's failure that made it a dead letter, it waits for
    its children no more: it was asked to run."""
    note(job, Moment("waiting", state.now))
    if job.extra is not None:
        job.extra.pending, job.extra.parked = [], False
        job.extra.last_report = None
    if job.state == FAILED:
        queue.failed -= 1
    else:
        queue.completed -= 1
        job.result = None
        job.progress, job.progress_message = 0, None
        if job.extra is not None:
            job.extra.repeat = None  # the job that follows it is there already
    dlq_retries.forget(state, job, by_itself=by_itself)
    last_runs.reopened(state, job)
    job.attempts = job.stalls = 0
    job.run_at = state.now
    job.started_at = job.finished_at = None
    job.reason = job.error = None
    job.timed_out = False
    retake_key(queue, job)
    transitions.add(state, queue, [job], events.REVIVED)
    queue.late[job.seq] = queue.jobs.pop(job.seq)


def can_retake_key(state: State, queue: QueueState, job: Job) -> bool:
    """Whether no living job holds the unique key of a finished one."""
    return job.unique_key is None or living_holder(state, queue, job.unique_key) is None


def interrupt(state: State, job: Job, error: str | None) -> None:
    """ACTIVE to WAITING: its worker has to stop.  As `transitions.release`, but listed among the attempts."""
    lock = job.lock
    worker = lock.owner if lock is not None else None
    text = error[: transitions.MAX_ERROR] if error is not None else None
    started, number = job.started_at, job.attempts + 1
    state.out.attempts.append(Attempt(job.seq, number, worker, started, state.now, INTERRUPTED, text, None))
    transitions.release(state, job)


def take_back(state: State, job: Job) -> None:
    """ACTIVE to WAITING: no worker ever showed that it had received the job.  Nothing is counted.  If one
    did receive it, its token still locks or completes the job while that waits."""
    lock = job.lock
    transitions.release(state, job)
    if job.state == FAILED or job.state == REMOVED:  # cancelled
        return
    remember(job, lock)
    job.timeline = timeline(job)  # its next start has more to write than a lock
    state.out.touch(job, ROW)


def move(state: State, queue: QueueState, job: Job, run_at: int) -> None:
    """WAITING, DELAYED or ACTIVE to WAITING or DELAYED: it is to run at another time."""
    was = job.state
    if was == WAITING:
        job = stand_in(state, queue, job)
        job.run_at = run_at
    elif was == DELAYED:
        job.run_at = run_at
        del queue.delayed[job.seq]
        state.delays.forget()
    else:
        job.timeline = timeline(job)  # its start would be forgotten
        let_go(state, queue, job)
        job.run_at, job.started_at = run_at, None
        progress.forget(state, job)
    if job.timeline is None:
        planned(job, state.now)
    else:
        note(job, Moment("delayed" if run_at > state.now else "waiting", state.now))
    transitions.enqueue(state, queue, job)
    if job.state == DELAYED:
        emit(state, events.DELAYED, job, delay=run_at - state.now)
    elif was != WAITING:
        emit(state, events.WAITING if was == ACTIVE else events.READY, job)
    state.out.touch(job, ROW)


def reorder(state: State, queue: QueueState, job: Job, priority: int, *, lifo: bool | None) -> None:
    """A job that waits for its turn or its time gets another place in the order."""
    waits = job.state == WAITING
    if waits:
        job = stand_in(state, queue, job)
    job.priority = priority
    if lifo is not None:
        job.shared = state.shared(replace(job.options, lifo=lifo))
    if waits:
        transitions.enqueue(state, queue, job)
    state.out.touch(job, ROW)


def stand_in(state: State, queue: QueueState, job: Job) -> Job:
    """A copy of a WAITING job that takes its place everywhere but among the ready ones: an entry there can be
    forgotten, but not moved."""
    other = copy(job)
    withdraw(state, queue, job, REMOVED)
    state.jobs[job.id] = other
    (queue.jobs if job.seq in queue.jobs else queue.late)[job.seq] = other
    if job.dirty:
        what, job.dirty, other.dirty = job.dirty, CLEAN, CLEAN
        state.out.touch(other, what)
    job.data = NIL
    return other
