"""Detects when everything in a run of a workflow waits for something that may take long, so the run can end.

The tasks of a run are its function and everything that it starts, with `asyncio.gather`, a TaskGroup, or
otherwise. A task may wait for a wait of the workflow, for another of these tasks, or for something that only
these tasks can cause (a lock, a queue, the end of a TaskGroup). If it waits for anything outside, the run
does not end. Whatever cannot be recognized counts as outside.
"""

from __future__ import annotations

import asyncio
from asyncio import locks, queues, taskgroups, tasks
from collections.abc import Callable, Coroutine
from types import CodeType
from typing import Any

from bunqueue.workflow.context import run_var, step_var
from bunqueue.workflow.exits import contained
from bunqueue.workflow.outcomes import Unwind

_GatheringFuture: Any = getattr(tasks, "_GatheringFuture", ())
_WAIT: CodeType | None = getattr(getattr(tasks, "_wait", None), "__code__", None)
_INSIDE = frozenset(module.__file__ for module in (locks, queues, taskgroups))
"""Code that only waits for other tasks of the same loop."""

AnyFuture = asyncio.Future[Any]
AnyTask = asyncio.Task[Any]


class Parked(AnyFuture):
    """A wait during which the run may end."""


class Inside(AnyFuture):
    """The end of code in a thread."""

    waits = False
    """Whether it waits for an operation of the workflow, which has its own task."""


_CHANGING = (Inside, _GatheringFuture) if _GatheringFuture else (Inside,)
"""Futures that may turn into a wait of the workflow before they are done."""


class Watch:
    """The tasks of a run. `idle` is called when all of them wait for a Parked future, or for one another."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, waits: Callable[[], bool], idle: Callable[[], None]
    ) -> None:
        """`waits`: whether anything waits for a Parked future."""
        self.tasks: set[AnyTask] = set()
        self.main: AnyTask | None = None
        """The function of the workflow: once it has ended, nothing counts as idle."""
        self.working: set[AnyTask | None] = set()
        """Tasks that run the function of a step: its waits are not checked, even for a lock."""
        self.outside: AnyFuture | None = None
        """The last known thing the run waits for that is not a wait of the workflow."""
        self._loop = loop
        self._waits = waits
        self._idle = idle
        self._check_scheduled = False

    def add(self, task: AnyTask) -> None:
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: AnyTask) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and type(task._exception) is Unwind:  # do not touch users' own exceptions
            task.exception()  # avoids a warning about it
        self.check_soon()

    def check_soon(self, _: object = None) -> None:
        """Something has changed: check once all that can continue has continued."""
        if not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._check_scheduled = False
        if self.outside is not None and not self.outside.done() and not isinstance(self.outside, _CHANGING):
            return  # a task still waits for it, so the others need not be checked
        self.outside = None
        if not self._waits() or (self.main is not None and self.main.done()):
            return
        for task in self.tasks:
            waiter: AnyFuture | None = task._fut_waiter  # type: ignore[attr-defined]
            if waiter is None or waiter.done():  # it is about to continue
                self.check_soon()
                return
            if task in self.working or not self._inside(task, waiter):
                self.outside = waiter
                waiter.add_done_callback(self.check_soon)
                return
        if self.tasks:
            self._idle()

    def _inside(self, task: AnyTask, waiter: AnyFuture) -> bool:
        if isinstance(waiter, Parked) or waiter in self.tasks:
            return True
        if isinstance(waiter, Inside):
            return waiter.waits
        if isinstance(waiter, _GatheringFuture):
            return all(child.done() or child in self.tasks for child in waiter._children)
        return _waits_for_tasks(task.get_coro())


def _waits_for_tasks(coroutine: Any) -> bool:
    """Whether the innermost code of a coroutine is asyncio's, and waits only for other tasks."""
    while (inner := getattr(coroutine, "cr_await", None)) is not None and hasattr(inner, "cr_frame"):
        coroutine = inner
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return False
    if frame.f_code is _WAIT:
        return frame.f_locals.get("timeout") is None
    return frame.f_code.co_filename in _INSIDE


# -- which task belongs to which run


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Make the tasks of a loop join the runs that create them."""
    before = loop.get_task_factory()
    if not isinstance(before, _Factory):
        loop.set_task_factory(_Factory(before))  # type: ignore[arg-type]


class _Factory:
    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **more: Any
    ) -> AnyTask:
        task: AnyTask
        context = more.get("context")
        run = run_var.get() if context is None else context.get(run_var)
        if run is not None:
            coroutine = contained(coroutine)
        if self._before is None:
            task = asyncio.Task(coroutine, loop=loop, **more)
        else:
            task = self._before(loop, coroutine, **more)
        if run is not None:
            step = step_var.get() if context is None else context.get(step_var)
            if step is None:  # tasks started by a step do not belong to the run
                run.watch.add(task)
        return task
