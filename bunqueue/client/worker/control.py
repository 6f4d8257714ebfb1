"""What of a worker may change while it runs: whether it takes jobs, and how many run at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Control:
    """Of one worker, over all its runs. Any thread may read and write it."""

    concurrency: int
    paused: bool = False
    wish: int = 0
    """The number of the last request from elsewhere that was carried out."""
