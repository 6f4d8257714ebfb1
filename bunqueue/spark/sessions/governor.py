"""A separate process that suspends others for most of the time while the machine is busy.

    python -m bunqueue.spark.sessions.governor PID

It suspends the descendants of PID, such as Spark's Java and Python, but not PID itself: a shell would treat
PID as a stopped job.  When standard input ends, it resumes all of them and exits, whatever happened to PID.
Needs /proc, so Linux.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

PERIOD_S = 1.0  # one cycle of running and being suspended
LEAST, MOST = 0.15, 0.9  # the part of a cycle to run; in the rest, the other processes are measured
QUIET, BUSY = (
    0.25,
    0.6,
)  # the load of others on all cores: up to the first run for MOST, from the second for LEAST


def share_for(load: float) -> float:
    """The part of the time to run while others use ``load`` of all cores.  Both are from 0 to 1."""
    way = (load - QUIET) / (BUSY - QUIET)
    return MOST - (MOST - LEAST) * min(max(way, 0.0), 1.0)


def descendants(pid: int) -> list[int]:
    """All descendants of a process, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            # The name, in brackets, may contain any character.
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            children[int(parent)].append(int(place.name))
    found = [pid]
    for one in found:  # grows during the loop
        found += children[one]
    return found[1:]


def signal_all(pids: Iterable[int], what: signal.Signals) -> None:
    """Send a signal to all processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


class Cores:
    """The load of all cores since the last call."""

    def __init__(self) -> None:
        self._busy, self._total = self._cpu_times()

    def _cpu_times(self) -> tuple[int, int]:
        times = [int(time) for time in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(times) - times[3] - times[4], sum(times)  # without idle and I/O wait

    def load(self) -> float:
        """The load since the last call, 0 to 1."""
        busy, total = self._cpu_times()
        passed = total - self._total
        load = (busy - self._busy) / passed if passed else 0.0
        self._busy, self._total = busy, total
        return load


def is_over(seconds: float) -> bool:
    """Wait up to ``seconds``.  Return whether standard input has ended."""
    return bool(select.select([0], [], [], seconds)[0])


def govern(root: int) -> None:
    """Suspend and resume the descendants of ``root``, until standard input ends."""
    share, stopped, cores = LEAST, list[int](), Cores()
    try:
        while not is_over(PERIOD_S * share):
            stopped = [pid for pid in descendants(root) if pid != os.getpid()]
            signal_all(stopped, signal.SIGSTOP)
            cores.load()
            if is_over(PERIOD_S * (1 - share)):
                break
            share = share_for(cores.load())
            signal_all(stopped, signal.SIGCONT)
    finally:
        signal_all(stopped, signal.SIGCONT)


def main(arguments: Sequence[str]) -> None:
    govern(int(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
