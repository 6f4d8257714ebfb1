"""In which states a job holds its unique key."""

from __future__ import annotations

from collections.abc import Iterable

from bunqueue.model.job import ACTIVE, BLOCKED, COMPLETED, DELAYED, FAILED, STATE_NAMES, SUSPENDED, WAITING

CANCELLED = 15  # a cancelled dead letter: not a job state of its own, but one for keys

BY_NAME = {
    **{STATE_NAMES[state]: state for state in (WAITING, DELAYED, ACTIVE, BLOCKED, SUSPENDED)},
    **{STATE_NAMES[state]: state for state in (COMPLETED, FAILED)},
    "cancelled": CANCELLED,
}
NAMES = tuple(BY_NAME)

REPLACE, EXTEND, REJECT, SUPERSEDE = "replace", "extend", "reject", "supersede"


def _mask(states: Iterable[int]) -> int:
    return sum(1 << state for state in set(states))


_UNFINISHED = _mask((WAITING, DELAYED, ACTIVE, BLOCKED, SUSPENDED))
_ANY = _UNFINISHED | _mask((COMPLETED, FAILED))  # not cancelled jobs


def mask(names: Iterable[str] | None, *, timed: bool) -> int:
    """The states with these names as one number.  Without names, the states that hold a key by default: all
    unfinished ones, or with ``timed`` also finished ones, because the key is held for its TTL."""
    if names is None:
        return _ANY if timed else _UNFINISHED
    return _mask(BY_NAME[name] for name in names)


def holds_key(states: int, state: int) -> bool:
    """Whether a key is held in ``state``."""
    return bool(states >> state & 1)
