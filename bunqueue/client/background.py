"""Tasks that the client starts for its own use, no matter which caller triggers them.

They serve all callers, so they run in a context of their own: a task started in the context of a workflow run
belongs to that run, and is cancelled when the run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def begin(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task. The caller has to keep it, because the event loop does not."""
    return loop.create_task(coroutine, context=Context())
