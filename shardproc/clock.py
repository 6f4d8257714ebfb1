"""The time of a shard: epoch ms that never pause, and go back only when the shard agrees to it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec import Struct

from bunqueue.server.settings.settings import BOOT_VARIABLE

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
JUMP_MS = 2_000  # a smaller step of the wall clock is not worth a log line; leap seconds are smaller
_STOPPED_NS = 100_000_000  # a process paused for this long between two readings tries again later

if hasattr(time, "CLOCK_BOOTTIME"):

    def _elapsed_ns() -> int:
        """A clock that cannot be set. It runs while the machine sleeps, so waking up is not a jump."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:
    _elapsed_ns = time.monotonic_ns


def _offset_ns() -> int | None:
    """The wall clock's offset from the other clock; None if the process was paused while reading them."""
    begin = _elapsed_ns()
    wall = time.time_ns()
    elapsed = _elapsed_ns()
    return None if elapsed - begin > _STOPPED_NS else wall - elapsed


def _boot_id() -> str:
    """Identifies the start of the machine; "" where that is unknown."""
    try:
        return BOOT_FILE.read_text().strip()
    except OSError:  # a systemd unit with ProcSubset=pid hides it, and passes it as a variable instead
        return _dashed(os.environ.get(BOOT_VARIABLE, ""))


def _dashed(boot: str) -> str:
    """The boot id as the kernel writes it; "" if the text is not one."""
    try:
        return str(UUID(boot))
    except ValueError:
        return ""


class Mark(Struct):
    """Both clocks at one moment, as a shard's file keeps them. Times in ms."""

    wall: int
    elapsed: int = 0
    boot: str = ""
    uncertainty: int = msgspec.field(name="doubt", default=0)  # ms by which the wall clock may be ahead


class Clock:
    """Wall-clock time carried by the clock that cannot be set.

    When the wall clock is set forward, this one follows at once. When it is set back, this one keeps running
    until `check_jump` has reported that to the shard, which then shifts its times back by the same amount. A
    step back of less than JUMP_MS is never followed: this clock stays ahead by that until the next larger
    step, or the next start.
    """

    __slots__ = ("_offset", "_reported")

    def __init__(self) -> None:
        offset = None
        while offset is None:
            offset = _offset_ns()
        self._offset = self._reported = offset

    def now_ms(self) -> int:
        # The wall clock first: a pause of the process between the two readings then gives an offset that is
        # too small, which is ignored. In the other order this clock would be ahead after that.
        wall = time.time_ns()
        elapsed = _elapsed_ns()
        offset = wall - elapsed
        if offset > self._offset:
            self._offset = offset
        return (elapsed + self._offset) // 1_000_000

    def check_jump(self) -> int:
        """By how many ms the wall clock was set since the last call, negative for back; 0 for less than
        JUMP_MS. After the call, `now_ms` agrees with the wall clock."""
        offset = _offset_ns()
        if offset is None:
            return 0
        behind = (self._offset - offset) // 1_000_000
        if behind > JUMP_MS:
            self._offset = self._reported = offset
            return -behind
        self._offset = max(offset, self._offset)
        ahead = (self._offset - self._reported) // 1_000_000
        self._reported = self._offset
        return ahead if ahead > JUMP_MS else 0

    def mark(self, uncertainty: int) -> str:
        """Both clocks now, to be kept on disk."""
        return msgspec.json.encode(self._mark(uncertainty)).decode()

    def _mark(self, uncertainty: int = 0) -> Mark:
        elapsed = _elapsed_ns()
        wall = (elapsed + self._offset) // 1_000_000
        return Mark(wall, elapsed // 1_000_000, _boot_id(), uncertainty)

    def set_since(self, mark: Mark) -> int | None:
        """By how many ms the wall clock was set since ``mark``; None if unknown, as the machine was
        restarted, or is another one."""
        now = self._mark()
        if not mark.boot or mark.boot != now.boot:
            return None
        return (now.wall - now.elapsed) - (mark.wall - mark.elapsed)
