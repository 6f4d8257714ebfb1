"""What a process is called in the lists that `ps` and `top` show.

A shard that was forked from another process would otherwise have that one's command line.
"""

from __future__ import annotations

import os
from contextlib import suppress

_ARGUMENTS = slice(45, 47)  # where they begin and end in memory: fields 48 and 49 of proc(5), after ")"


def name_process(name: str) -> None:
    """Show ``name`` in place of the command line, as far as there is room; Linux alone can do that."""
    with suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b") ")[2].split()[_ARGUMENTS])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            os.pwrite(memory.fileno(), name.encode()[: end - start - 1].ljust(end - start, b"\0"), start)
        with open("/proc/self/comm", "w") as file:
            file.write(name)
