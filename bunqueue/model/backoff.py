"""How long a failed job waits before its next attempt, and whether there is one."""

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

    ``attempts`` already counts the failure that just happened, ``chance`` is a random number in
    [0, 1).  The first delays may be listed in ``delays``.  With a ``jitter`` the next one is the backoff;
    linear adds it, and exponential doubles it, with each further attempt, up to ``most``, which is an hour
    unless given.  Each delay may be longer or shorter by that part, but none is longer than ``most``.

    Without a jitter, as the reference has it, exponential is ``backoff * 2**attempts`` times 0.5 .. 1.5, and
    fixed times 0.8 .. 1.2.
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
    """A delay, longer or shorter by chance; those at the bound are spread below it."""
    part = jitter or 0.0
    if most is not None and delay * (1 + part) > most:
        delay = most / (1 + part)
    return int(delay * (1 - part + 2 * part * chance))


def may_retry(types: Sequence[str], retry_on: Collection[str], never_on: Collection[str]) -> bool:
    """Whether a job's rules allow another attempt after an error of these types: its class and the classes
    that this is derived from, as ``module.Class`` or, of Python's own, ``Class``.  Where no types are known,
    rules say nothing."""
    if not types:
        return True
    if any(names(rule, each) for rule in never_on for each in types):
        return False
    return not retry_on or any(names(rule, each) for rule in retry_on for each in types)


def names(rule: str, kind: str) -> bool:
    """Whether a rule is about a class: it has its name, with its module, the package that the module is in,
    or neither.  ``ConnectTimeout``, ``httpx.ConnectTimeout``."""
    if rule == kind:
        return True
    module, _, name = rule.rpartition(".")
    where, _, called = kind.rpartition(".")
    return name == called and (not module or f"{where}.".startswith(f"{module}."))
