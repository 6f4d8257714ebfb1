"""Waiting for space in a full queue: how often a push is tried again, and when to give up."""

from __future__ import annotations

import random
import time

FIRST_S, LAST_S = (
    0.02,
    1.0,
)  # between two tries, which cost the server little


class Patience:
    """The patience of one push, which a full queue has refused."""

    def __init__(self, most_s: float) -> None:
        self._end = time.monotonic() + most_s
        self._pause = FIRST_S

    def pause(self) -> float | None:
        """Seconds until the next try; None: there is none."""
        left = self._end - time.monotonic()
        if left <= 0:
            return None
        pause, self._pause = self._pause * random.uniform(0.5, 1), min(2 * self._pause, LAST_S)
        return min(pause, left)
