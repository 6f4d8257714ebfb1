"""How long a failed job waits before its next attempt."""

from __future__ import annotations

MAX_BACKOFF_MS = 3_600_000  # one hour, as in the reference server
FIXED = "fixed"
EXPONENTIAL = "exponential"


def retry_delay(
    kind: str, backoff_ms: float, attempts: int, chance: float, jitter: float | None = None
) -> int:
    """The delay in ms before the next attempt.

    ``attempts`` already counts the failure that just happened, ``chance`` is a random number in
    [0, 1).  With a ``jitter`` the first delay is the backoff; exponential doubles it with each further
    attempt, and it may be that part longer or shorter.

    Without, as the reference has it, exponential is ``backoff * 2**attempts`` times 0.5 .. 1.5, and fixed
    times 0.8 .. 1.2.
    """
    if jitter is not None:
        doublings = 0 if kind == FIXED else min(attempts - 1, 32)
        delay = backoff_ms * 2**doublings * (1 - jitter + 2 * jitter * chance)
    elif kind == FIXED:
        delay = backoff_ms * (0.8 + 0.4 * chance)
    else:
        delay = backoff_ms * 2 ** min(attempts, 32) * (0.5 + chance)
    return int(min(delay, MAX_BACKOFF_MS))
