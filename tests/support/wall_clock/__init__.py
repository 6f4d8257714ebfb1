"""The wall clock of a server, which a test may set while the server runs."""

from __future__ import annotations

import struct
import subprocess
import time
from functools import cache
from pathlib import Path

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000  # ms

_NS = struct.Struct("=q")


@cache
def _shim(folder: Path) -> Path:
    made = folder / "wall_clock.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


class WallClock:
    """Ahead of the machine's by as much as it is told; all processes that have `environ` follow at once."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "wall_clock"
        self._file.write_bytes(_NS.pack(0))
        self.environ = {"LD_PRELOAD": str(_shim(folder)), "WALL_CLOCK": str(self._file)}
        self.ahead = 0

    def set(self, ahead: int) -> None:
        """Put it so many ms ahead of the machine's, or behind."""
        self.ahead = ahead
        with self._file.open("r+b", buffering=0) as file:
            file.write(_NS.pack(ahead * 1_000_000))

    def moves(self, pid: int) -> bool:
        """Whether a process has this clock."""
        return str(self._file) in Path(f"/proc/{pid}/maps").read_text()

    def now_ms(self) -> float:
        """What it shows, epoch ms."""
        return time.time_ns() / 1e6 + self.ahead
