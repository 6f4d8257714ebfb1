"""What workers log, with the standard `logging`: one logger, `bunqueue.worker`.

Messages are for people. For programs each record has `fields`: `event`, a one-word summary, and `queue`,
`job_id`, `job_name`, `attempt` and so on; `bunqueue worker --log-format json` writes them. Values of a job's
data are never logged. Ids and names are escaped, so they always fit on one line.

Nothing here checks whether logging is enabled: for events of every job, the callers do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol

from bunqueue.errors import JobStopped, Postpone
from bunqueue.logs import Field, TracebackText, escaped
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.log_context import MAX_NAMED, ids_of
from bunqueue.worker.reporting.failures import (
    ChildError,
    error_stack,
    error_text,
    is_last,
    own_trace,
    postponed,
    trace_text,
    well_formed,
)

logger = logging.getLogger("bunqueue.worker")

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class Counts(Protocol):
    """What a worker has done: attempts, not jobs."""

    completed: int
    failed: int
    interrupted: int


def job_started(job: ActiveJob) -> None:
    """Its handler is about to be called."""
    words = "queue %r: job %s begins, attempt %d of %d"
    _log(logging.DEBUG, "job_started", job, words, job.attempts + 1, job.max_attempts)


def job_completed(job: ActiveJob) -> None:
    """The server has recorded it as completed."""
    _log(logging.INFO, "job_completed", job, "queue %r: job %s completed in %.3f s", job.took)


def job_failed(job: ActiveJob, error: BaseException, delay: float | None) -> None:
    """The server has recorded that an attempt failed. `delay`: ms until the next one, if known."""
    why = escaped(error_text(error))
    after = "" if job.took is None else f" after {job.took:.3f} s"
    attempt = (job.attempts + 1, job.max_attempts, after)
    if job.acked:
        words = "queue %r: job %s has failed%s, and is not run again: %s"
        _log(logging.ERROR, "job_failed", job, words, after, why, error=error)
    elif is_last(job, error):
        words = "queue %r: job %s has failed for good, in attempt %d of %d%s: %s"
        _log(logging.ERROR, "job_failed", job, words, *attempt, why, error=error)
    else:
        then = "and is tried again" if delay is None else f"and is tried again in {delay / 1000:.1f} s"
        words = "queue %r: job %s has failed in attempt %d of %d%s, %s: %s"
        more = {} if delay is None else {"delay_ms": round(delay)}
        _log(logging.WARNING, "job_retried", job, words, *attempt, then, why, error=error, **more)


def job_stopped(job: ActiveJob, error: JobStopped) -> None:
    """Its run was ended early, or it was put back."""
    why = escaped(str(error))
    if isinstance(error, Postpone):
        delay = postponed(error)
        words = "queue %r: job %s begins again in %.1f s: %s"
        _log(logging.INFO, "job_postponed", job, words, delay / 1000, why, delay_ms=round(delay))
    else:
        logger.info("queue %r: %s", job.queue, why, extra=_extra("job_stopped", job))


def job_timed_out(job: ActiveJob, *, in_thread: bool) -> None:
    """It exceeded its timeout, and was asked to end."""
    words = "queue %r: job %s takes longer than its timeout of %g ms, and is ended"
    if in_thread:
        words = (
            "queue %r: job %s takes longer than its timeout of %g ms. A thread cannot be ended: the attempt "
            "fails, and the next one begins, when the function returns; run_in='process' ends it in time"
        )
    _log(logging.WARNING, "job_timed_out", job, words, job.timeout)


def job_lost(job: ActiveJob, text: str) -> None:
    """Its outcome does not count."""
    logger.warning("queue %r: %s", job.queue, escaped(text), extra=_extra("job_lost", job))


def worker_started(queue: str, address: str, concurrency: int, owner: str) -> None:
    """It starts to ask for jobs. `connected` logs that the server answers."""
    fields: dict[str, Field] = {
        "queue": queue,
        "address": address,
        "concurrency": concurrency,
        "owner": escaped(owner),
    }
    words = "queue %r: the worker takes jobs from %s, %d at a time, as %s"
    log_event("worker_started", fields, words, *fields.values())


def connected(queue: str, address: str, server: str) -> None:
    """The server, with this name and version, has registered the worker, for the first time or again."""
    fields = {"queue": queue, "server": escaped(server), "address": address}
    log_event("connected", fields, "queue %r: connected to %s at %s", *fields.values())


def job_undone(job: ActiveJob) -> None:
    """The steps of a workflow that has failed have been undone."""
    _log(logging.INFO, "job_undone", job, "queue %r: job %s: its finished steps have been undone")


def job_suspended(job: ActiveJob, error: BaseException) -> None:
    """The run of a workflow was suspended to wait."""
    _log(logging.DEBUG, "job_suspended", job, "queue %r: job %s: %s", error)


def worker_controlled(queue: str, concurrency: int, *, paused: bool) -> None:
    """It was paused or resumed, or its concurrency was changed."""
    fields: dict[str, Field] = {"queue": queue, "concurrency": concurrency, "paused": paused}
    how = "takes no more jobs until it is resumed" if paused else f"takes jobs, {concurrency} at a time"
    log_event("worker_controlled", fields, "queue %r: the worker %s", queue, how)


def worker_asked_to_stop(queue: str, *, drain: bool) -> None:
    """Somebody asked for its end at the server."""
    how = "and takes the time that its jobs need" if drain else "and its jobs have their grace to end"
    fields: dict[str, Field] = {"queue": queue, "drain": drain}
    log_event("worker_asked_to_stop", fields, "queue %r: the worker was asked to stop, %s", queue, how)


def worker_recycled(queue: str, why: str) -> None:
    """It stops on its own, to be replaced."""
    log_event("worker_recycled", {"queue": queue}, "queue %r: the worker stops, as %s", queue, why)


def worker_stopping(queue: str, running: list[ActiveJob], grace: float) -> None:
    """It takes no more jobs, and waits up to `grace` seconds for those that run."""
    fields = {"queue": queue, **ids_of(running), "grace_ms": grace * 1000}
    if running:
        words = "queue %r: the worker stops, and waits up to %g s for %s"
        log_event("worker_stopping", fields, words, queue, grace, named(running))
    else:
        log_event("worker_stopping", fields, "queue %r: the worker stops; no job is running", queue)


def jobs_interrupted(queue: str, running: list[ActiveJob]) -> None:
    """It does not wait any longer."""
    words = "queue %r: the worker has waited long enough, and ends %s"
    fields = {"queue": queue, **ids_of(running)}
    log_event("jobs_interrupted", fields, words, queue, named(running), level=logging.WARNING)


def worker_stopped(queue: str, done: Counts, took: float) -> None:
    """Everything is reported and closed, `took` seconds after the stop began."""
    numbers = {"completed": done.completed, "failed": done.failed, "interrupted": done.interrupted}
    fields: dict[str, Field] = {"queue": queue, "duration_ms": round(took * 1000), **numbers}
    words = "queue %r: the worker has stopped after %.1f s; completed %d, failed %d, given back %d"
    log_event("worker_stopped", fields, words, queue, took, *numbers.values())


def log_event(
    event: str, fields: Mapping[str, Field], words: str, *arguments: object, level: int = logging.INFO
) -> None:
    """Log something about a worker itself."""
    logger.log(level, words, *arguments, extra={"fields": {"event": event, **fields}})


def named(jobs: Iterable[ActiveJob]) -> str:
    """Some jobs, for a log line: 01a2 (welcome), 01a3 (welcome) and 5 more."""
    found = list(jobs)
    shown = ", ".join(map(_name, found[:MAX_NAMED]))
    return shown if len(found) <= MAX_NAMED else f"{shown} and {len(found) - MAX_NAMED} more"


def _name(job: ActiveJob) -> str:
    return escaped(f"{job.id} ({job.name})")


def _log(
    level: int,
    event: str,
    job: ActiveJob,
    words: str,
    *arguments: object,
    error: BaseException | None = None,
    **more: Field,
) -> None:
    if logger.isEnabledFor(level):
        trace = None if error is None else _trace(error)
        extra = _extra(event, job, **more)
        logger.log(level, words, job.queue, _name(job), *arguments, exc_info=trace, extra=extra)


def _extra(event: str, job: ActiveJob, **more: Field) -> dict[str, dict[str, Field]]:
    fields: dict[str, Field] = {
        "event": event,
        "queue": job.queue,
        "job_id": escaped(job.id),
        "job_name": escaped(job.name),
        "attempt": job.attempts + 1,
        "max_attempts": job.max_attempts,
    }
    if job.took is not None:
        fields["duration_ms"] = round(job.took * 1000, 3)
    return {"fields": fields | more}


def _trace(error: BaseException) -> ExcInfo | None:
    """The exception with its traceback from the handler on; None if a traceback would say nothing.

    An exception from another process is shown as text, and so is one that no log handler could write: it has
    lone surrogates, or formatting it raises.
    """
    trace = own_trace(error)
    if trace is None and not isinstance(error, ChildError):
        return None
    text = trace_text(error)
    if isinstance(error, ChildError) or text is None or well_formed(text) != text:
        shown = TracebackText("\n".join(error_stack(error)))
        return type(shown), shown, None
    return type(error), error, trace
