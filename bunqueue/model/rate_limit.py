"""A rate limit in commands per minute.

Pure: the time comes from the caller.
"""

from __future__ import annotations

from collections import deque

_TICKS_A_SECOND = 10  # the resolution of the sliding window
_WINDOW = 60 * _TICKS_A_SECOND  # so a client needs at most 601 numbers, whatever its limit


class RateLimit:
    """At most ``limit`` commands within any minute."""

    __slots__ = ("_counts", "_left")

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._counts: deque[list[int]] = deque()  # [tick, commands in it], oldest first

    def admit(self, now_s: float) -> bool:
        """Count one command, unless it exceeds the limit.  ``now_s`` must never decrease."""
        counts, tick = self._counts, int(now_s * _TICKS_A_SECOND)
        while counts and counts[0][0] < tick - _WINDOW:
            self._left += counts.popleft()[1]
        if not self._left:
            return False
        self._left -= 1
        if counts and counts[-1][0] == tick:
            counts[-1][1] += 1
        else:
            counts.append([tick, 1])
        return True
