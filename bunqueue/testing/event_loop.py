"""The event loop of a sandbox. It runs in the test's own thread, and stops to call plain functions there."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from bunqueue.client.interrupts import distinguish_ctrl_c, is_ctrl_c
from bunqueue.worker.forks import Origin, end_copy
from bunqueue.worker.threads import Outcome, Threads

from .errors import SandboxError

A = TypeVar("A")
T = TypeVar("T")


class SandboxLoop:
    """An event loop that lasts as long as the sandbox, so what handlers open in it stays usable.

    A plain function that is called here runs in the test's thread, outside any running event loop. So it sees
    what the test has open, may block, and may run a loop of its own.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(
            loop_factory=asyncio.new_event_loop
        )  # which leaves the test's own loop alone
        self._calls: deque[Callable[[], None]] = deque()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. Raises what the coroutine raises, and KeyboardInterrupt after
        Ctrl-C.

        If a loop is already running, all this happens in another thread. That is the case when a tested
        endpoint adds a job without awaiting it.
        """
        return _where_no_loop_runs(partial(self._run, main))

    def _run(self, main: Coroutine[Any, Any, T]) -> T:
        loop = self._runner.get_loop()
        task = loop.create_task(main)
        task.add_done_callback(lambda _: loop.stop())
        with distinguish_ctrl_c():
            try:
                self._turn_until_done(loop, task)
            except BaseException:  # Ctrl-C between two lines of user code
                task.cancel()
                with suppress(BaseException):
                    self._turn_until_done(loop, task)
                if task.done() and not task.cancelled():
                    task.exception()  # its exception is no longer needed
                raise
        return task.result()

    def _turn_until_done(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        while not task.done():
            self._turn(loop)
            while self._calls:
                self._calls.popleft()()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until it is stopped. A SystemExit or KeyboardInterrupt of a task that a handler
        started ends the loop as well. It is the outcome of that task, so the coroutine that awaits the task
        receives it."""
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            if is_ctrl_c(error):
                raise

    def call(self, function: Callable[[], Outcome], future: asyncio.Future[Outcome]) -> None:
        """Call `function` once the loop has stopped, and resolve `future` with its outcome. Called in the
        loop."""
        loop = future.get_loop()

        def call() -> None:
            outcome = function()
            # Timers that are already due, such as timeouts, run first: they would not have waited for the
            # function.
            loop.call_soon(loop.stop)
            self._turn(loop)
            if not future.done():
                future.set_result(outcome)

        self._calls.append(call)
        loop.stop()

    def close(self) -> None:
        """Close the loop and cancel everything that still runs in it."""
        _where_no_loop_runs(self._runner.close)


class CallsHere(Threads):
    """A `Threads` without threads: functions run one after the other in the thread that runs the loop."""

    def __init__(self, sandbox_loop: SandboxLoop, size: int = 1) -> None:
        self.size = size
        self._sandbox_loop = sandbox_loop
        self._loop = asyncio.get_running_loop()
        self._origin = Origin()

    def run(self, function: Callable[[A], Any], argument: A) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._sandbox_loop.call(partial(copy_context().run, self._outcome, function, argument), future)
        return future

    def _outcome(self, function: Callable[[A], Any], argument: A) -> Outcome:
        try:
            outcome: Outcome = True, function(argument)
        except BaseException as error:
            outcome = False, error
        if self._origin.is_left:
            end_copy(*outcome)
        return outcome

    def stop(self) -> None:
        """Do nothing: there are no threads to stop."""


def _where_no_loop_runs(function: Callable[[], T]) -> T:
    """Call a function in this thread, or in another one if an event loop runs here."""
    if not _loop_runs():
        return function()
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(call,), name="bunqueue-sandbox")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_no_loop(what: str) -> None:
    """Raise SandboxError if a coroutine makes a blocking call."""
    if _loop_runs():
        raise SandboxError(
            f"{what}() would block the event loop that the handlers need: await {what}_async()"
        )
