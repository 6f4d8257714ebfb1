"""The time of a shard: epoch ms that never stand still and never go back."""

from __future__ import annotations

import time


class Clock:
    """Wall-clock time carried by the monotonic clock.

    When the wall clock is set back, this one runs on by the monotonic clock, so that nobody waits for
    an hour to pass twice; when it is set forward, or the machine slept, this one follows at once.
    """

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        # The wall clock first: a process that is stopped between the two readings then sees an offset
        # that is too small, which is not taken; the other way round it would be ahead from then on.
        wall = time.time_ns()
        monotonic = time.monotonic_ns()
        offset = wall - monotonic
        if offset > self._offset:
            self._offset = offset
        return (monotonic + self._offset) // 1_000_000
