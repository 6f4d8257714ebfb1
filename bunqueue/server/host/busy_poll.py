"""Polls briefly before sleeping, where that is worth it.

Waking a sleeping process takes 20 to 50 us, and one command wakes four processes.  For a client that adds
jobs one at a time, this is half of the latency.  So after a prompt follow-up request, a process polls briefly
before it sleeps; otherwise it sleeps at once.  While it polls, it yields the core to any other process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SMALL = 2048  # bytes; a larger read is bulk work, so latency matters less and others need the core
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class LoopPoll:
    """Keeps an event loop from sleeping: polls for ``window_us`` after each read that came within
    ``window_us`` of the read before."""

    def __init__(self, window_us: int) -> None:
        self._window = window_us * 1000
        self._read_at = self._until = self._seen = 0  # ns
        self._runs = False

    def on_read(self, size: int) -> None:
        """Record that ``size`` bytes were read."""
        if size > SMALL:
            return
        now = time.monotonic_ns()
        if now - self._read_at < self._window:
            self._until = now + self._window
            if not self._runs:
                from asyncio import get_running_loop  # a shard has no event loop, and need not load one

                self._runs = True
                self._call_soon = get_running_loop().call_soon
                self._call_soon(self._poll)
        self._read_at = now

    def _poll(self) -> None:
        if time.monotonic_ns() >= self._until:
            self._runs = False
            return
        if self._until == self._seen:  # nothing has come since the last poll
            give_way()
        self._seen = self._until
        self._call_soon(self._poll)  # makes the loop poll without waiting
