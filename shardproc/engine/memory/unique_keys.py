"""Holders of unique keys.  The rules for pushes are in `dedup`."""

from __future__ import annotations

from bunqueue.model.job import Job

from ..state import QueueState


def release_key(queue: QueueState, job: Job) -> None:
    """Let another job have the unique key."""
    if job.holds_key and job.unique_key is not None:
        job.holds_key = False
        queue.unique.pop(job.unique_key, None)


def retake_key(queue: QueueState, job: Job) -> None:
    """A job that comes back has its unique key again, unless another one has it."""
    job.holds_key = job.unique_key is not None and job.unique_key not in queue.unique
    if job.holds_key and job.unique_key is not None:
        queue.unique[job.unique_key] = job.id
