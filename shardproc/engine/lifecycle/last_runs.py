"""The outcome of the last job of each schedule.

It is stored with the schedule, in the transaction that ends the job.  So it is known however the server ends,
and remains known after the job itself has been removed.
"""

from __future__ import annotations

from bunqueue.model.job import Due, Extra, Job

from ..memory.timetable import KIND, LastRun, Schedule
from ..state import State


def begun(state: State, schedule: Schedule, job: Job, at: int) -> None:
    """Note the job that a schedule has pushed for its time ``at``; the caller stores the schedule."""
    job.extra = job.extra or Extra()
    job.extra.schedule = schedule.name
    job.extra.due = Due(schedule.name, at)
    schedule.last_run = LastRun(state.now, job.id)


def ended(state: State, job: Job, outcome: str) -> None:
    """Note the outcome of a job that is no longer live."""
    _set(state, job, outcome, state.now)


def reopened(state: State, job: Job) -> None:
    """Clear the outcome of a finished job that will run again."""
    _set(state, job, None, None)


def _set(state: State, job: Job, outcome: str | None, at: int | None) -> None:
    if job.extra is None or job.extra.schedule is None:
        return
    schedule = state.timetable.by_name.get(job.extra.schedule)
    if schedule is None or schedule.last_run is None or schedule.last_run.job_id != job.id:
        return
    schedule.last_run.outcome, schedule.last_run.ended_at = outcome, at
    if schedule.backlog and outcome is not None:
        state.timetable.ready.append(schedule.name)
    state.out.keep(KIND, schedule.name, schedule)
