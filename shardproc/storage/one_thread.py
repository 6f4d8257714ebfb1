"""SQLite without locks for threads: each connection of a shard's process is used by one thread at a time.

By default, SQLite locks a mutex for each value that it binds, each step of a statement and each piece of
memory that it takes. That is some 50 locks for each job, and 4 % of what a job costs a shard. Python cannot
open a connection without them, so the library is told for all connections of the process.
"""

from __future__ import annotations

import ctypes
import sqlite3.dbapi2  # noqa: F401  # loads _sqlite3
import sys

_OK = 0
# Options of sqlite3_config. A count of the memory in use would need a lock of its own.
_MULTITHREAD, _MEMSTATUS = 2, 9


def without_locks() -> bool:
    """Call this before the first connection. Returns whether it was possible; else the locks stay."""
    place = getattr(sys.modules["_sqlite3"], "__file__", None)  # None: built into Python
    if place is None or sys.platform != "linux":
        return False
    try:
        extension = ctypes.CDLL(place)  # as it is loaded already; it also finds what SQLite has
        shutdown, config = extension.sqlite3_shutdown, extension.sqlite3_config
        initialize = extension.sqlite3_initialize
    except (OSError, AttributeError):
        return False
    if shutdown() != _OK:
        return False
    done: bool = config(_MULTITHREAD) == _OK and config(_MEMSTATUS, 0) == _OK
    initialize()
    return done
