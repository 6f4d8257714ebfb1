"""Child processes that end with their parent, even if the parent is killed and cannot tell them.

The child's standard input is a pipe.  Only the parent has the other end, so it closes when the parent ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ORPHANED = 1
"""The exit status of a child whose parent has ended."""


@contextmanager
def lifeline() -> Iterator[int]:
    """The standard input for children that call `end_with_parent`.  They end no later than this block."""
    reader, writer = os.pipe()
    try:
        yield reader
    finally:
        os.close(writer)
        os.close(reader)


def end_with_parent(end: Callable[[], object] = lambda: os._exit(ORPHANED)) -> None:
    """Call `end` once standard input has closed."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        end()

    threading.Thread(target=watch, name="bunqueue-lifeline", daemon=True).start()
