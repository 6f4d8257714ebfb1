"""Counters of a shard since it started."""

from __future__ import annotations


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
