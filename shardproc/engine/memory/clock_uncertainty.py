"""Whether to trust the clock where a wrong one would delete wanted data."""

from __future__ import annotations

BELIEVED_MS = 3_600_000  # after a jump forward: time enough for an operator, or NTP, to correct the clock
SMALL_MS = 60_000  # the rest of a jump that makes no difference to any retention


class ClockUncertainty:
    """As long as the clock may be wrong, nothing is removed because of its age alone: ages are measured
    without the jump."""

    __slots__ = ("_since", "_until", "ms")

    def __init__(self) -> None:
        self.ms = 0  # how far the clock may be ahead
        self._since = 0  # its first reading after the jump
        self._until = 0

    def add(self, ms: int, now: int) -> None:
        """Record that the clock was set forward."""
        self.ms += ms
        self._since, self._until = now, now + BELIEVED_MS

    def take(self, ms: int, now: int) -> None:
        """Record that the clock was set back."""
        left = self.ms - ms
        self.ms = left if left > SMALL_MS else 0
        self._since, self._until = min(self._since, now), min(self._until, now + BELIEVED_MS)

    def time(self, now: int) -> int:
        """The time to use for the age of ended jobs."""
        if self.ms and now >= self._until:
            self.ms = 0
        return now - self.ms

    def age(self, at: int, now: int) -> int:
        """The age of something that happened at ``at``."""
        return (now if at >= self._since else self.time(now)) - at
