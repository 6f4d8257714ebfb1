"""The command line of this process, which `ps` and `top` show to every user of the machine.

Linux lets a process change it in its own memory. On other systems, or if the system forbids it, it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

_ARGUMENTS = slice(45, 47)  # arg_start and arg_end: fields 48 and 49 of proc_pid_stat(5), after ")"


def name_process(name: str) -> None:
    """Show ``name`` instead, as far as there is room. Otherwise a forked shard would show the command line of
    its parent."""

    def named(arguments: bytes) -> bytes:
        return name.encode()[: len(arguments) - 1].ljust(len(arguments), b"\0")

    rewrite_arguments(named)
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def rewrite_arguments(change: Callable[[bytes], bytes]) -> None:
    """Show the result of ``change``, which gets the arguments, each ended by a zero byte; it must keep their
    length."""
    with suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b")")[2].split()[_ARGUMENTS])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            given = memory.read(end - start)
            if (changed := change(given)) != given:
                memory.seek(start)
                memory.write(changed)
