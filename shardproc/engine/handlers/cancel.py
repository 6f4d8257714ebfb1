"""Cancel: a job that has not begun goes at once, one that runs is asked to stop, and a workflow that waits
between two runs ends as one that ran.

The request is stored with the job, so it holds after a restart.  From then on the job leaves ACTIVE in one
way only, `lifecycle.transitions.cancel`, whatever outcome is reported.  The worker gets a notice on the
connection that pulled the job or, if that is gone, the answer to its next heartbeat says it.
"""

from __future__ import annotations

from bunqueue.model.dead_letters import CANCELLED
from bunqueue.model.job import ACTIVE, BLOCKED, Cancellation, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.jobs import Cancel, CancelReply
from bunqueue.protocol.notices import CancelNotice, cancel_frame

from ..lifecycle import events, transitions
from ..outbox import ROW
from ..peers.dependencies import extra_of
from ..ready import deadlines
from ..state import Client, State


def cancel(state: State, client: Client, command: Cancel) -> CancelReply:
    job = state.jobs.get(command.id)
    if job is None or (job.state == ACTIVE and not command.running):
        raise CommandError("Job not found or cannot be cancelled", Code.JOB_STATE)
    goes_on = stop(state, job, command.reason, int(command.grace))
    return CancelReply(running=True) if goes_on else CancelReply()


def stop(state: State, job: Job, reason: str | None, grace: int) -> bool:
    """Cancel a live job; whether it goes on for a while, as its worker has to end it, or it is undone."""
    if job.state == ACTIVE:
        _ask(state, job, reason, grace)
        _tell(state, job)
        if grace:
            return True
        transitions.cancel(state, job)
    elif job.run is not None and job.run.suspended + job.attempts and job.state != BLOCKED:
        transitions.cancel_begun(state, job, reason)
    else:
        job.reason, job.error = CANCELLED, transitions.cancelled(reason)
        transitions.remove(state, state.queues[job.queue], job, events.REMOVED)
    return job.id in state.jobs


def notice_of(job: Job, token: str, now: int) -> CancelNotice | None:
    """What the worker of an active job has to know, if it is to stop."""
    asked = job.extra.cancellation if job.extra is not None else None
    return CancelNotice(job.id, token, asked.reason, max(0, asked.until - now)) if asked else None


def _ask(state: State, job: Job, reason: str | None, grace: int) -> None:
    """From now on it can only end as cancelled; asking again never gives it more time."""
    extra, until = extra_of(job), state.now + grace
    if extra.cancellation is not None:
        until = min(until, extra.cancellation.until)
        reason = reason or extra.cancellation.reason
    extra.cancellation = Cancellation(until, reason)
    deadlines.watch(state, job)
    state.out.touch(job, ROW)


def _tell(state: State, job: Job) -> None:
    lock = job.lock
    assert lock is not None
    client = state.clients.get(lock.conn)
    if client is not None and client.signals:
        notice = notice_of(job, lock.token, state.now)
        assert notice is not None
        state.out.notices.append((client.conn, cancel_frame(notice)))
