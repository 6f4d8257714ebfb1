"""Calls of a user's functions that are no handlers, each with a net: whatever comes out of one is logged, and
changes nothing for jobs, for the worker, or for the next call."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from bunqueue.client import background


class CtrlC(KeyboardInterrupt):
    """Ctrl-C where `ctrl_c_told_apart` is in place."""


def is_ctrl_c(error: BaseException) -> bool:
    """Whether it comes from the keyboard, and not from the code that was running: only where Python's own
    signal handler is in place does Ctrl-C raise it in the middle of some code."""
    return type(error) is CtrlC or (type(error) is KeyboardInterrupt and _interrupts_code())


def _interrupts_code() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


@contextmanager
def ctrl_c_told_apart() -> Iterator[None]:
    """Meanwhile Ctrl-C is a `CtrlC`, and any other KeyboardInterrupt comes from the code that was running."""
    if not _interrupts_code():
        yield
        return
    signal.signal(signal.SIGINT, _pressed)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _pressed:  # else the code that was running has set another
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _pressed(number: int, frame: FrameType | None) -> None:
    raise CtrlC


def runs(task: asyncio.Task[Any] | None) -> bool:
    """Whether the event loop is in it, and not closing it: then GeneratorExit is what its code has raised."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:
        return False


def is_cancelled() -> bool:
    """Whether somebody has cancelled the task that runs, so that CancelledError is not its code's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Calls:
    """Calls hooks. What one gives to be awaited is awaited in the background."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._running: dict[asyncio.Task[None], Callable[..., Any]] = {}

    def call(self, function: Callable[..., Any], *arguments: object) -> None:
        """In the event loop. Raises nothing but KeyboardInterrupt, from the keyboard."""
        try:
            result = function(*arguments)
            awaitable = inspect.isawaitable(result)
        except BaseException as error:
            self._failed(function, error)
            return
        if awaitable:
            task = background.begin(asyncio.get_running_loop(), self._awaited(function, result))
            self._running[task] = function
            task.add_done_callback(self._running.pop)

    async def _awaited(self, function: Callable[..., Any], result: Awaitable[Any]) -> None:
        try:
            await result
        except BaseException as error:
            if type(error) is asyncio.CancelledError and is_cancelled():
                raise
            self._failed(function, error)

    def _failed(self, function: Callable[..., Any], error: BaseException) -> None:
        if is_ctrl_c(error):
            raise error
        with suppress(Exception):  # a user's own log handlers, and the text of the error, may raise as well
            self._logger.error("%r failed", function, exc_info=error)

    async def settle(self, patience: float) -> None:
        """Wait for those in the background; those that take longer than `patience` seconds are cancelled."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=patience)
        for task in late:
            self._logger.warning("%r takes too long, and is cancelled: its worker stops", self._running[task])
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=patience)
