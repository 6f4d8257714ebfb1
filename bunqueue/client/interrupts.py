"""Decides whether an exception that ends some code comes from outside or was raised by the code itself. Only
the latter is the outcome of one job.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class CtrlC(KeyboardInterrupt):
    """Ctrl-C while `distinguish_ctrl_c` is active."""


def is_ctrl_c(error: BaseException) -> bool:
    """Whether it comes from the keyboard and not from the running code. Ctrl-C raises it in the middle of
    some code only while Python's own signal handler is installed.
    """
    return type(error) is CtrlC or (type(error) is KeyboardInterrupt and _interrupts_code())


def _interrupts_code() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


@contextmanager
def distinguish_ctrl_c() -> Iterator[None]:
    """While active, Ctrl-C raises `CtrlC`; any other KeyboardInterrupt comes from the running code."""
    if not _interrupts_code():
        yield
        return
    signal.signal(signal.SIGINT, _pressed)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _pressed:  # else the running code has installed another handler
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _pressed(number: int, frame: FrameType | None) -> None:
    raise CtrlC


def runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether the event loop is running the task, and not closing it: then its code raised GeneratorExit."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


def is_cancelled() -> bool:
    """Whether the current task was cancelled from outside, so that CancelledError is not its code's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
