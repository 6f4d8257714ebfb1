"""Waiting for space in a full queue: how often to retry a push, and when to give up."""

from __future__ import annotations

import random
import time

FIRST_S, LAST_S = (
    0.02,
    1.0,
)  # seconds between two attempts, which cost the server little


class Patience:
    """The retry schedule of one push that a full queue has refused."""

    def __init__(self, most_s: float) -> None:
        self._end = time.monotonic() + most_s
        self._pause = FIRST_S

    def pause(self) -> float | None:
        """Seconds until the next attempt; None: give up."""
        left = self._end - time.monotonic()
        if left <= 0:
            return None
        pause, self._pause = self._pause * random.uniform(0.5, 1), min(2 * self._pause, LAST_S)
        return min(pause, left)
