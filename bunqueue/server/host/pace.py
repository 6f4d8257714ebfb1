"""How fast a process works through bulk commands while other clients send one command at a time.

The router and each shard run a command at once if its client has nothing else queued.  In between they work
through the queued commands in slices.  Without a pause between slices, a client that sends one command at a
time would wait for a slice each time, in each process.  It would also wait for a processor: a server's
processes, its clients and their workers often share few.  So while there is a client of that kind, a pause
follows each slice; a slice that could not be cut short gets a proportionally longer pause.  The pause ends as
soon as no other client is asking.
"""

from __future__ import annotations

from collections.abc import Hashable
from time import monotonic, thread_time

SLICE_S = 0.0005  # of work on the queued commands of one connection
AT_ONCE_S = 0.002  # of work for a connection with nothing queued; then the rest of its commands is queued
PAUSE = 3.0  # the pause after a slice, as a multiple of the time worked
MOST_S = 0.1  # the longest pause
QUIET_S = 0.002  # without a command ends a pause: by then the client has had its turn on a processor
LATELY_S = 0.02  # a client that sent a command this recently is taken to be still sending


class Slice:
    """One slice of work, measured in processor time: the time that other processes take does not count."""

    __slots__ = ("_seconds", "_worked", "begun_at", "until")

    def __init__(self, seconds: float = SLICE_S) -> None:
        self._seconds = seconds
        self._worked = thread_time()
        self.begun_at = monotonic()
        self.until = self.begun_at + seconds
        """The earliest time when it may be over, by the monotonic clock."""

    @property
    def is_over(self) -> bool:
        """Whether it is the turn of others now.  Cheap, because it is checked after each command."""
        now = monotonic()
        if now < self.until:
            return False
        left = self._seconds - self.worked_s
        self.until = now + left
        return left <= 0

    @property
    def worked_s(self) -> float:
        return thread_time() - self._worked


class Pace:
    """When the next slice may begin."""

    def __init__(self) -> None:
        # The last client with nothing queued that sent a command, and when; and the last other client before.
        self._last: Hashable = None
        self._other: Hashable = None
        self._last_at = self._other_at = 0.0
        self._worker: Hashable = None  # the client of the last slice
        self._worked_at = 0.0  # when that slice ended
        self._pause_ends = 0.0  # at the latest; 0: no pause

    def asked(self, who: Hashable) -> None:
        """Record a command from a client that has nothing queued."""
        if who != self._last:
            self._other, self._other_at = self._last, self._last_at
            self._last = who
        self._last_at = monotonic()

    def worked(self, work: Slice, who: Hashable) -> None:
        """Record the end of a slice of a client's queued commands.  No other client was read during it."""
        self._worker, self._worked_at = who, monotonic()
        rests = work.begun_at - self._others_asked_at < LATELY_S
        self._pause_ends = self._worked_at + min(PAUSE * work.worked_s, MOST_S) if rests else 0.0

    @property
    def pause_s(self) -> float:
        """Seconds until the next slice; 0: it may begin now."""
        if not self._pause_ends:
            return 0.0
        quiet_at = max(self._worked_at, self._others_asked_at) + QUIET_S
        return max(0.0, min(self._pause_ends, quiet_at) - monotonic())

    @property
    def _others_asked_at(self) -> float:
        return self._other_at if self._worker == self._last else self._last_at
