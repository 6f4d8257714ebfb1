"""Stops live jobs: a job that has not begun is removed, and the worker of an active one is asked to end
it."""

from __future__ import annotations

from bunqueue.model.dead_letters import CANCELLED
from bunqueue.model.job import ACTIVE, BLOCKED, Cancellation, Extra, Job
from bunqueue.protocol.notices import CancelNotice, cancel_frame

from ..outbox import ROW
from ..ready import deadlines
from ..state import State
from . import events, transitions


def has_begun(job: Job) -> bool:
    """Whether a live job is running, or is a workflow between two of its runs."""
    run = job.run
    begun = run is not None and bool(run.suspended + job.attempts or run.undoable)
    return job.state == ACTIVE or (begun and job.state != BLOCKED)


def stop(state: State, job: Job, reason: str | None, grace: int) -> bool:
    """Cancel a live job.  True if it stays live for a while, because its worker has to end it or it has to be
    undone."""
    if job.state == ACTIVE:
        _ask_to_stop(state, job, reason, grace)
        if grace:
            return True
        transitions.cancel(state, job)
    elif has_begun(job):
        transitions.cancel_begun(state, job, reason)
    else:
        job.reason, job.error = CANCELLED, transitions.cancelled(reason)
        transitions.remove(state, state.queues[job.queue], job, events.REMOVED)
    return job.id in state.jobs


def _ask_to_stop(state: State, job: Job, reason: str | None, grace: int) -> None:
    """Notify the worker.  From now on the job can only end as cancelled, in ``grace`` ms at the latest.  A
    repeated request never gives it more time."""
    job.extra = extra = job.extra or Extra()
    until = state.now + grace
    if extra.cancellation is not None:
        until = min(until, extra.cancellation.until)
        reason = reason or extra.cancellation.reason
    extra.cancellation = Cancellation(until, reason)
    deadlines.watch(state, job)
    state.out.touch(job, ROW)
    _notify_worker(state, job)


def notice_of(job: Job, token: str, now: int) -> CancelNotice | None:
    """The notice for the worker of an active job that should stop; None for other jobs."""
    asked = job.extra.cancellation if job.extra is not None else None
    return CancelNotice(job.id, token, asked.reason, max(0, asked.until - now)) if asked else None


def _notify_worker(state: State, job: Job) -> None:
    lock = job.lock
    assert lock is not None
    client = state.clients.get(lock.conn)
    if client is not None and client.signals:
        notice = notice_of(job, lock.token, state.now)
        assert notice is not None
        if client.scope is not None:
            notice.id = client.scope.outside(notice.id)
        state.out.notices.append((client.conn, cancel_frame(notice)))
