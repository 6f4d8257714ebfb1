"""Where tests have their files: in memory, if there is enough of it.

Most tests write to SQLite files, and would wait for the disk more than for anything else.  What a power cut
leaves behind is tried on file systems of their own; see `disk_log` and `small_disks`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 6 << 30  # bytes: a run needs about half of this at the same time
LEFT = 6 << 30  # bytes of memory that the processes of a run need besides


def use() -> None:
    """Have this process, and all that it starts, make temporary files in memory, unless TMPDIR says where."""
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it looks again


def _has_room() -> bool:
    if not (os.access(MEMORY, os.W_OK) and os.path.ismount(MEMORY)):
        return False
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    enough = available is not None and int(available[1]) << 10 >= ROOM + LEFT
    return enough and shutil.disk_usage(MEMORY).free >= ROOM
