"""The event loop and the garbage collector settings of a router's process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any


def event_loop() -> Callable[[Coroutine[Any, Any, int]], int]:
    """The function that runs a program: that of uvloop, or else of asyncio."""
    try:
        import uvloop  # does not exist for every platform
    except ImportError:
        return asyncio.run
    return uvloop.run


def calm_collector() -> None:
    """Exempt the present objects from garbage collection, and make collections rare: reference counting frees
    nearly everything that comes and goes."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
