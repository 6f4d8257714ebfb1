"""The memory and processor time that a process uses."""

from __future__ import annotations

import os
import resource
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> int:
    """Resident memory of this process in bytes; the peak if the system does not report the current value."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def cpu_s() -> float:
    """Processor time of this process so far, in seconds."""
    times = os.times()
    return times.user + times.system
