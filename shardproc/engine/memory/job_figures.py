"""What the jobs of one name in a queue have done since the shard started: counts, and histograms of times.

The figures of a queue, and of the shard, are sums of these, so that a job is counted in one place.  Bounded,
as clients choose names: jobs beyond the bounds share figures, under the name OTHER.
"""

from __future__ import annotations

from collections.abc import Iterable

STEPS = 24  # of a histogram of times: each twice the previous one, from 1 ms to more than two hours
OTHER = "other"
MAX_NAMES = 50  # of a queue with figures of their own
MAX_OF_SHARD = 2_000  # names in all queues with figures of their own: 1 KiB each


class JobFigures:
    """Figures of jobs of one name.  An attempt that completed its job or failed counts in ``waits`` (until it
    was pulled) and ``runs`` (from then on), a job that completed or failed for good in ``totals`` (since it
    was added)."""

    __slots__ = (
        "completed",
        "dead",
        "failed",
        "pushed",
        "retried",
        "runs",
        "runs_ms",
        "started",
        "totals",
        "totals_ms",
        "waits",
        "waits_ms",
    )

    def __init__(self) -> None:
        self.pushed = self.started = self.completed = self.failed = self.retried = self.dead = 0
        # Up to 1, 2, 4, ... ms, and longer.
        self.waits, self.runs, self.totals = ([0] * (STEPS + 1) for _ in range(3))
        self.waits_ms = self.runs_ms = self.totals_ms = 0

    def attempt(self, waited_ms: int, worked_ms: int) -> None:
        """Count the times of an attempt that has ended."""
        self.waits_ms += waited_ms
        self.runs_ms += worked_ms
        # The index of the smallest power of two that is not less.
        waits = (waited_ms - 1).bit_length() if waited_ms > 0 else 0
        runs = (worked_ms - 1).bit_length() if worked_ms > 0 else 0
        self.waits[waits if waits < STEPS else STEPS] += 1
        self.runs[runs if runs < STEPS else STEPS] += 1

    def ended(self, total_ms: int) -> None:
        """Count the time of a job that has ended."""
        self.totals_ms += total_ms
        totals = (total_ms - 1).bit_length() if total_ms > 0 else 0
        self.totals[totals if totals < STEPS else STEPS] += 1

    def add(self, other: JobFigures) -> None:
        """Add other figures to these."""
        for name in ("pushed", "started", "completed", "failed", "retried", "dead"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("waits_ms", "runs_ms", "totals_ms"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("waits", "runs", "totals"):
            both = zip(getattr(self, name), getattr(other, name), strict=True)
            setattr(self, name, [one + another for one, another in both])


class AllFigures:
    """The figures of all queues of a shard."""

    __slots__ = ("count", "gone")

    def __init__(self) -> None:
        self.count = 0  # names with figures of their own, in all queues
        self.gone = JobFigures()  # of queues that are gone, and of names beyond the bounds of the shard

    def new(self, names: dict[str, JobFigures], name: str) -> JobFigures:
        """The figures for a name that has none in its queue."""
        if len(names) >= MAX_NAMES:
            name = OTHER
            if OTHER in names:
                return names[OTHER]
        elif self.count >= MAX_OF_SHARD:
            return self.gone
        self.count += 1
        names[name] = found = JobFigures()
        return found

    def drop(self, names: dict[str, JobFigures]) -> None:
        """Keep the sums of a queue that goes."""
        self.count -= len(names)
        for each in names.values():
            self.gone.add(each)


def total(figures: Iterable[JobFigures]) -> JobFigures:
    """The sum of figures."""
    found = JobFigures()
    for each in figures:
        found.add(each)
    return found


def by_bound(counts: list[int]) -> dict[str, int]:
    """A histogram with the upper bounds of its steps in ms."""
    bounds = [*(str(1 << step) for step in range(STEPS)), "inf"]
    return dict(zip(bounds, counts, strict=True))
