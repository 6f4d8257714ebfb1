"""Automatic retries of dead letters, as configured in `DlqConfig`."""

from __future__ import annotations

from bunqueue.model.dead_letters import CANCELLED, AutoRetries
from bunqueue.model.job import Extra, Job
from bunqueue.model.workflow import STUCK

from ..memory.queue_configs import dlq_config
from ..outbox import ROW
from ..state import State


def plan(state: State, job: Job) -> None:
    """Plan the retry of a new dead letter.  Jobs that somebody stopped are not retried.  A job that waited
    for children, one of which failed, is not retried either: it would run without them."""
    config = dlq_config(state, job.queue)
    retries = job.extra.auto_retries if job.extra is not None else None
    if config.auto_retry or retries is not None:
        job.extra = job.extra or Extra()
        retries = job.extra.auto_retries = retries or AutoRetries()
        again = config.auto_retry and retries.count < config.max_auto_retries
        again = again and job.reason not in (CANCELLED, STUCK) and not job.extra.pending
        retries.next_at = state.now + int(config.auto_retry_interval) if again else None
        state.out.touch(job, ROW)


def give_up(state: State, job: Job) -> None:
    """Leave a dead letter from the archive as it is: another job has its unique key by now."""
    if job.extra is not None and job.extra.auto_retries is not None:
        job.extra.auto_retries.next_at = None
    state.out.touch(job, ROW)


def forget(state: State, job: Job, *, by_itself: bool) -> None:
    """Reset the counters of a finished job that starts over; its history ends unless the retry is
    automatic."""
    if job.extra is not None:
        count = job.extra.auto_retries.count if job.extra.auto_retries is not None else 0
        job.extra.auto_retries = AutoRetries(count + 1, state.now) if by_itself else None
        job.extra.stacktrace = None
        job.extra.drops = job.extra.postponed = 0
