"""Log lines that name the job they are about."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from bunqueue.integrations import missing
from bunqueue.worker.middleware import CallNext, Middleware

try:
    from structlog.contextvars import bound_contextvars
except ImportError as error:
    raise missing("structlog", error) from None

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob


class JobContext(Middleware):
    """Middleware for workers: while a job runs, `queue`, `job`, `job_id` and `attempt` are bound.

        structlog.configure(processors=[structlog.contextvars.merge_contextvars, ...])
        Worker("emails", send, middleware=[JobContext()])

    They are in each line that the handler, or anything it calls, logs. That includes its own threads, as far
    as these inherit the context. With `bind={"tenant": ...}`, headers of the job are bound as well, under the
    given names.
    """

    def __init__(self, *, bind: dict[str, str] | None = None) -> None:
        """`bind`: name in the log -> name of a header."""
        self._bind = dict(bind or {})

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        """Bind, run, and unbind."""
        values: dict[str, Any] = {}
        if self._bind:
            headers = job.job().headers
            values = {name: headers[header] for name, header in self._bind.items() if header in headers}
        values |= {"queue": job.queue, "job": job.name, "job_id": job.id, "attempt": job.attempts + 1}
        job.carry(f"{__name__}:{bound.__name__}", **values)
        with bound(**values):
            return await call_next(job)


def bound(**values: Any) -> AbstractContextManager[None]:
    """Bind these values, in the worker and in a process of a handler."""
    return bound_contextvars(**values)
