"""Counters of a shard since it started, and their rates."""

from __future__ import annotations

from collections import deque

SAMPLE_MS = 1_000  # between two samples of the totals


class Totals:
    """Counted since the shard started."""

    __slots__ = (
        "completed",
        "cron_missed",
        "dropped",
        "failed",
        "pulled",
        "pushed",
        "steps",
    )

    def __init__(self) -> None:
        self.pushed = self.pulled = self.completed = self.failed = 0
        self.steps = 0  # one count for each change of a recorded step
        self.cron_missed = 0  # times of schedules that passed during the server's downtime
        self.dropped = [0, 0]  # dropped dead letters: too many, too old

    def counted(self) -> tuple[int, int, int, int]:
        """Pushed, pulled, completed, failed."""
        return self.pushed, self.pulled, self.completed, self.failed


class Rates:
    """Totals of the last seconds, sampled at most once a second."""

    WINDOW_MS = 10_000  # the window for rates

    __slots__ = ("_samples", "next_at")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque()  # (at, totals)
        self.next_at = 0  # the earliest time of the next sample

    def sample(self, now: int, totals: Totals) -> None:
        """Take a sample.  Call it at ``next_at`` or later."""
        samples, self.next_at = self._samples, now + SAMPLE_MS
        samples.append((now, totals.counted()))
        while len(samples) > 1 and now - samples[1][0] >= self.WINDOW_MS:
            samples.popleft()

    def per_second(self, now: int, totals: Totals) -> list[float]:
        """The counters as rates per second over the window."""
        counted = totals.counted()
        at, before = self._samples[0] if self._samples else (now, counted)
        seconds = max(now - at, 1000) / 1000
        return [(after - then) / seconds for after, then in zip(counted, before, strict=True)]
