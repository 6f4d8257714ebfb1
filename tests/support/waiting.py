"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

STEP_S = 0.02
PATIENCE_S = 90.0  # far more than anything here takes, on a machine that is busy with other things

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], what: str, within_s: float = PATIENCE_S, step_s: float = STEP_S
) -> T:
    """Poll until ``condition`` gives something true, and return that."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what} (last value {value!r})")
        time.sleep(step_s)  # between two looks


async def eventually(
    condition: Callable[[], object], what: str, within_s: float = PATIENCE_S, step_s: float = STEP_S
) -> None:
    """Poll until ``condition``, a function or a coroutine function, gives something true."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what} (last value {value!r})")
        await asyncio.sleep(step_s)  # between two looks


async def until(worker: Any, **counts: int) -> None:
    """Wait until the worker's statistics have reached these numbers."""
    await eventually(
        lambda: all(getattr(worker.stats, name) >= count for name, count in counts.items()),
        f"the worker has {counts}, last {worker.stats}",
    )
