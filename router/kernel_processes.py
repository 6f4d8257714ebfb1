"""Processes on this machine, as far as the kernel shows them."""

from __future__ import annotations


def born(pid: int) -> str | None:
    """When the process of that number began, in words of the kernel; None: it has ended, or nobody can tell.

    The number alone would not do, as numbers are used again.
    """
    try:
        with open(f"/proc/{pid:d}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
