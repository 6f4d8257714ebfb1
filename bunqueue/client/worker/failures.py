"""How an exception that a handler raised is reported to the server."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from bunqueue.client.options import checks
from bunqueue.client.options.moments import time_left
from bunqueue.errors import (
    JobInterrupted,
    JobStopped,
    OptionError,
    Postpone,
    PostponeLimit,
    Retry,
    Unrecoverable,
)
from bunqueue.protocol.commands.base import Delay
from bunqueue.protocol.commands.core import Fail
from bunqueue.protocol.commands.jobs import MoveToDelayed

if TYPE_CHECKING:
    from bunqueue.client.worker.active_job import ActiveJob

PACKAGE = __package__.partition(".")[0]
_FINAL = "__bunqueue_final__"
MAX_ERROR = 2_000  # characters of an error's text; enough for a person, small enough for every list
HEADING = "Traceback (most recent call last)"
MAX_STACK = 8_000  # characters of a traceback, its end: that is where the error is


class _Later(Struct):
    delay: Delay
    max: Annotated[int, Meta(ge=0)] | None = None


class ChildError(Exception):
    """What a handler raised in a process of its own: exceptions do not cross, their words do."""

    def __init__(self, text: str, stack: list[str], retry_in: float | None = None) -> None:
        super().__init__(text)
        self.stack = stack
        self.retry_in = retry_in


def error_text(error: BaseException) -> str:
    """`TypeError: message`, on one or more lines, bounded."""
    if isinstance(error, ChildError):
        return str(error)
    try:
        message = str(error)
    except Exception as problem:  # a broken __str__ must not cost the report of the failure
        message = f"(its text cannot be had: {type(problem).__name__})"
    text = well_formed(f"{type(error).__name__}: {message}" if message else type(error).__name__)
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def well_formed(text: str) -> str:
    """Text that can be sent: half characters, as names of files may have, are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_stack(error: BaseException) -> list[str]:
    """The lines of the traceback, without the frames of this package, bounded from the end."""
    if isinstance(error, ChildError):
        return error.stack
    text = trace_text(error)
    if text is None:
        return []
    lines = well_formed(text)[-MAX_STACK:].splitlines()
    if len(text) > MAX_STACK:  # servers know by the first line in which direction to read
        lines[0] = f"{HEADING}: ... and, at its end:"
    return lines


def trace_text(error: BaseException) -> str | None:
    """The traceback as Python writes it, without the frames of this package; None if that raises."""
    try:
        return "".join(traceback.format_exception(type(error), error, own_trace(error)))
    except Exception:  # formatting runs foreign code: __str__, __repr__, source loaders
        return None


def own_trace(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of this package."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__package__")).partition(".")[0] == PACKAGE


def is_final(error: BaseException) -> bool:
    """Whether no other attempt would help."""
    return isinstance(error, Unrecoverable) or getattr(error, _FINAL, False) is True


def is_last(job: ActiveJob, error: BaseException) -> bool:
    """Whether no other attempt follows the one that failed so."""
    return job.acked or job.attempts + 1 >= job.max_attempts or is_final(error)


def made_final(error: BaseException) -> BaseException:
    """The error, marked so that no other attempt follows it."""
    try:
        setattr(error, _FINAL, True)
    except AttributeError:  # a class with __slots__
        return Unrecoverable(f"{type(error).__name__}: {error}")
    return error


def postponed(error: Postpone) -> float:
    """By how many ms. Raises OptionError for an invalid or too long delay, or an invalid `max`."""
    delay = time_left(error.delay, "Postpone: delay")
    checks.wire(_Later, {"delay": delay, "max": error.max})
    return delay


def retry_in(error: BaseException) -> float | None:
    """After how many ms the next attempt is to begin, if the handler said so. Raises OptionError."""
    if isinstance(error, ChildError):
        return error.retry_in
    if not isinstance(error, Retry):
        return None
    delay = time_left(error.delay, "Retry: delay")
    checks.wire(_Later, {"delay": delay})
    return delay


def checked(job: ActiveJob, error: BaseException) -> BaseException:
    """What a handler raised; instead of a Postpone or Retry that cannot be, the error that says why."""
    try:
        if isinstance(error, Postpone):
            postponed(error)
            if error.max is not None and job.postponed >= error.max:
                text = f"job {job.id} ({job.name}) was put back {job.postponed} times, its max is {error.max}"
                problem = PostponeLimit(text, queue=job.queue, job_id=job.id)
                return problem.with_traceback(error.__traceback__)
        retry_in(error)
    except OptionError as problem:
        return problem.with_traceback(error.__traceback__)
    return error


def fail_command(job: ActiveJob, error: BaseException, text: str = "") -> Fail | MoveToDelayed:
    """How a worker says that an attempt failed, or is put off; `text` stands for the error's own."""
    if isinstance(error, Postpone):
        delay = postponed(error)
        return MoveToDelayed(id=job.id, delay=delay, token=job.token, postponed=error.counts)
    return Fail(
        id=job.id,
        error=text or error_text(error),
        token=job.token,
        stack=error_stack(error) or None,
        unrecoverable=is_final(error),
        delay=retry_in(error),
        wants_delay=True,
    )


def stop_command(job: ActiveJob, error: JobStopped) -> Fail:
    """How a worker says that it has ended a run."""
    interrupted = isinstance(error, JobInterrupted)
    return Fail(id=job.id, error=str(error), token=job.token, interrupted=interrupted)
