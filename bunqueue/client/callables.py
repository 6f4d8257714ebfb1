"""Which callables can run as the code of a job, and how: one rule for handlers, jobs of an app, batches,
steps, hooks and dependencies.

A coroutine function, or an object or partial of one, runs in the event loop. Everything else is called in a
thread; if the result is awaitable, it is awaited, as with a plain decorator around a coroutine function.
Generator functions are refused, because calling one runs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, TypeVar

from bunqueue.client.connection.options import shown

GENERATOR = (
    "is a generator function: calling it runs none of its code; collect what it yields in a list, and return "
    "that"
)

F = TypeVar("F", bound=Callable[..., Any])


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: the function, or what it wraps, is a coroutine function."""
    return any(map(inspect.iscoroutinefunction, _forms(function)))


def _forms(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The function itself, unwrapped if it is a partial, and for an object its `__call__` method."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004  # an object's method


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it runs none of its code."""
    kinds = inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return any(kind(each) for each in _forms(function) for kind in kinds)


def runnable(function: F, what: str) -> F:
    """The function. Raises TypeError, beginning with `what`, if it cannot be called or would run nothing."""
    if not callable(function):
        raise TypeError(f"{what}: {shown(function)} cannot be called; give a function")
    if is_generator(function):
        raise TypeError(f"{what}: {shown(function)} {GENERATOR}")
    return function


def as_async(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap a function whose calls give coroutines as a coroutine function."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return call


def signed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The callable that has the annotations: the function of a partial, or the `__call__` method of an
    object.
    """
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(function, "__call__", function)  # noqa: B004  # an object's method


def name_of(function: Callable[..., Any]) -> str:
    """`__name__`; for a partial that of its function, for an object that of its class."""
    while isinstance(function, partial):
        function = function.func
    found = getattr(function, "__name__", None)
    return found if isinstance(found, str) else type(function).__name__


async def finished(value: Any) -> Any:
    """Await the value if it is awaitable, else return it unchanged."""
    return await value if inspect.isawaitable(value) else value
