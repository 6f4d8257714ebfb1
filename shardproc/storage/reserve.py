"""Space set aside on the disk, so work in progress can continue when everything else is full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

STEP = 1024 * 1024  # bytes: the size is a multiple of it
BLOCK = 512  # bytes: the unit of st_blocks, on every system


class Reserve:
    """A file beside the data that only occupies space."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0  # bytes
        with suppress(OSError):
            self.size = path.stat().st_size

    def ensure(self, needed: int, spare: int) -> bool:
        """Set at least ``needed`` bytes aside, and release what exceeds that by more than ``spare``; False
        when the disk does not have that much space."""
        size = -(-needed // STEP) * STEP
        if size < self.size - spare:
            self._truncate(size)
        if size <= self.size:
            return True
        try:
            with open(self._path, "ab") as file:
                _allocate(file.fileno(), size)
        except OSError:
            self._truncate(self.size)
            return False
        self.size = size
        return True

    def give(self, size: int) -> None:
        """Release at least this many bytes, or all there are."""
        left = (self.size - size) // STEP * STEP
        if left > 0:
            self._truncate(left)
        else:
            self.release()

    def release(self) -> None:
        """Release all of it."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self.size = 0

    def _truncate(self, size: int) -> None:
        try:
            os.truncate(self._path, size)
            self.size = size
        except FileNotFoundError:
            self.size = 0
        except OSError:
            pass


def _allocate(descriptor: int, size: int) -> None:
    """Have the file grow to this size, by blocks of its own, not by a hole. Only what it lacks is asked for:
    some file systems look at each page that is asked for, even if it is there."""
    found = os.fstat(descriptor)
    is_whole = found.st_blocks * BLOCK >= found.st_size  # in a copy of the file it may be a hole
    begin = found.st_size if is_whole else 0
    if begin >= size:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, begin, size - begin)
    else:
        os.write(descriptor, bytes(size - begin))
