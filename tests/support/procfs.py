"""Processes as /proc shows them: who is whose child, who is alive, what they use."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """One process; the start time tells it from a later one with the same number."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """True while it runs; a zombie does not."""
        found = _stat(self.pid)
        return found is not None and found[0] not in "ZX" and found[2] == self.started

    def kill(self, number: int = signal.SIGKILL) -> bool:
        """Send a signal; False when the process is gone."""
        if not self.alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


def process(pid: int) -> Process | None:
    """The process with this number, if there is one."""
    found = _stat(pid)
    return None if found is None else Process(pid, found[2])


def children(pid: int) -> list[Process]:
    """The children of a process, zombies left out, oldest first."""
    out = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        found = _stat(int(entry.name))
        if found is not None and found[1] == pid and found[0] not in "ZX":
            out.append(Process(int(entry.name), found[2]))
    return sorted(out, key=lambda child: (child.started, child.pid))


def descendants(pid: int) -> list[Process]:
    """The children of a process, and theirs."""
    return [each for child in children(pid) for each in (child, *descendants(child.pid))]


def command_line(pid: int) -> bytes:
    """The arguments of a process, with NUL between them; none of one that is gone."""
    with suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes()
    return b""


def runs(pid: int, *programs: str) -> bool:
    """Whether a process is a server's ``gateway``, ``shard``, ``follower``, ``fork server`` or so."""
    return any(f"bunqueue {program}".encode() in command_line(pid) for program in programs)


def started_with(variable: str) -> list[Process]:
    """The living processes that have this ``NAME=value`` in their environment, wherever they hang."""
    wanted = variable.encode()
    out = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found = process(int(entry.name))
                if found is not None and found.alive:
                    out.append(found)
    return out


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process point to, one entry a descriptor."""
    out = []
    with suppress(OSError):
        for entry in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                out.append(str(entry.readlink()))
    return out


def resident(pid: int) -> int:
    """The bytes of memory (VmRSS) that a process has now; 0 when it is gone."""
    return _memory(pid, "VmRSS:")


def peak_resident(pid: int) -> int:
    """The most bytes of memory (VmHWM) that a process ever had."""
    return _memory(pid, "VmHWM:")


def _memory(pid: int, name: str) -> int:
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def cpu_ticks(pid: int) -> int:
    """Processor time used so far, in clock ticks."""
    with suppress(OSError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent, start time."""
    with suppress(OSError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
        return fields[0], int(fields[1]), int(fields[19])
    return None


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    return [pid, *(child.pid for child in descendants(pid))]


def signal_all(number: int, pids: Sequence[int]) -> None:
    """Those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_tree(pid: int) -> None:
    """SIGKILL, to a process and all that it has started."""
    signal_all(signal.SIGKILL, tree(pid))
