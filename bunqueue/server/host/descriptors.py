"""How the open files of a process are shared out.  Whatever clients do, some are left for the server.

A server without a free descriptor cannot restart a shard or accept a connection.  Router and gateway have the
same limit, and each counts the connections that it accepts against its own share.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

OWN = 32  # standard streams, listening sockets, event loop, logs, files that are read briefly
PER_SHARD = 6  # its link, and its pipes while it starts
MAX_LINGERING = 200  # closing connections: the socket stays open briefly so the client can read the error
MAX_WAITING = 500  # connections from gateway to router that wait for an answer, one for each command
SHARED_LINES = 32  # connections from gateway to router for all other commands


class Share(NamedTuple):
    """How many connections of each kind a process may have open."""

    clients: int
    lingering: int  # in addition to the clients
    waiting: int  # between gateway and router, in addition to both


def raise_file_limit() -> int:
    """Raise the limit of open files to the system's maximum, also for child processes; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):  # macOS calls its hard limit infinite and then refuses that
        pass
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def share(files: int, clients: int, *, shards: int = 0, gateway: bool = False) -> Share:
    """How ``files`` descriptors are shared out; ``clients`` is the largest number of clients wanted.

    If there are few, each kind gets a fraction, so that even a small server works.
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
