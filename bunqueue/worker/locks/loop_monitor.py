"""Detects a blocked event loop, and finds where it is blocked; used from another thread."""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from types import FrameType

logger = logging.getLogger("bunqueue.worker")

CHECK_S = 1.0  # seconds between two checks
BLOCKED = 2.0  # seconds without an answer until a warning; each further one after twice the time
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_PACKAGE = __name__.rpartition(".client.")[0]


class LoopMonitor:
    """Must be made in the thread of the loop that it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._asked_at: float | None = None  # None: it has answered
        self._warn_after = BLOCKED
        self._place = ""

    @property
    def lag(self) -> float:
        """The seconds for which the loop has owed an answer."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def check(self, frozen: float) -> None:
        """Ask the loop to answer, or warn that it has not answered the last time. `frozen`: by how many
        seconds the calling thread itself overslept.
        """
        now = time.monotonic()
        if frozen > BLOCKED:
            words = "Python stood still for %.1f s: the process was stopped, or native code kept the GIL"
            logger.warning(words, frozen)
            self._asked_at = None if self._asked_at is None else now
        if self._asked_at is None:
            self._ask(now)
        elif now - self._asked_at >= self._warn_after:
            self._warn_after *= 2
            self._place = self._find()
            words = "loop blocked %.1f s in %s: nothing else of this worker goes on meanwhile"
            logger.warning(words, now - self._asked_at, self._place)

    def _ask(self, now: float) -> None:
        if self._loop.is_closed():
            return
        self._asked_at = now
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # closed at this moment
            self._asked_at = None

    def _answer(self) -> None:
        if self._asked_at is not None and self._warn_after > BLOCKED:
            logger.warning(
                "loop continues after %.1f s in %s", time.monotonic() - self._asked_at, self._place
            )
        self._asked_at, self._warn_after = None, BLOCKED

    def _find(self) -> str:
        frame = sys._current_frames().get(self._thread)
        return "a thread that has ended" if frame is None else place_of(frame)


def place_of(frame: FrameType) -> str:
    """`module.function:line` of the innermost call in the program's own code, else of the innermost call."""
    found: FrameType | None = frame
    while found is not None and _is_foreign(found):
        found = found.f_back
    if found is None or _is_ours(found):
        found = frame
    name = found.f_globals.get("__name__", "?")
    return f"{name}.{found.f_code.co_qualname}:{found.f_lineno}"


def _is_foreign(frame: FrameType) -> bool:
    return not _is_ours(frame) and frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
