"""The wall clock was ahead and has been set right: which times were taken from it, and what they should be.

A time at which something happened cannot lie in the future.  One that lies after the true present, and not
after what the wrong clock last showed, was taken from the wrong clock.  So was what was reckoned from it: the
end of a delay, of a limit, of a lock.  Both are moved back by as much as the clock was ahead.  What was
reckoned from a true time stays, and so does a time of a client's own that no clock here has shown.
"""

from __future__ import annotations

from typing import NamedTuple


class SetBack(NamedTuple):
    """Times in epoch ms, ``by`` in ms."""

    now: int  # the true present
    last: int  # what the wrong clock showed last
    by: int  # how far it was ahead

    def is_wrong(self, at: int) -> bool:
        """Whether a time at which something happened was taken from the wrong clock."""
        return self.now < at <= self.last

    def moment(self, at: int) -> int:
        """When it truly happened."""
        return min(at - self.by, self.now) if self.is_wrong(at) else at

    def end(self, at: int, since: int) -> int:
        """When what began at ``since`` (as it was noted) truly ends."""
        return at - self.by if self.is_wrong(since) else at


class Pending(NamedTuple):
    """A move that goes on step by step: what began before these numbers may have times of the wrong clock."""

    back: SetBack
    jobs: int  # number of the first job after it
    events: int  # number of the first event after it
