"""Notes in the timeline of a job."""

from __future__ import annotations

from bunqueue.model.job import MAX_TIMELINE, Extra, Job, Moment
from bunqueue.protocol.job_timeline import timeline

_ENDED = ("failed", "cancelled")  # moments that end an attempt


def note(job: Job, moment: Moment) -> None:
    """Add to the timeline, which is stored in full from the first unusual event on."""
    if job.timeline is None:
        job.timeline = timeline(job)
    if len(job.timeline) < MAX_TIMELINE:
        job.timeline.append(moment)
    elif moment.state == "waiting":
        planned(job, moment.at)


def attempt_number(job: Job, attempts: int) -> int:
    """The number of an attempt, given ``attempts`` in this life of the job.  After a retry of a dead letter
    the numbers continue, so each appears only once."""
    past = (moment.attempt for moment in reversed(job.timeline or ()) if moment.state in _ENDED)
    return max(attempts, next((number + 1 for number in past if number is not None), 0))


def planned(job: Job, at: int) -> None:
    """Keep the time when a job was scheduled, unless an entry of its timeline shows it."""
    job.extra = job.extra or Extra()
    job.extra.planned_at = at
