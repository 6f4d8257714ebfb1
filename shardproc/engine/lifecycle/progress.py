"""What is kept of a job's progress when a run ends without completing the job."""

from __future__ import annotations

from bunqueue.model.job import Extra, Job, Report

from ..outbox import ROW
from ..state import State


def forget(state: State, job: Job) -> None:
    """Reset the progress to 0 for the next run.  The last report stays available until that run has ended."""
    if job.progress or job.progress_message is not None:
        job.extra = job.extra or Extra()
        job.extra.last_report = Report(job.progress, job.progress_message)
        job.progress, job.progress_message = 0, None
        state.out.touch(job, ROW)
