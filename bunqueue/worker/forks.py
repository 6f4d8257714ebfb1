"""A process forked by a job's code is not a second worker: it sends nothing to the server, and it exits when
the handler returns, without running the worker's own exit code.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

_origins: weakref.WeakSet[Origin] = weakref.WeakSet()


class Origin:
    """The process that made an object."""

    def __init__(self, forked: Callable[[], object] | None = None) -> None:
        """`forked` is called in a copy of the process, by the thread that forked it."""
        self.is_left = False
        """Whether this is another process, a copy of the original one."""
        self._forked = forked
        _origins.add(self)

    def leave(self) -> None:
        """Called in the copy."""
        self.is_left = True
        if self._forked is not None:
            with suppress(Exception):  # for something that was already closed
                self._forked()


def _after_fork() -> None:
    for origin in list(_origins):
        origin.leave()


uncopied = threading.Lock()
"""While it is held, no other thread forks this process. A copy would keep open what is only meant for a
process that is just being started, and whoever waits for its start would wait for the end of the copy."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=uncopied.acquire, after_in_parent=uncopied.release, after_in_child=uncopied.release
    )
    os.register_at_fork(after_in_child=_after_fork)


def end_copy(succeeded: bool, value: Any) -> NoReturn:
    """End this process, a copy in which a handler has returned `value` or raised it."""
    status = 0
    try:
        if not succeeded:
            status = _status(value)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # nobody reads the stream any more
                stream.flush()
    finally:
        os._exit(status)


def _status(error: BaseException) -> int:
    """The exit status that Python itself would use."""
    if type(error) is not SystemExit:
        traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
