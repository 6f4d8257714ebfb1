"""The event loop of a sandbox: it turns in the test's own thread, and stops to call plain functions there."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from bunqueue.client.interrupts import ctrl_c_told_apart, is_ctrl_c
from bunqueue.client.worker.forks import Origin, end_copy
from bunqueue.client.worker.threads import Outcome, Threads

from .errors import SandboxError

A = TypeVar("A")
T = TypeVar("T")


class SandboxLoop:
    """Lasts as long as the sandbox, so that what handlers have opened in it stays usable.

    A plain function that is called here runs in the thread of the test and in no running event loop, so that
    it sees what the test has open, may block, and may run a loop of its own.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(
            loop_factory=asyncio.new_event_loop
        )  # which leaves the test's own alone
        self._calls: deque[Callable[[], None]] = deque()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """What a coroutine gives. Raises what it raises, and KeyboardInterrupt after Ctrl-C.

        Where a loop runs already, as an endpoint that is tested may add a job without awaiting it, all this
        happens in another thread.
        """
        return _where_no_loop_runs(partial(self._run, main))

    def _run(self, main: Coroutine[Any, Any, T]) -> T:
        loop = self._runner.get_loop()
        task = loop.create_task(main)
        task.add_done_callback(lambda _: loop.stop())
        with ctrl_c_told_apart():
            try:
                self._turn_until_done(loop, task)
            except BaseException:  # Ctrl-C between two lines of user code
                task.cancel()
                with suppress(BaseException):
                    self._turn_until_done(loop, task)
                if task.done() and not task.cancelled():
                    task.exception()  # is not needed any more
                raise
        return task.result()

    def _turn_until_done(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        while not task.done():
            self._turn(loop)
            while self._calls:
                self._calls.popleft()()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until it is stopped. SystemExit and KeyboardInterrupt of a task that a handler has begun end the
        loop as well; they are the outcome of that task, and who awaits it gets them."""
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            if is_ctrl_c(error):
                raise

    def call(self, function: Callable[[], Outcome], future: asyncio.Future[Outcome]) -> None:
        """Called in the loop: call `function` when the loop has stopped, and go on with what it gives."""
        loop = future.get_loop()

        def call() -> None:
            outcome = function()
            # Timers come first that are due by now, as those of timeouts: they would not have waited for it.
            loop.call_soon(loop.stop)
            self._turn(loop)
            if not future.done():
                future.set_result(outcome)

        self._calls.append(call)
        loop.stop()

    def close(self) -> None:
        """End it, with all that still runs in it."""
        _where_no_loop_runs(self._runner.close)


class CallsHere(Threads):
    """`Threads` that are none: functions run one after the other in the thread that turns the loop."""

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
        """There is nothing to end."""


def _where_no_loop_runs(function: Callable[[], T]) -> T:
    """Call a function in this thread; if an event loop runs here, in another one."""
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
    """Raise SandboxError for a blocking call from a coroutine."""
    if _loop_runs():
        raise SandboxError(
            f"{what}() would block the event loop that the handlers need: await {what}_async()"
        )
