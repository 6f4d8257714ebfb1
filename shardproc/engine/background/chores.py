"""Work that no command asked for, so much a tick: what is due, and what somebody left behind.

A chore is a generator.  It takes from ``state.spare`` what it does and yields when that is used up; the next
tick goes on with it.  Between the two anything may have happened to its jobs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..state import State

LOSS = 5  # what ending an attempt costs, in such jobs


def begin(state: State, key: object, steps: Iterator[None]) -> None:
    """Enter a chore, unless there is one of that key, and do what this tick has time for."""
    if key not in state.chores:
        state.chores[key] = steps
        run(state)


def run(state: State) -> None:
    """Go on with the oldest chores."""
    chores = state.chores
    while chores and state.spare > 0:
        key = next(iter(chores))
        if next(chores[key], True):  # a step gives None
            del chores[key]
