"""The time of a shard: epoch ms that never stand still, and go back only when the shard agrees to it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec import Struct

from bunqueue.settings import BOOT_VARIABLE

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
JUMP_MS = 2_000  # a smaller step of the wall clock is not worth a line in the log; leap seconds are below
_STOPPED_NS = 100_000_000  # a process that was stopped for so long between two readings tries again later

if hasattr(time, "CLOCK_BOOTTIME"):

    def _elapsed_ns() -> int:
        """A clock that nobody sets.  It runs on while the machine sleeps, so that waking up is no jump."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:
    _elapsed_ns = time.monotonic_ns


def _offset_ns() -> int | None:
    """Of the wall clock from the other one; None when the process was stopped while it looked."""
    begin = _elapsed_ns()
    wall = time.time_ns()
    elapsed = _elapsed_ns()
    return None if elapsed - begin > _STOPPED_NS else wall - elapsed


def _boot_id() -> str:
    """Which start of the machine this is; "" where that cannot be known."""
    try:
        return BOOT_FILE.read_text().strip()
    except OSError:  # a systemd unit with ProcSubset=pid hides it, and gives it as a variable instead
        return _dashed(os.environ.get(BOOT_VARIABLE, ""))


def _dashed(boot: str) -> str:
    """The boot id as the kernel writes it; "" if the text is not one."""
    try:
        return str(UUID(boot))
    except ValueError:
        return ""


class Mark(Struct):
    """Both clocks at one moment, as a shard's file remembers them.  Times in ms."""

    wall: int
    elapsed: int = 0
    boot: str = ""
    doubt: int = 0  # by which the wall clock may be ahead


class Clock:
    """Wall-clock time carried by the clock that nobody sets.

    When the wall clock is set forward, this one follows at once. When it is set back, this one runs on until
    `look` has told the shard of it, which then brings its times back by as much. A step back of less than
    JUMP_MS is never followed: this clock is ahead by that until the next larger step, or the next start.
    """

    __slots__ = ("_offset", "_told")

    def __init__(self) -> None:
        offset = None
        while offset is None:
            offset = _offset_ns()
        self._offset = self._told = offset

    def now_ms(self) -> int:
        # The wall clock first: a process that is stopped between the two readings then sees an offset
        # that is too small, which is not taken; the other way round it would be ahead from then on.
        wall = time.time_ns()
        elapsed = _elapsed_ns()
        offset = wall - elapsed
        if offset > self._offset:
            self._offset = offset
        return (elapsed + self._offset) // 1_000_000

    def look(self) -> int:
        """By how many ms the wall clock was set since the last look, negative for back; 0 for less than
        JUMP_MS.  From here on `now_ms` agrees with the wall clock."""
        offset = _offset_ns()
        if offset is None:
            return 0
        behind = (self._offset - offset) // 1_000_000
        if behind > JUMP_MS:
            self._offset = self._told = offset
            return -behind
        self._offset = max(offset, self._offset)
        ahead = (self._offset - self._told) // 1_000_000
        self._told = self._offset
        return ahead if ahead > JUMP_MS else 0

    def mark(self, doubt: int) -> str:
        """Both clocks now, to be kept on disk; "" when there is nothing to compare with."""
        return msgspec.json.encode(self._mark(doubt)).decode()

    def _mark(self, doubt: int = 0) -> Mark:
        elapsed = _elapsed_ns()
        wall = (elapsed + self._offset) // 1_000_000
        return Mark(wall, elapsed // 1_000_000, _boot_id(), doubt)

    def set_since(self, mark: Mark) -> int | None:
        """By how many ms the wall clock was set since ``mark``; None: not to be known, as the machine was
        restarted, or is another one."""
        now = self._mark()
        if not mark.boot or mark.boot != now.boot:
            return None
        return (now.wall - now.elapsed) - (mark.wall - mark.elapsed)
