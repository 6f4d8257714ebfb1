"""Space set aside on the disk, so that work in hand can go on when everything else is full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 2 * 1024 * 1024  # some thousand acks


class Reserve:
    """A file beside the data that holds nothing but space."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self) -> bool:
        """Set the space aside; False when there is not so much."""
        try:
            with open(self._path, "ab") as file:
                _allocate(file.fileno())
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Let it be used."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _allocate(descriptor: int) -> None:
    """Blocks that are the file's own, not a hole."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        return
    missing = RESERVE_BYTES - os.fstat(descriptor).st_size
    if missing > 0:
        os.write(descriptor, bytes(missing))
