"""What each router of a host reports about itself: a file that all of them have mapped into memory.

So each router knows at once the number of clients of all of them, and the first one their resource use.
"""

from __future__ import annotations

import mmap
import os
import struct

from ..core.siblings import Row

_ROW = struct.Struct("=QQdd")


NOBODY = Row(0, 0, 0.0, 0.0)


class SharedFigures:
    """A row for each router, which only that router writes while it lives."""

    def __init__(self, path: str, routers: int, number: int) -> None:
        """``number``: that of this router; the first one makes the file."""
        size = routers * _ROW.size
        descriptor = os.open(path, os.O_RDWR | (0 if number else os.O_CREAT), 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._routers = routers
        self._number = number

    def connected(self, connections: int) -> None:
        """Write the number of clients of this router."""
        struct.pack_into("=Q", self._memory, self._number * _ROW.size, connections)

    def note(self, memory_bytes: int, cpu_s: float, lag_s: float) -> None:
        """Write the resource use of this router."""
        struct.pack_into("=Qdd", self._memory, self._number * _ROW.size + 8, memory_bytes, cpu_s, lag_s)

    def clear(self, router: int) -> None:
        """A router has ended: clear its row."""
        _ROW.pack_into(self._memory, router * _ROW.size, *NOBODY)

    @property
    def rows(self) -> list[Row]:
        """The rows of all routers, the first one first."""
        return [Row(*_ROW.unpack_from(self._memory, at * _ROW.size)) for at in range(self._routers)]

    @property
    def connections(self) -> int:
        """The number of connections of all routers."""
        return sum(row.connections for row in self.rows)
