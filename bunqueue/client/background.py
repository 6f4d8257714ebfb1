"""Tasks that the client begins for itself, whoever happens to call it.

They serve all callers, so they have a context of their own: a task that begins in the context of a workflow's
run belongs to this run, and is cancelled when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def begin(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Keep the task: the event loop does not."""
    return loop.create_task(coroutine, context=Context())
