"""Threads that run code of a workflow, while the event loop performs their waiting operations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from bunqueue.client.conversion.raised import is_a
from bunqueue.workflow.context import run_var
from bunqueue.workflow.exits import contained, raised
from bunqueue.workflow.idle import Inside
from bunqueue.workflow.outcomes import Unwind
from bunqueue.workflow.pending_waits import group_var

if TYPE_CHECKING:
    from bunqueue.workflow.run import Run

Outcome = tuple[bool, Any]
"""Whether a call succeeded, and its value or its exception."""


GO: Outcome = (True, "go")


class _Call(NamedTuple):
    """A function for the thread to call, such as the function of its own step."""

    function: Callable[[], Any]
    context: Context
    answer: asyncio.Future[Outcome]


thread_var: ContextVar[Thread | None] = ContextVar("bunqueue.workflow_thread", default=None)


class Thread:
    """The mailbox of a thread."""

    def __init__(self, run: Run) -> None:
        self.owner = run
        self._loop = run.loop
        self._box: SimpleQueue[_Call | Outcome] = SimpleQueue()
        self.ended = Inside(loop=self._loop)
        """Resolved with the result when its code has ended."""
        self._task: asyncio.Task[Any] | None = None  # the operation that it waits for
        self._lost = False

    # -- in the thread

    def is_to_run(self) -> bool:
        """Wait for the start; False: there is nothing to run."""
        return self._box.get() == GO

    def do(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        """Run an operation in the event loop; returns its result or raises its exception."""
        self._loop.call_soon_threadsafe(self._begin, begin, copy_context())
        while True:
            message = self._box.get()
            if isinstance(message, _Call):
                self._answer(message)
                continue
            succeeded, value = message
            del message
            if succeeded:
                return value
            raise value

    def _answer(self, call: _Call) -> None:
        try:
            outcome: Outcome = True, call.context.run(call.function)
        except BaseException as error:
            outcome = False, error
        self._loop.call_soon_threadsafe(_resolve, call.answer, outcome)

    def run(self, body: Callable[[], Any]) -> None:
        """Run the code of the workflow, or of a branch of it."""
        thread_var.set(self)
        try:
            outcome: Outcome = True, body()
        except BaseException as error:
            outcome = False, error
        self._loop.call_soon_threadsafe(self._end, outcome)

    # -- in the loop

    def go(self) -> None:
        """Let the thread start."""
        self._box.put(GO)

    def leave(self) -> None:
        """The run is over; if the thread is still waiting for something, that wait ends."""
        self._box.put((False, Unwind()))

    def _end(self, outcome: Outcome) -> None:
        succeeded, value = outcome
        if self.ended.done():
            return
        if succeeded:
            self.ended.set_result(value)
        elif is_a(value, StopIteration):  # a future cannot carry StopIteration
            self.ended.set_exception(RuntimeError(f"a workflow raised {value!r}"))
        else:
            self.ended.set_exception(value)

    async def lose(self) -> None:
        """Its branch was cancelled: cancel its current operation, and let it start no others."""
        self._lost = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self, begin: Callable[[], Awaitable[Any]], context: Context) -> None:
        if self._lost:
            self._box.put((False, Unwind()))
            return
        context.run(run_var.set, self.owner)
        context.run(thread_var.set, self)
        self.ended.waits = True
        self._task = self._loop.create_task(contained(_awaited(begin)), context=context)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.ended.waits = False
        self._task = None
        if task.cancelled():
            self._box.put((False, Unwind() if self._lost else asyncio.CancelledError()))
        elif (error := task.exception()) is not None:
            self._box.put((False, raised(error)))
        else:
            self._box.put((True, task.result()))

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Outcome]:
        """Call a function in the thread, which is waiting for an operation."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        self._box.put(_Call(function, copy_context(), answer))
        return answer


async def _awaited(begin: Callable[[], Awaitable[Any]]) -> Any:
    return await begin()


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


async def in_new_thread(run: Run, body: Callable[[], Any]) -> Any:
    """Run a branch of a workflow in a separate thread."""
    thread = Thread(run)
    context = copy_context()
    context.run(group_var.set, None)
    worker = threading.Thread(
        target=context.run, args=(thread.run, body), name=f"bunqueue-branch-{run.job.id}", daemon=True
    )
    worker.start()
    try:
        return await thread.ended
    except asyncio.CancelledError:
        await thread.lose()
        raise
