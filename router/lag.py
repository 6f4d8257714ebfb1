"""The lag of the event loop: what one client's work costs all others, in seconds."""

from __future__ import annotations

import asyncio
from collections import deque

INTERVAL_S = 0.25
REMEMBERED = 60  # measurements: a quarter of a minute, the usual interval of a scrape


class LoopLag:
    """Sleeps, and measures how late it wakes up."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=REMEMBERED)

    async def measure(self) -> None:
        """Measure for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._lags.append(max(0.0, loop.time() - due))

    def longest(self) -> float:
        """The longest of the last measurements."""
        return max(self._lags, default=0.0)
