"""How often a step is tried, and the waits between attempts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bunqueue.client.connection.options import milliseconds, refused, span, unfit
from bunqueue.client.conversion.raised import is_a, text_of
from bunqueue.client.options import checks
from bunqueue.client.options.moments import time_left
from bunqueue.errors import OptionError, Retry, Unrecoverable
from bunqueue.model.durations import YEAR_MS

BACKOFFS = ("exponential", "fixed")
FIRST_MS = 1_000.0
MOST_DOUBLINGS = 40  # more would only make the numbers large


@dataclass(frozen=True, slots=True)
class Policy:
    """The checked `retry=` of a step."""

    rule: Retry
    _delays: tuple[float, ...] = field(init=False, repr=False)
    _longest: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rule = self.rule
        checks.whole("retry: max_attempts", rule.max_attempts)
        checks.one_of("retry: backoff", rule.backoff, BACKOFFS)
        checks.function("retry: when", rule.when)
        _check_errors("retry: on", rule.on)
        _check_errors("retry: never", rule.never)
        if (
            isinstance(rule.jitter, bool)
            or not isinstance(rule.jitter, int | float)
            or not 0 <= rule.jitter <= 1
        ):
            raise refused("retry: jitter", rule.jitter, "is not allowed; give a part from 0 to 1")
        object.__setattr__(self, "_delays", _delays(rule.delay))
        longest = span(rule.max_delay, "retry: max_delay")
        object.__setattr__(self, "_longest", _allowed("retry: max_delay", longest))

    def next_delay(self, attempt: int, error: BaseException) -> float | None:
        """The ms until the next attempt after attempt number `attempt` has failed; None: no other attempt.
        Raises OptionError for an invalid `Retry`.
        """
        rule = self.rule
        if attempt >= rule.max_attempts or is_a(error, Unrecoverable):
            return None
        try:
            asked: Any = error.delay if is_a(error, Retry) else None  # type: ignore[attr-defined]
            if asked is not None:
                return _allowed("Retry: delay", time_left(asked, "Retry: delay"))
            retried = is_a(error, Retry) or self._is_retried(error)
        except OptionError:
            raise
        except BaseException as problem:  # the step's exception must not be lost because of it
            BaseException.add_note(error, f"its retry rule raised {text_of(problem)}")
            return None
        return self._wait(attempt) if retried else None

    def _is_retried(self, error: BaseException) -> bool:
        rule = self.rule
        if is_a(error, *_kinds(rule.never)) or not is_a(error, *_kinds(rule.on)):
            return False
        return rule.when is None or bool(rule.when(error))

    def _wait(self, attempt: int) -> float:
        if len(self._delays) > 1:
            wait = self._delays[min(attempt, len(self._delays)) - 1]
        else:
            doubled = 2 ** min(attempt - 1, MOST_DOUBLINGS) if self.rule.backoff == "exponential" else 1
            wait = self._delays[0] * doubled
        return min(min(wait, self._longest) * (1 + self.rule.jitter * (2 * random.random() - 1)), YEAR_MS)


def _allowed(name: str, ms: float) -> float:
    """`ms`, if a step may wait that long. Raises OptionError."""
    if not 0 <= ms <= YEAR_MS:
        raise refused(name, milliseconds(ms), "ms is not allowed; give a time from 0 to 365 days", YEAR_MS)
    return ms


def _delays(given: Any) -> tuple[float, ...]:
    if given is None:
        return (FIRST_MS,)
    if isinstance(given, datetime):
        raise refused("retry: delay", given, "is a moment; give a time, or a list of times")
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    spans = [float(span(each, "retry: delay")) for each in (given if several else (given,))]
    found = tuple(_allowed("retry: delay", each) for each in spans)
    if not found:
        raise unfit("retry: delay", "the list is empty; give one time at least")
    return found


def _kinds(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _check_errors(name: str, given: object) -> None:
    for kind in _kinds(given):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise refused(name, kind, "is no class of errors")


RetryRule = Retry | int
"""How often a step is tried, or the rules for that."""

ONCE = Policy(Retry(max_attempts=1))
UNDO = Retry(max_attempts=5)
"""The default for undo steps."""


def policy_of(given: RetryRule | None) -> Policy:
    """The policy for `retry=`. Raises OptionError."""
    if given is None:
        return ONCE
    if isinstance(given, int) and not isinstance(given, bool):
        return Policy(Retry(max_attempts=given))
    if not isinstance(given, Retry):
        raise refused("retry", given, "is not allowed; give a number of attempts, or a bunqueue.Retry")
    return Policy(given)
