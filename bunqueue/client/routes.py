"""Which handler runs the jobs of which name, when a worker has several."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bunqueue.client import checks
from bunqueue.client.active_job import ActiveJob, Handler
from bunqueue.errors import OptionError, Postpone

logger = logging.getLogger("bunqueue.worker")

ANY = "*"
"""Instead of a name: jobs for which there is nothing else."""
UNKNOWN_MS = 30_000  # until a job is looked at again whose name nobody here knows: a deploy may be under way

Handlers = Mapping[str, Handler]
"""By the names of jobs."""

_told: set[tuple[str, str]] = set()  # queues and names of which the log knows


def handler_of(handlers: Handlers, name: str) -> Handler:
    """What runs jobs called `name`; those that nothing runs wait, seen and told, and use no attempt."""
    return handlers.get(name) or handlers.get(ANY) or unknown


async def unknown(job: ActiveJob) -> None:
    """Put a job back that nothing here runs."""
    if (job.queue, job.name) not in _told:
        _told.add((job.queue, job.name))
        words = "queue %r: nothing here runs jobs called %r; they wait for a worker that does"
        logger.warning(words, job.queue, job.name)
    raise Postpone(UNKNOWN_MS, f"no worker for the name {job.name!r} was there")


def check(handlers: Handlers) -> None:
    """OptionError for names that no job can have."""
    if not handlers:
        raise OptionError("handler: an empty map runs no jobs; give handlers by the names of jobs")
    for name in handlers:
        checks.job_name(name)
