"""Threads for handlers that are plain functions.

Not `ThreadPoolExecutor`: its threads keep a process from exiting while a handler hangs, and it takes three
times as long per job.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from bunqueue.worker.forks import Origin, end_copy

A = TypeVar("A")

Outcome = tuple[bool, Any]
"""Whether the call succeeded, and its value or its exception. Futures cannot carry every exception."""


Call = tuple[Callable[[Any], Any], Any, asyncio.Future[Outcome], Context]


class Threads:
    """At most `size` daemon threads, started on first use."""

    def __init__(self, size: int) -> None:
        self.size = size
        """May be increased."""
        self._work: SimpleQueue[Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._origin = Origin()
        self._loop = asyncio.get_running_loop()

    def run(self, function: Callable[[A], Any], argument: A) -> asyncio.Future[Outcome]:
        """Call `function` in a thread, in a copy of the caller's context. Cancelling the future does not stop
        the call.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._unfinished += 1
        if self._unfinished > len(self._threads) < self.size:
            name = f"bunqueue-handler-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put((function, argument, future, copy_context()))
        return future

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            function, argument, future, context = work
            try:
                outcome = True, context.run(function, argument)
            except BaseException as error:
                outcome = False, error
            if self._origin.is_left:
                end_copy(*outcome)
            del work, function, argument, context
            try:
                self._loop.call_soon_threadsafe(self._finish, future, outcome)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del future, outcome

    def _finish(self, future: asyncio.Future[Outcome], outcome: Outcome) -> None:
        self._unfinished -= 1
        if not future.done():
            future.set_result(outcome)

    def stop(self) -> None:
        """Let idle threads end; busy ones end after their call."""
        for _ in self._threads:
            self._work.put(None)
