"""The command line of this process as `ps` and `top` show it, to every user of the machine.

Linux lets a process change it in its own memory. Elsewhere, or if the system forbids it, it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

_ARGUMENTS = slice(45, 47)  # arg_start and arg_end: fields 48 and 49 of proc_pid_stat(5), after ")"


def name_process(name: str) -> None:
    """Show ``name`` in its place, as far as there is room: a shard that was forked from another process would
    otherwise have that one's."""

    def named(arguments: bytes) -> bytes:
        return name.encode()[: len(arguments) - 1].ljust(len(arguments), b"\0")

    rewrite_arguments(named)
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def rewrite_arguments(change: Callable[[bytes], bytes]) -> None:
    """Show what ``change`` makes of the arguments, each ended by a zero byte; it must keep their length."""
    with suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b")")[2].split()[_ARGUMENTS])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            given = memory.read(end - start)
            if (changed := change(given)) != given:
                memory.seek(start)
                memory.write(changed)
