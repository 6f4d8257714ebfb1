"""What became of the last job of each schedule.

It is stored with the schedule, in the transaction that ends the job: so it is known however the server ends,
and stays known when the job itself is gone.
"""

from __future__ import annotations

from bunqueue.model.job import Due, Extra, Job

from ..memory.timetable import KIND, LastRun, Schedule
from ..state import State


def begun(state: State, schedule: Schedule, job: Job, at: int) -> None:
    """A schedule has pushed a job for its time ``at``; whoever calls this stores the schedule."""
    job.extra = job.extra or Extra()
    job.extra.schedule = schedule.name
    job.extra.due = Due(schedule.name, at)
    schedule.last_run = LastRun(state.now, job.id)


def ended(state: State, job: Job, outcome: str) -> None:
    """A job is live no more."""
    _set(state, job, outcome, state.now)


def reopened(state: State, job: Job) -> None:
    """A finished job is to run again."""
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
