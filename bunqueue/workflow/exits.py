"""SystemExit, KeyboardInterrupt and GeneratorExit in tasks of a run.

Raised from a task, either of the first two would end the event loop, and with it all jobs of the worker. The
third, from an awaited task, would look like the end of the awaiting code. So in the tasks of a run these
exceptions are wrapped in an `Exit`, and the code that waits for the task raises the original.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

from bunqueue.client.conversion.raised import text_of
from bunqueue.client.interrupts import is_ctrl_c

T = TypeVar("T")
_CARRIED = (SystemExit, KeyboardInterrupt, GeneratorExit)


class Exit(Exception):
    """Carries an exception that the code of a task has raised."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(text_of(raised))
        self.raised = raised


class _Contained(Coroutine[Any, Any, T]):
    """Not a coroutine function around the other one: a task cancelled before it begins would not close the
    inner coroutine.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, None, T]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        try:
            return self._coroutine.send(value)
        except _CARRIED as error:
            if is_ctrl_c(error):
                raise
            raise Exit(error) from error

    def throw(self, *given: Any) -> Any:
        try:
            return self._coroutine.throw(*given)
        except _CARRIED as error:
            if is_ctrl_c(error):
                raise
            raise Exit(error) from error

    def close(self) -> None:
        self._coroutine.close()


def contained(coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """The same coroutine, for a task: exceptions that would end more than the task become an Exit."""
    return coroutine if isinstance(coroutine, _Contained) else _Contained(coroutine)


def raised(error: Any) -> Any:
    """The original exception of a task's code, unwrapped from an Exit."""
    return error.raised if type(error) is Exit else error


def result_of(task: asyncio.Task[T]) -> T:
    """The result of a finished task. Raises the original exception of its code."""
    if not task.cancelled() and type(error := task.exception()) is Exit:
        raise error.raised
    return task.result()


async def revealed(awaitable: Awaitable[T]) -> T:
    """The awaited value. Raises the original exceptions of its tasks."""
    try:
        return await awaitable
    except Exit as error:
        found = error.raised
    raise found
