"""The background event loop that all blocking objects of a process share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="bunqueue", daemon=True)
        self._thread.start()
        self.thread_id = self._thread.ident

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` in the background loop and return its result. Must not be called from that loop
        itself.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:  # usually Ctrl-C in this thread
            future.cancel()
            raise


_lock = threading.Lock()
_portal: Portal | None = None
_abandoned: list[Portal] = []


def portal() -> Portal:
    """The portal of this process, started on first use."""
    global _portal
    if _portal is None:
        with _lock:
            if _portal is None:
                _portal = Portal()
    return _portal


def check_thread() -> None:
    """Raise RuntimeError in the background loop itself, where a blocking call would never return."""
    if _portal is not None and _portal.thread_id == threading.get_ident():
        raise RuntimeError("a blocking call in bunqueue's own thread would never end; use AsyncQueue")


def _after_fork() -> None:
    """Drop the loop: the child has no thread to run it, and its sockets belong to the parent.

    The old loop is kept, not freed: closing it would remove the parent's sockets from the shared epoll.
    """
    global _lock, _portal
    _lock = threading.Lock()
    if _portal is not None:
        _abandoned.append(_portal)
        _portal = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
