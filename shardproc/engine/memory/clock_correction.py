"""The wall clock was ahead and has been corrected: which times came from it, and what they should be.

The time of an event cannot be in the future.  If such a time is after the true present, but not after the
last reading of the wrong clock, it came from the wrong clock.  So did any time derived from it: the end of a
delay, of a limit, of a lock.  Both are moved back by the amount that the clock was ahead.  A time derived
from a true time stays, and so does a time set by a client that no clock here has shown.
"""

from __future__ import annotations

from typing import NamedTuple


class SetBack(NamedTuple):
    """Times in epoch ms, ``by`` in ms."""

    now: int  # the true present
    last: int  # the last reading of the wrong clock
    by: int  # the amount that it was ahead

    def is_wrong(self, at: int) -> bool:
        """Whether the time of an event came from the wrong clock."""
        return self.now < at <= self.last

    def moment(self, at: int) -> int:
        """The true time of an event."""
        return min(at - self.by, self.now) if self.is_wrong(at) else at

    def end(self, at: int, since: int) -> int:
        """The true end of a period that began at ``since``, as recorded."""
        return at - self.by if self.is_wrong(since) else at


class Pending(NamedTuple):
    """A correction that proceeds step by step: anything that began before these numbers may have wrong
    times."""

    back: SetBack
    jobs: int  # number of the first job after it
    events: int  # number of the first event after it
