"""Jobs per minute of every queue, for the last day; not stored."""

from __future__ import annotations

from collections import deque

from ..state import QueueState, State
from .clock_correction import SetBack

MINUTE_MS = 60_000
MINUTES = 24 * 60  # kept in memory


class History:
    """Completed and failed jobs of one queue per minute.  Most minutes of most queues are idle, and cost
    nothing."""

    __slots__ = ("counted_completed", "counted_failed", "minutes", "since")

    def __init__(self, since: int) -> None:
        self.since = since  # the first known minute
        self.minutes: deque[tuple[int, int, int]] = deque()  # (minute, completed, failed), oldest first
        self.counted_completed = self.counted_failed = 0  # totals of the queue that are included


def book(state: State) -> None:
    """Close the minute that has passed; called every few seconds."""
    minute, closed = state.now // MINUTE_MS, state.minute
    if minute > closed:
        state.minute = minute
        for queue in state.queues.values():
            _close(queue, closed, minute - MINUTES)


def _close(queue: QueueState, minute: int, oldest: int) -> None:
    history = queue.history
    if history is None:
        if not queue.total_completed and not queue.total_failed:
            return
        history = queue.history = History(minute)
    completed = queue.total_completed - history.counted_completed
    failed = queue.total_failed - history.counted_failed
    if completed or failed:
        history.minutes.append((minute, completed, failed))
        history.counted_completed, history.counted_failed = queue.total_completed, queue.total_failed
    while history.minutes and history.minutes[0][0] < oldest:
        history.minutes.popleft()


def set_back(state: State, back: SetBack) -> None:
    """Move counts recorded ahead of time to the minutes in which the jobs ended."""
    minute = back.now // MINUTE_MS
    ahead, state.minute = state.minute - minute, min(state.minute, minute)
    if ahead <= 0:
        return
    for queue in state.queues.values():
        history = queue.history
        if history is None:
            continue
        booked: dict[int, tuple[int, int]] = {}
        for at, completed, failed in history.minutes:
            at -= ahead if at >= minute else 0
            before = booked.get(at, (0, 0))
            booked[at] = (before[0] + completed, before[1] + failed)
        history.minutes = deque((at, *booked[at]) for at in sorted(booked))
        history.since = min(history.since, minute)


def lately(state: State, queue: QueueState, span: int) -> tuple[float, float]:
    """Completed and failed jobs per minute, over the current minute and up to ``span`` before it.  Takes a
    few steps, whatever the queue has done before."""
    history = queue.history
    running = max(state.now - state.minute * MINUTE_MS, 1000) / MINUTE_MS
    if history is None:
        return queue.total_completed / running, queue.total_failed / running
    completed = queue.total_completed - history.counted_completed
    failed = queue.total_failed - history.counted_failed
    span = min(span, state.minute - history.since)
    for minute, *done in reversed(history.minutes):
        if minute < state.minute - span:
            break
        completed += done[0]
        failed += done[1]
    return completed / (running + span), failed / (running + span)


def by_minute(state: State, queue: QueueState, what: str) -> list[int]:
    """Jobs per minute, newest first; the newest minute is still running."""
    completed = what == "completed"
    total = queue.total_completed if completed else queue.total_failed
    history = queue.history
    if history is None:
        return [total] if total else []
    counts = [0] * (1 + min(state.minute - history.since, MINUTES))
    counts[0] = total - (history.counted_completed if completed else history.counted_failed)
    for minute, *done in history.minutes:
        counts[state.minute - minute] = done[0 if completed else 1]
    return counts
