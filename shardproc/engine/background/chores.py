"""Work that no command asked for, a bounded amount per tick: work that is due, and work left unfinished.

A chore is a generator.  It deducts what it does from ``state.spare`` and yields when that is used up; the
next tick resumes it.  Anything may have happened to its jobs in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..state import State

LOSS = 5  # the cost of ending an attempt, counted in jobs


def begin(state: State, key: object, steps: Iterator[None]) -> None:
    """Add a chore, unless one with that key exists, and do as much of it as this tick allows."""
    if key not in state.chores:
        state.chores[key] = steps
        run(state)


def run(state: State) -> None:
    """Continue with the oldest chores."""
    chores = state.chores
    while chores and state.spare > 0:
        key = next(iter(chores))
        if next(chores[key], True):  # a step gives None
            del chores[key]
