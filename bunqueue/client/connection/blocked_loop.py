"""A warning for blocking calls in a thread whose event loop is running: they hold up the whole loop."""

from __future__ import annotations

import asyncio
import sys
import warnings

from bunqueue.client.invalid_jobs import user_level

MAX_PLACES = 100  # lines that are warned of; a program with more has read the warning
_warned: set[tuple[str, int]] = set()


class BlockedLoopWarning(RuntimeWarning):
    """A blocking call was made where an event loop is running."""


def warn_if_in_loop() -> None:
    """Warn once of each line of the user's code that blocks an event loop."""
    if asyncio._get_running_loop() is None or "ipykernel" in sys.modules:  # a notebook waits for its cells
        return
    level = user_level()
    frame = sys._getframe(level - 1)
    place = frame.f_code.co_filename, frame.f_lineno
    if place in _warned or len(_warned) >= MAX_PLACES:
        return
    _warned.add(place)
    text = (
        "a blocking call in a running event loop: nothing else in the loop runs until the server answers; "
        "use AsyncQueue (AsyncAdmin, await task.add_async(...)), or await asyncio.to_thread(...)"
    )
    warnings.warn(text, BlockedLoopWarning, stacklevel=level)
