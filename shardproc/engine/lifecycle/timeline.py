"""What is noted in the timeline of a job."""

from __future__ import annotations

from bunqueue.model.job import MAX_TIMELINE, Extra, Job, Moment
from bunqueue.protocol.job_view import timeline


def note(job: Job, moment: Moment) -> None:
    """Add to the timeline, which is spelled out from the first unusual event on."""
    if job.timeline is None:
        job.timeline = timeline(job)
    if len(job.timeline) < MAX_TIMELINE:
        job.timeline.append(moment)
    elif moment.state == "waiting":
        planned(job, moment.at)


def planned(job: Job, at: int) -> None:
    """Keep when the time of a job was set, where no entry of its timeline tells that."""
    job.extra = job.extra or Extra()
    job.extra.planned_at = at
