"""Low priority for Spark, for the sake of a server on the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from . import governor

_LAST = 19


@contextmanager
def standing_back() -> Iterator[None]:
    """Processes started in the block, such as the Java of a new session, use only idle processor time.  While
    others are busy, they run for only a small part of the time.

    This works on Linux.  Elsewhere the processes get the lowest priority.  This process itself keeps the low
    priority afterwards.
    """
    if not hasattr(os, "SCHED_IDLE"):
        os.nice(_LAST)
        yield
        return
    command = [sys.executable, "-m", governor.__name__, str(os.getpid())]
    # In a session of its own, it does not receive Ctrl-C.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        with suppress(OSError):  # an administrator may have forbidden it
            # A nice value alone would still delay servers, which often sleep and want to resume at once.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
