"""How the open files of a process are shared out: whatever clients do, some are left for the server.

A server without a free descriptor cannot start a shard again, and hears nobody.  Router and gateway have the
same limit, and each of them counts what it accepts against its part of it.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

OWN = 32  # standard streams, listening sockets, event loop, logs, files that are read for a moment
PER_SHARD = 6  # its link, and while it starts its pipes
MAX_LINGERING = 200  # connections on their way out: a client sees why only if the socket stays for a moment
MAX_WAITING = 500  # connections from the gateway to the router that wait for an answer, one for each command
SHARED_LINES = 32  # between the two, for all other commands


class Share(NamedTuple):
    """How many connections a process may have open, of each kind."""

    clients: int
    lingering: int  # beside the clients
    waiting: int  # between gateway and router, beside these


def raise_file_limit() -> int:
    """Allow this process, and those it starts, as many open files as the system lets it; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):  # macOS calls its hard limit infinite and then refuses that
        pass
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def share(files: int, clients: int, *, shards: int = 0, gateway: bool = False) -> Share:
    """What of ``files`` descriptors goes to whom; ``clients`` is how many are wanted at most.

    Where there are few, each kind gets a fraction, so that even a small server works.
    """
    own = min(OWN + PER_SHARD * shards, files // 3)
    lingering = min(MAX_LINGERING, files // 8)
    waiting = min(MAX_WAITING, files // 8) if gateway else 0
    lines = min(SHARED_LINES, files // 16) if gateway else 0
    left = files - own - lingering - waiting - lines
    return Share(max(1, min(clients, left)), lingering, waiting)


def files_left() -> bool:
    """Whether another file can be opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
