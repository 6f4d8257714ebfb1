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
    """What this process starts in the block, such as the Java of a new session, takes only what nobody else
    wants of the cores, and while others are busy only for a small part of the time.

    On Linux; elsewhere it is as nice as can be.  This process itself keeps the low priority afterwards.
    """
    if not hasattr(os, "SCHED_IDLE"):
        os.nice(_LAST)
        yield
        return
    command = [sys.executable, "-m", governor.__name__, str(os.getpid())]
    # In a session of its own, Ctrl-C is not its matter.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        with suppress(OSError):  # somebody may have forbidden it
            # Being nice would still make servers wait, which often sleep and want to go on at once.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
