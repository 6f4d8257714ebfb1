"""The event loop of a router's process, and its collector of garbage."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any


def event_loop() -> Callable[[Coroutine[Any, Any, int]], int]:
    """What runs a program."""
    try:
        import uvloop  # does not exist for every platform
    except ImportError:
        return asyncio.run
    return uvloop.run


def calm_collector() -> None:
    """What is there now stays: the collector need not look at it again.  What comes and goes is freed by
    counting references, so the collector need not come often."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
