"""How long a failed job waits before its next attempt, and whether it gets one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

MAX_BACKOFF_MS = 3_600_000  # one hour, as in the reference server, unless a job says otherwise
FIXED = "fixed"
LINEAR = "linear"
EXPONENTIAL = "exponential"


def retry_delay(
    kind: str,
    backoff_ms: float,
    attempts: int,
    chance: float,
    jitter: float | None = None,
    *,
    most: float | None = None,
    delays: Sequence[float] = (),
) -> int:
    """The delay in ms before the next attempt.

    ``attempts`` already counts the current failure; ``chance`` is a random number in [0, 1).  ``delays`` may
    list the first delays.  With a ``jitter``, the delay after those is the backoff; with each further
    attempt, linear adds the backoff and exponential doubles the delay.  No delay is longer than ``most``, by
    default an hour.  Each delay is longer or shorter by up to the fraction ``jitter``, within ``most``.

    Without a jitter, as in the reference server, exponential is ``backoff * 2**attempts`` times 0.5 .. 1.5,
    and fixed is the backoff times 0.8 .. 1.2.
    """
    if attempts <= len(delays):
        return _spread(delays[attempts - 1], jitter, chance, most)
    attempts -= len(delays)
    bound = MAX_BACKOFF_MS if most is None else most
    if jitter is None and kind == FIXED:
        return int(min(backoff_ms * (0.8 + 0.4 * chance), bound))
    if jitter is None and kind == EXPONENTIAL:
        return int(min(backoff_ms * 2 ** min(attempts, 32) * (0.5 + chance), bound))
    times = {FIXED: 1, LINEAR: attempts}.get(kind, 1 << min(attempts - 1, 32))
    return _spread(backoff_ms * times, jitter, chance, bound)


def _spread(delay: float, jitter: float | None, chance: float, most: float | None) -> int:
    """Make a delay randomly longer or shorter; delays at the bound are spread below it."""
    part = jitter or 0.0
    if most is not None and delay * (1 + part) > most:
        delay = most / (1 + part)
    return int(delay * (1 - part + 2 * part * chance))


def may_retry(types: Sequence[str], retry_on: Collection[str], never_on: Collection[str]) -> bool:
    """Whether a job's rules allow another attempt after an error of these types.  The types are the error's
    class and its base classes, as ``module.Class``, or ``Class`` for built-in ones.  Without types, another
    attempt is allowed."""
    if not types:
        return True
    if any(names(rule, each) for rule in never_on for each in types):
        return False
    return not retry_on or any(names(rule, each) for rule in retry_on for each in types)


def names(rule: str, kind: str) -> bool:
    """Whether a rule matches a class.  A rule is the name of a class, optionally prefixed with its module or
    a package around it: ``ConnectTimeout``, ``httpx.ConnectTimeout``."""
    if rule == kind:
        return True
    module, _, name = rule.rpartition(".")
    where, _, called = kind.rpartition(".")
    return name == called and (not module or f"{where}.".startswith(f"{module}."))
