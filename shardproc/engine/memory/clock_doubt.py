"""Whether the clock is to be believed where a wrong one would delete what is wanted."""

from __future__ import annotations

BELIEVED_MS = 3_600_000  # after a jump forward: time enough for somebody, or NTP, to set the clock right
SMALL_MS = 60_000  # what is left of a jump and makes no difference to any retention


class Doubt:
    """What is kept for a time is not removed for its age as long as the clock may be wrong: its age is taken
    without the jump."""

    __slots__ = ("_since", "_until", "ms")

    def __init__(self) -> None:
        self.ms = 0  # by which the clock may be ahead
        self._since = 0  # what it showed first after the jump
        self._until = 0

    def add(self, ms: int, now: int) -> None:
        """The clock has been set forward."""
        self.ms += ms
        self._since, self._until = now, now + BELIEVED_MS

    def take(self, ms: int, now: int) -> None:
        """The clock has been set back."""
        left = self.ms - ms
        self.ms = left if left > SMALL_MS else 0
        self._since, self._until = min(self._since, now), min(self._until, now + BELIEVED_MS)

    def time(self, now: int) -> int:
        """The time by which the age of what has ended is measured."""
        if self.ms and now >= self._until:
            self.ms = 0
        return now - self.ms

    def age(self, at: int, now: int) -> int:
        """How long ago something happened."""
        return (now if at >= self._since else self.time(now)) - at
