"""How this program stands back for a server on the same machine."""

from __future__ import annotations

import os
from contextlib import suppress

_LAST = 19


def stand_back() -> None:
    """From now on this process, and all that it starts, gets a core only while nobody else wants it.

    Linux has a class of its own for that; being nice alone would still make servers wait, which often sleep
    and want to go on at once.  It cannot be taken back.
    """
    with suppress(OSError):  # somebody may have forbidden it
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(_LAST)
