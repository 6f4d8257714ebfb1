"""How an exception that a handler raised is reported to the server.

It is a user's object, so it is only inspected through `conversion.raised`. If that still goes wrong, it
counts as a failure of that job, described as well as possible.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from msgspec import Meta, Raw, Struct

from bunqueue.client.conversion import tracebacks
from bunqueue.client.conversion.raised import MAX_ERROR as MAX_ERROR
from bunqueue.client.conversion.raised import cause_of, is_a, is_honest, mark, marked, text_of, trace_of
from bunqueue.client.conversion.raised import is_final as is_final
from bunqueue.client.conversion.raised import made_final as made_final
from bunqueue.client.conversion.raised import well_formed as well_formed
from bunqueue.client.options import checks
from bunqueue.client.options.errors_named import types_of
from bunqueue.client.options.moments import time_left
from bunqueue.errors import (
    JobInterrupted,
    JobStopped,
    JobTimeout,
    OptionError,
    Postpone,
    PostponeLimit,
    Retry,
    StepFailed,
)
from bunqueue.protocol.commands.base import Delay
from bunqueue.protocol.commands.core import Fail
from bunqueue.protocol.commands.jobs import MoveToDelayed
from bunqueue.protocol.commands.workflows import ContinueAsNew, SuspendJob, WaitGroup
from bunqueue.worker.retry_after import asked_delay
from bunqueue.workflow.outcomes import ContinueRun, SuspendRun

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob

PACKAGE = __package__.partition(".")[0]
_DELAY = "__bunqueue_delay__"
VERSION = "BUNQUEUE_APP_VERSION"  # the variable with the version of the program, shown with its failures
MAX_VERSION = 64
MAX_STACK = 8_000  # characters of a traceback, from its end, where the error is


class Attempt(Protocol):
    """A held job, as far as needed to report that its run has failed."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def postponed(self) -> int: ...
    @property
    def token(self) -> str: ...
    @property
    def raw(self) -> Raw:
        """The job as received from the server, or the part that says when it is retried."""
        ...


class _Later(Struct):
    delay: Delay
    max: Annotated[int, Meta(ge=0)] | None = None


class ChildError(Exception):
    """What a handler raised in another process: exceptions are not transferred, only their text."""

    def __init__(
        self, text: str, stack: list[str], retry_in: float | None = None, types: list[str] | None = None
    ) -> None:
        super().__init__(text)
        self.stack = stack
        self.retry_in = retry_in
        self.types = types or []


def described(error: BaseException) -> ChildError:
    """A plain description of an exception that must not be inspected further."""
    return ChildError(text_of(error), error_stack(error), types=types_of(error))


def error_text(error: BaseException) -> str:
    """`TypeError: message`, on one or more lines, limited in length."""
    return str(error) if type(error) is ChildError else text_of(error)


def error_stack(error: BaseException) -> list[str]:
    """The lines of the traceback, without the frames of this package; long ones keep their end."""
    if type(error) is ChildError:
        return error.stack
    text = trace_text(error)
    if text is None:
        return []
    lines = well_formed(text)[-MAX_STACK:].splitlines()
    if len(text) > MAX_STACK:  # from the first line servers know in which direction to read
        lines[0] = f"{tracebacks.HEADING}: ... and, at its end:"
    return lines


def trace_text(error: BaseException) -> str | None:
    """The traceback as Python formats it, without the frames of this package; None if that raises."""
    return tracebacks.trace_text(error, own_trace(error))


def own_trace(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of this package."""
    return tracebacks.own_trace(error, PACKAGE)


def is_last(job: ActiveJob, error: BaseException) -> bool:
    """Whether no other attempt follows this failure."""
    return job.acked or job.attempts + 1 >= job.max_attempts or is_final(error)


def postponed(error: Postpone) -> float:
    """The delay in ms. Raises OptionError for an invalid or too long delay, or an invalid `max`."""
    delay = time_left(error.delay, "Postpone: delay")
    checks.wire(_Later, {"delay": delay, "max": error.max})
    return delay


def with_delay(error: BaseException, delay: float) -> BaseException:
    """The error, marked so that the next attempt begins in `delay` ms. Raises OptionError."""
    checks.wire(_Later, {"delay": delay})
    mark(error, _DELAY, delay)
    return error


def retry_in(error: BaseException) -> float | None:
    """The ms until the next attempt, if the handler or its rules set it. Raises OptionError."""
    if type(error) is ChildError and error.retry_in is not None:
        return error.retry_in
    asked: Any = error.delay if is_a(error, Retry) else None  # type: ignore[attr-defined]
    if asked is None:
        delay: float | None = marked(error, _DELAY)
        return delay
    # a list is only valid for steps, and refused here
    delay = time_left(asked, "Retry: delay")
    checks.wire(_Later, {"delay": delay})
    return delay


def checked(job: Attempt, error: BaseException) -> BaseException:
    """What a handler raised; for an invalid Postpone or Retry, the error that says why. Never raises."""
    if not is_honest(error):
        return described(error)
    try:
        if isinstance(error, Postpone):
            postponed(error)
            if error.max is not None and job.postponed >= error.max:
                text = f"job {job.id} ({job.name}) was put back {job.postponed} times, its max is {error.max}"
                problem = PostponeLimit(text, queue=job.queue, job_id=job.id)
                return problem.with_traceback(trace_of(error))
        retry_in(error)
    except OptionError as problem:
        return problem.with_traceback(trace_of(error))
    except BaseException:  # raised by a user's own subclass
        return described(error)
    return error


def chosen_delay(job: Attempt, error: BaseException) -> float | None:
    """Like `retry_in`, or as the exception itself asks, if the job's backoff respects that."""
    delay = retry_in(error)
    return asked_delay(job, error) if delay is None and type(error) is not ChildError else delay


def error_types(error: BaseException) -> list[str]:
    """The names of its classes, most derived first; for a failed step also those of the step's exception."""
    if type(error) is ChildError:
        return error.types
    if is_a(error, StepFailed) and (cause := cause_of(error)) is not None:
        return [*types_of(error), *types_of(cause)]
    return types_of(error)


Report = Fail | MoveToDelayed | SuspendJob | ContinueAsNew
"""What a worker sends to the server about a run without a result."""


def fail_command(job: Attempt, error: BaseException, text: str = "") -> Report:
    """The command for an attempt that failed, was put off, or was suspended to wait. `error` must be
    `checked`; `text` replaces its own text. Never raises.
    """
    try:
        return _command(job, error, text)
    except BaseException:
        return _command(job, described(error), text)


def _command(job: Attempt, error: BaseException, text: str) -> Report:
    if isinstance(error, SuspendRun):
        groups = [WaitGroup(list(group)) for group in error.groups]
        return SuspendJob(queue=job.queue, id=job.id, token=job.token, groups=groups)
    if isinstance(error, ContinueRun):
        return ContinueAsNew(queue=job.queue, id=job.id, token=job.token, data=error.data)
    if isinstance(error, Postpone):
        delay = postponed(error)
        return MoveToDelayed(id=job.id, delay=delay, token=job.token, postponed=error.counts)
    return Fail(
        id=job.id,
        error=text or error_text(error),
        token=job.token,
        stack=error_stack(error) or None,
        unrecoverable=is_final(error),
        delay=chosen_delay(job, error),
        wants_delay=True,
        error_types=error_types(error) or None,
        app_version=app_version(),
    )


def app_version() -> str | None:
    """The version of this program, if its surroundings name one."""
    return os.environ.get(VERSION, "")[:MAX_VERSION] or None


def stop_command(job: ActiveJob, error: JobStopped) -> Fail:
    """The command for a run that the worker has ended."""
    if isinstance(error, JobTimeout):
        return Fail(
            id=job.id,
            error=str(error),
            token=job.token,
            timed_out=True,
            wants_delay=True,
            app_version=app_version(),
        )
    interrupted = isinstance(error, JobInterrupted)
    return Fail(id=job.id, error=str(error), token=job.token, interrupted=interrupted)
