"""What a handler's exceptions mean for its job: whether there is another attempt, and when.

These rules belong to the code that runs the jobs, not to the programs that add them. A job may have its own
rules, which the server stores: `retry_on` and `never_on` of `JobOptions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn

from bunqueue.client.callables import as_async, is_async
from bunqueue.client.connection.options import refused
from bunqueue.client.conversion.raised import is_a, text_of
from bunqueue.client.options import checks
from bunqueue.client.options.errors_named import ErrorClass, class_names, types_of
from bunqueue.client.options.moments import When, time_left
from bunqueue.errors import JobStopped, Retry, Unrecoverable
from bunqueue.model.backoff import may_retry
from bunqueue.worker.active_job import ActiveJob, Handler
from bunqueue.worker.reporting.failures import ChildError, made_final, with_delay
from bunqueue.worker.retry_after import settings_of

Predicate = Callable[[ActiveJob[Any], BaseException], bool]
Delay = Callable[[ActiveJob[Any], BaseException], When | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """What the exceptions of a handler mean. A job's own `retry_on` and `never_on` take precedence over `on`
    and `never`.
    """

    on: ErrorClass | Iterable[ErrorClass] = ()
    """Retry only after these; by default after all."""
    never: ErrorClass | Iterable[ErrorClass] = ()
    """Do not retry after these: the job becomes a dead letter at once."""
    when: Predicate | None = None
    """Called with the job and the exception. If it returns False, there is no other attempt."""
    delay: Delay | None = None
    """Called with the job and the exception. Returns how long to wait before the next attempt, or until when;
    None: follow the job's backoff. `bunqueue.retry_after` is one such function.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", tuple(class_names(self.on, "retry: on")))
        object.__setattr__(self, "never", tuple(class_names(self.never, "retry: never")))
        checks.function("retry: when", self.when)
        checks.function("retry: delay", self.delay)

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return bool(self.on or self.never or self.when or self.delay)

    @property
    def by_name(self) -> bool:
        """Whether the rules depend only on the names of an error's classes."""
        return self.when is None and self.delay is None

    def applied(self, job: ActiveJob[Any], error: BaseException) -> BaseException:
        """The exception, marked with the rules' decision."""
        if is_a(error, JobStopped, Retry, Unrecoverable):  # these decide for themselves
            return error
        if job.ending is not None or is_a(error, GeneratorExit):  # the run, or the event loop, is being ended
            return error
        types = error.types if type(error) is ChildError else types_of(error)
        own = settings_of(job)
        on: Any = () if own.retry_on else self.on
        never: Any = () if own.never_on else self.never
        try:
            if not may_retry(types, on, never) or (self.when is not None and not self.when(job, error)):
                return made_final(error)
            delay = None if self.delay is None else self.delay(job, error)
            return error if delay is None else with_delay(error, time_left(delay, "retry: delay"))
        except BaseException as problem:  # the handler's exception must not be lost because of it
            BaseException.add_note(error, f"its retry rule raised {text_of(problem)}")
            return error


def with_rules(handler: Handler, rules: RetryRules | None) -> Handler:
    """A handler whose exceptions are marked; the same handler if there are no rules."""
    if not rules:
        return handler

    async def run_coroutine(job: ActiveJob[Any], coroutine: Awaitable[Any]) -> Any:
        try:
            return await coroutine
        except BaseException as error:
            raise_as(rules.applied(job, error), error)

    @wraps(handler)
    def run(job: ActiveJob[Any]) -> Any:
        try:
            value = handler(job)
        except BaseException as error:
            raise_as(rules.applied(job, error), error)
        return run_coroutine(job, value) if inspect.isawaitable(value) else value

    return as_async(run) if is_async(handler) else run


def raise_as(marked: BaseException, error: BaseException) -> NoReturn:
    """Raise an exception again, or the one that replaces it if it cannot be marked."""
    if marked is error:
        raise error
    raise marked from error


def checked_rules(rules: RetryRules | None) -> RetryRules | None:
    """Return `rules`. Raises OptionError for anything else."""
    if rules is not None and not isinstance(rules, RetryRules):
        raise refused("retry", rules, "is not allowed; give a bunqueue.RetryRules")
    return rules
