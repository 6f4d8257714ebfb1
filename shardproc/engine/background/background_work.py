"""Work that no command asked for, a bounded amount per tick: work that is due, and work left unfinished.

Each piece of work is a generator.  It deducts what it does from ``state.budget`` and yields when that is
used up; the next tick resumes it.  Anything may have happened to its jobs in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..state import State

LOSS = 5  # the cost of ending an attempt, counted in jobs


def begin(state: State, key: object, steps: Iterator[None]) -> None:
    """Add work, unless some with that key exists, and do as much of it as this tick allows."""
    if key not in state.background_work:
        state.background_work[key] = steps
        run(state)


def run(state: State) -> None:
    """Continue with the oldest work."""
    pending = state.background_work
    while pending and state.budget > 0:
        key = next(iter(pending))
        if next(pending[key], True):  # a step gives None
            del pending[key]
