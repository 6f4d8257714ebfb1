"""How long a failed job waits before its next attempt."""

from __future__ import annotations

MAX_BACKOFF_MS = 3_600_000  # one hour: SEMANTICS.md, "Cap"
FIXED = "fixed"
EXPONENTIAL = "exponential"


def retry_delay(kind: str, backoff_ms: float, attempts: int, chance: float) -> int:
    """The delay in ms before the next attempt.

    ``attempts`` already counts the failure that just happened, ``chance`` is a random number in
    [0, 1).  Exponential: ``backoff * 2**attempts`` times 0.5 .. 1.5; fixed: times 0.8 .. 1.2.
    """
    if kind == FIXED:
        delay = backoff_ms * (0.8 + 0.4 * chance)
    else:
        delay = backoff_ms * 2 ** min(attempts, 32) * (0.5 + chance)
    return int(min(delay, MAX_BACKOFF_MS))
