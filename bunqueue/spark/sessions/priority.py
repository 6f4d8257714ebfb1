"""Low priority for Spark, for the sake of a server on the same machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LAST = 19


@contextmanager
def standing_back() -> Iterator[None]:
    """Processes started in the block, such as the Java of a new session, get a core only while nobody else
    wants it.

    This works on Linux.  Elsewhere the processes get the lowest priority.  This process itself keeps the low
    priority afterwards.
    """
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # an administrator may have forbidden it
            # A nice value alone would still delay servers, which often sleep and want to resume at once.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_LAST)
    yield
