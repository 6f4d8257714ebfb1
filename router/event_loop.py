"""The event loop of a router's process, how late it runs, and the settings of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

INTERVAL_S = 0.25
REMEMBERED = 60  # measurements: a quarter of a minute, the usual interval of a scrape


def event_loop() -> Callable[[Coroutine[Any, Any, int]], int]:
    """The function that runs a program: that of uvloop, or else of asyncio."""
    try:
        import uvloop  # does not exist for every platform
    except ImportError:
        return asyncio.run
    return uvloop.run


def calm_collector() -> None:
    """Exempt the present objects from garbage collection, and make collections rare: reference counting frees
    nearly everything that comes and goes."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class LoopLag:
    """The lag of the loop, in seconds: what one client's work costs all others."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=REMEMBERED)

    async def measure(self) -> None:
        """Sleep, and measure how late it wakes up; for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._lags.append(max(0.0, loop.time() - due))

    def longest(self) -> float:
        """The longest of the last measurements."""
        return max(self._lags, default=0.0)
