"""Runs a bounded number of jobs at a time, without a task for each.

A slot is a coroutine that runs one job after another, so a handler that never waits costs neither a task nor
a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Generic, TypeVar

J = TypeVar("J")

MAX_WOKEN = 4  # fifty jobs start within a dozen turns of the loop, and few slots are woken in vain


class Slots(Generic[J]):
    """`size` slots for jobs. `run` gets a job and the task it runs in; it must raise nothing except
    CancelledError.
    """

    def __init__(
        self,
        size: int,
        run: Callable[[J, asyncio.Task[None]], Awaitable[None]],
        freed: Callable[[], None],
    ) -> None:
        self.busy = 0
        """Jobs that were put here and have not ended."""
        self._size = size
        self._run = run
        self._freed = freed
        self._ready: deque[J] = deque()
        self._free: list[asyncio.Future[None]] = []
        self._closing = False
        # Slots that will look for a job in the next turn of the loop: their tasks, or the futures they await.
        self._woken: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def resize(self, size: int) -> None:
        """Change the number of slots. Surplus ones empty out, as long as no more jobs are put
        here than fit.
        """
        self._size = size
        self._wake()

    def put(self, jobs: list[J]) -> None:
        """Run these jobs; there must be room for them."""
        self.busy += len(jobs)
        self._ready.extend(jobs)
        self._wake()

    def _wake(self) -> None:
        """Make other slots look for jobs: few at a time, as a slot that never waits needs no help."""
        while len(self._woken) < min(len(self._ready), MAX_WOKEN) and self._wake_one():
            pass

    def _wake_one(self) -> bool:
        while self._free:
            waiter = self._free.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._woken.add(waiter)
                return True
        if len(self._tasks) < self._size:
            task = self._loop.create_task(self._slot(), context=self._context.copy())
            self._tasks.add(task)
            self._woken.add(task)
            task.add_done_callback(self._on_slot_done)
            return True
        return False

    def _on_slot_done(self, task: asyncio.Task[None]) -> None:
        """A slot has ended: normally, or because it was cancelled, perhaps before it began."""
        self._tasks.discard(task)
        self._woken.discard(task)
        if not self._closing:
            self._wake()

    async def _slot(self) -> None:
        ready = self._ready
        task = asyncio.current_task()
        assert task is not None
        self._woken.discard(task)
        while True:
            while not ready:
                waiter = self._loop.create_future()
                self._free.append(waiter)
                try:
                    await waiter
                finally:
                    self._woken.discard(waiter)
            job = ready.popleft()
            if ready:
                self._wake()
            try:
                await self._run(job, task)
            finally:
                self.busy -= 1
                self._freed()
            if self._closing or task.cancelling():  # also if the handler ignored its cancellation
                return
            if _differs(self._context):
                break
        # The handler set context variables: a new slot takes over, so that the next job does not see them.
        self._tasks.discard(task)
        self._wake()

    def withdraw(self) -> list[J]:
        """Remove and return the jobs that have not started."""
        jobs = list(self._ready)
        self._ready.clear()
        self.busy -= len(jobs)
        return jobs

    async def cancel(self, patience: float) -> None:
        """Cancel the running jobs, and wait for them for at most `patience` seconds."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience)


def _differs(clean: Context) -> bool:
    """Whether the current context differs from `clean`; costs nothing while they share their storage."""
    try:
        return copy_context() != clean
    except Exception:  # values are also compared, and their comparison may raise anything
        return True
