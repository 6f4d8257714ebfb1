"""Counters of a shard since it started."""

from __future__ import annotations

STEPS = 24  # of a histogram of times: each twice the previous one, from 1 ms to more than two hours


class Totals:
    """Counted since the shard started."""

    __slots__ = (
        "completed",
        "cron_missed",
        "dropped",
        "failed",
        "pulled",
        "pushed",
        "runs",
        "steps",
        "waited_ms",
        "waits",
        "worked_ms",
    )

    def __init__(self) -> None:
        self.pushed = self.pulled = self.completed = self.failed = 0
        self.steps = 0  # one count for each change of a recorded step
        self.cron_missed = 0  # times of schedules that passed during the server's downtime
        self.dropped = [0, 0]  # dropped dead letters: too many, too old
        self.waited_ms = self.worked_ms = 0  # of all completed jobs: until they were pulled, and afterwards
        self.waits, self.runs = [0] * (STEPS + 1), [0] * (STEPS + 1)  # of these: up to 1, 2, 4, ... ms

    def completes(self, waited_ms: int, worked_ms: int) -> None:
        """Count the times of a job that has completed."""
        self.waited_ms += waited_ms
        self.worked_ms += worked_ms
        # The index of the smallest power of two that is not less.
        self.waits[min((waited_ms - 1).bit_length(), STEPS) if waited_ms > 0 else 0] += 1
        self.runs[min((worked_ms - 1).bit_length(), STEPS) if worked_ms > 0 else 0] += 1

    @staticmethod
    def by_bound(counts: list[int]) -> dict[str, int]:
        """A histogram with the upper bounds of its steps in ms."""
        bounds = [*(str(1 << step) for step in range(STEPS)), "inf"]
        return dict(zip(bounds, counts, strict=True))

    def counted(self) -> tuple[int, int, int, int]:
        """Pushed, pulled, completed, failed."""
        return self.pushed, self.pulled, self.completed, self.failed

    def mean(self, total_ms: int) -> float:
        """The average of such a time over all completed jobs."""
        return total_ms / self.completed if self.completed else 0.0
