"""The settings of a worker that may change while it runs: paused or not, and how many jobs run at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Control:
    """Belongs to one worker, across all its runs. Any thread may read and write it."""

    concurrency: int
    paused: bool = False
    request: int = 0
    """The number of the last remote request that was carried out."""
