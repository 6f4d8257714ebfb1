"""SystemExit, KeyboardInterrupt and GeneratorExit in tasks of a run.

Each of the first two that comes out of a task ends the event loop, and with it all jobs of the worker; the
last, from a task that somebody awaits, is taken for the end of the awaiting code. So in the tasks of a run
they are carried by an `Exit`, and whoever waits for the task raises what was raised.
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
    """Carries what the code of a task has raised."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(text_of(raised))
        self.raised = raised


class _Contained(Coroutine[Any, Any, T]):
    """Not a coroutine function around the other: a task that is cancelled before it begins would not close
    that."""

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
    """The same, for a task: what would end more than the task is an Exit."""
    return coroutine if isinstance(coroutine, _Contained) else _Contained(coroutine)


def raised(error: Any) -> Any:
    """What the code of a task has raised, of what came out of the task."""
    return error.raised if type(error) is Exit else error


def result_of(task: asyncio.Task[T]) -> T:
    """Of one that is done. Raises what its code has raised."""
    if not task.cancelled() and type(error := task.exception()) is Exit:
        raise error.raised
    return task.result()


async def revealed(awaitable: Awaitable[T]) -> T:
    """What it gives. Raises what the code of its tasks has raised."""
    try:
        return await awaitable
    except Exit as error:
        found = error.raised
    raise found
