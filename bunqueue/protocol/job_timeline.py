"""The history of a job, as replies and log entries show it."""

from __future__ import annotations

from typing import Any

from bunqueue.model.job import BLOCKED, COMPLETED, MAX_TIMELINE, STATE_NAMES, Job, Moment


def timeline(job: Job) -> list[Moment]:
    """The history of a job.  If nothing unusual happened, it is derived from the job's times."""
    if job.timeline is not None:
        return job.timeline
    first = "waiting" if job.run_at <= job.created_at else "delayed"
    if job.extra is not None and job.extra.depends_on:
        first = STATE_NAMES[BLOCKED]
    moments = [Moment(first, job.created_at)]
    if job.started_at is not None:
        moments.append(Moment("active", job.started_at))
    if job.state == COMPLETED and job.finished_at is not None:
        moments.append(Moment("completed", job.finished_at))
    return moments


def moments(job: Job) -> list[dict[str, Any]]:
    """The same, as a reply shows it."""
    out = []
    for moment in timeline(job)[:MAX_TIMELINE]:
        entry: dict[str, Any] = {"state": moment.state, "timestamp": float(moment.at)}
        if moment.error is not None:
            entry["error"] = moment.error
        if moment.attempt is not None:
            entry["attempt"] = moment.attempt
        out.append(entry)
    return out
