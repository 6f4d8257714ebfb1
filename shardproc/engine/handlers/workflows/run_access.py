"""Shared by the commands of a run: the job under its lock, and the heads of its steps."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw

from bunqueue.model.job import ACTIVE, Job
from bunqueue.model.workflow import MAX_BYTES, STEP_ROWS, UNAMBIGUOUS, Run
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.readable import check_readable, is_readable

from ...lifecycle import run_steps
from ...lookup import known_job
from ...memory.open_runs import OpenRun
from ...outbox import ROW
from ...run_writes import StepHead
from ...state import State
from .. import disconnects


def locked_job(state: State, job_id: str, token: str) -> Job:
    """The active job that the caller has locked with this token.

    A job returned to its queue is locked again, as by a heartbeat, unless another worker has taken it.
    """
    job = state.jobs.get(job_id)
    if job is not None and job.lock is None and disconnects.retake(state, job, token, None):
        job = state.jobs[job_id]
    if job is None or job.state != ACTIVE or job.lock is None or not token or job.lock.token != token:
        raise CommandError(f"Invalid or expired lock token for job {job_id}", Code.LOCK_LOST, field="token")
    return job


def open_run(state: State, job: Job) -> OpenRun:
    """The steps of an active job, from memory or from storage."""
    run = state.runs.get(job.id)
    if run is None:
        run = state.runs[job.id] = OpenRun()
        if job.stored & STEP_ROWS:
            enter(run, state.archive.runs.heads(job.seq))
    return run


def enter(run: OpenRun, heads: Iterable[StepHead]) -> None:
    for head in heads:
        run.enter(head)


def with_run(state: State, job: Job) -> Run:
    """The workflow data of a job; an ordinary job gets it with its first step."""
    run_steps.has_steps(job)
    if job.run is None:
        job.run = Run(keys=UNAMBIGUOUS)
        state.out.touch(job, ROW)
    return job.run


def advanced(state: State, job: Job) -> None:
    """The workflow has made progress, so it is not the job that ends its workers, however many it has
    lost."""
    extra = job.extra
    if job.stalls or (extra is not None and (extra.drops or extra.interruptions)):
        job.stalls = 0
        if extra is not None:
            extra.drops = extra.interruptions = 0
        state.out.touch(job, ROW)


def workflow(state: State, job_id: str) -> Job:
    """A live or finished job that has, or may have, steps.  CommandError for any other."""
    job = known_job(state, job_id)
    if job.run is None:
        text = f"Job {job_id} is no workflow, and has no steps"
        raise CommandError(text, Code.NOT_A_WORKFLOW, field="id", value=job_id)
    return job


def payload(raw: Raw, field: str, most: int = MAX_BYTES) -> bytes:
    """A value given by a user.  CommandError if it cannot be read or is too large."""
    data = bytes(raw)
    if len(data) > most:
        raise CommandError(
            f"{field} has {len(data)} bytes, at most {most} are allowed",
            Code.STEP_TOO_LARGE,
            field=field,
            value=len(data),
            bound=most,
        )
    if not is_readable(data):
        check_readable(data, field)
    return data
