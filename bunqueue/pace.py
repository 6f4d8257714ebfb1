"""How fast a process works off what is queued there in bulk, while others ask one thing after another.

The router and each shard carry out at once what somebody asks who has nothing queued.  Between that they
work off what has been queued, in slices.  Without a rest between these, who asks one thing at a time would
wait for a slice each time, in each process, and for a processor: the processes of a server, its clients and
their workers often share few.  So while there is such a client, each slice is followed by a rest; and a
slice that could not be cut, by one that is as much longer.  It ends as soon as nobody asks any more.
"""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic, thread_time

SLICE_S = 0.0005  # of what one connection has queued
AT_ONCE_S = 0.002  # of a connection that has nothing queued, before the rest of what it sent is
REST = 3.0  # times what was worked
MOST_S = 0.1  # of one rest
QUIET_S = 0.002  # without a question end a rest: who asks one thing after another has a processor by then
LATELY_S = 0.02  # who asked, or had something queued, does so still


class Slice:
    """One slice of work.  Its time is that of the processor: nobody is to blame for what others took."""

    __slots__ = ("_seconds", "_until", "_worked", "begun_at")

    def __init__(self, seconds: float = SLICE_S) -> None:
        self._seconds = seconds
        self._worked = thread_time()
        self.begun_at = monotonic()
        self._until = self.begun_at + seconds

    @property
    def is_over(self) -> bool:
        """Whether others have their turn now.  Cheap: it is asked after each command."""
        now = monotonic()
        if now < self._until:
            return False
        left = self._seconds - self.worked_s
        self._until = now + left
        return left <= 0

    @property
    def worked_s(self) -> float:
        return thread_time() - self._worked


class Pace:
    """When the next slice may begin."""

    def __init__(self) -> None:
        # Who asked last though nothing of his is queued, and when; and the last one before who is another.
        self._last: Hashable = None
        self._other: Hashable = None
        self._last_at = self._other_at = 0.0
        self._worker: Hashable = None  # whose slice was the last one
        self._worked_at = 0.0  # until then
        self._rest_ends = 0.0  # at the latest; 0: there is none

    def asked(self, who: Hashable) -> None:
        """Somebody asked who has nothing queued."""
        if who != self._last:
            self._other, self._other_at = self._last, self._last_at
            self._last = who
        self._last_at = monotonic()

    def worked(self, work: Slice, who: Hashable) -> None:
        """A slice of what somebody has queued has ended.  If that was long, nobody was heard meanwhile."""
        self._worker, self._worked_at = who, monotonic()
        rests = work.begun_at - self._others_asked_at < LATELY_S
        self._rest_ends = self._worked_at + min(REST * work.worked_s, MOST_S) if rests else 0.0

    @property
    def rest_s(self) -> float:
        """Until the next slice; 0: it may begin."""
        if not self._rest_ends:
            return 0.0
        quiet_at = max(self._worked_at, self._others_asked_at) + QUIET_S
        return max(0.0, min(self._rest_ends, quiet_at) - monotonic())

    @property
    def _others_asked_at(self) -> float:
        return self._other_at if self._worker == self._last else self._last_at
