"""Looking out for a moment before going to sleep, where that is worth it.

Waking a sleeping process takes 20 to 50 us, and a command wakes up four: half of all that somebody who
adds jobs one at a time waits for.  So who was asked again at once goes on looking for a moment; who was
not, sleeps.  While they look, they give way to every other process that wants the core.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

SMALL = 2048  # bytes; who reads more at once has no single command to hurry for, and others need the core
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class LoopPoll:
    """Keeps an event loop from sleeping: it polls for ``window_us`` after what it hears, if that came within
    as long a time after what it heard before."""

    def __init__(self, window_us: int) -> None:
        self._window = window_us * 1000
        self._heard_at = self._until = self._seen = 0  # ns
        self._runs = False

    def heard(self, size: int) -> None:
        """So many bytes were read."""
        if size > SMALL:
            return
        now = time.monotonic_ns()
        if now - self._heard_at < self._window:
            self._until = now + self._window
            if not self._runs:
                self._runs = True
                self._call_soon = asyncio.get_running_loop().call_soon
                self._call_soon(self._look)
        self._heard_at = now

    def _look(self) -> None:
        if time.monotonic_ns() >= self._until:
            self._runs = False
            return
        if self._until == self._seen:  # nothing came since the last look
            give_way()
        self._seen = self._until
        self._call_soon(self._look)  # which has the loop poll without waiting
