"""Processes on this machine, as far as the kernel shows them."""

from __future__ import annotations


def born(pid: int) -> str | None:
    """When the process with this number began, in the kernel's notation; None: it has ended, or it is
    unknown.

    The number alone does not identify a process, as numbers are reused.
    """
    try:
        with open(f"/proc/{pid:d}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
