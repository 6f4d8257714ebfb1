"""Guarded calls of a user's functions that are not handlers: an exception is logged, and does not affect
jobs, the worker, or the next call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from bunqueue.client import background
from bunqueue.client.interrupts import is_cancelled, is_ctrl_c


class Calls:
    """Calls hooks. An awaitable result is awaited in the background."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._running: dict[asyncio.Task[None], Callable[..., Any]] = {}

    def call(self, function: Callable[..., Any], *arguments: object) -> None:
        """Call in the event loop. Raises only KeyboardInterrupt from the keyboard."""
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
        with suppress(Exception):  # a user's log handlers, and the text of the error, may raise as well
            self._logger.error("%r failed", function, exc_info=error)

    async def finish(self, patience: float) -> None:
        """Wait for those in the background; cancel those that take longer than `patience` seconds."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=patience)
        for task in late:
            self._logger.warning("%r takes too long, and is cancelled: its worker stops", self._running[task])
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=patience)
