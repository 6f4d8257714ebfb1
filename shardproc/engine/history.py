"""Jobs a minute of every queue, for the last day; not stored."""

from __future__ import annotations

from collections import deque

from .state import QueueState, State

MINUTE_MS = 60_000
MINUTES = 24 * 60  # that are remembered


class History:
    """Completed and failed jobs of one queue by minute, the newest first."""

    __slots__ = ("completed", "failed", "told_completed", "told_failed")

    def __init__(self) -> None:
        self.completed: deque[int] = deque(maxlen=MINUTES)
        self.failed: deque[int] = deque(maxlen=MINUTES)
        self.told_completed = self.told_failed = 0  # totals of the queue that are in there


def book(state: State) -> None:
    """Close the minutes that have passed; called every few seconds."""
    minute = state.now // MINUTE_MS
    passed, state.minute = min(minute - state.minute, MINUTES), max(minute, state.minute)
    if passed > 0:
        for queue in state.queues.values():
            _close(queue, passed)


def _close(queue: QueueState, passed: int) -> None:
    history = queue.history
    if history is None:
        if not queue.total_completed and not queue.total_failed:
            return
        history = queue.history = History()
    history.completed.appendleft(queue.total_completed - history.told_completed)
    history.failed.appendleft(queue.total_failed - history.told_failed)
    history.told_completed, history.told_failed = queue.total_completed, queue.total_failed
    idle = [0] * (passed - 1)
    history.completed.extendleft(idle)
    history.failed.extendleft(idle)


def by_minute(queue: QueueState, what: str) -> list[int]:
    """Jobs a minute, the newest minute, which is still running, first."""
    completed = what == "completed"
    total = queue.total_completed if completed else queue.total_failed
    history = queue.history
    if history is None:
        return [total] if total else []
    told = history.told_completed if completed else history.told_failed
    return [total - told, *(history.completed if completed else history.failed)]
