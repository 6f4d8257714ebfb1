"""Old names of the public API: they work as before, and name the new one in a DeprecationWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(replacement: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a method as deprecated. `replacement` is what to call instead, as in "Admin.stats()"."""

    def mark(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            warn(f"{method.__qualname__.rpartition('.')[2]}()", replacement, type(args[0]).__name__)
            return method(*args, **kwargs)

        return call

    return mark


def warn(old: str, replacement: str, owner: str) -> None:
    """Warn where the caller's caller uses `old` of the class `owner`."""
    text = f"{owner}.{old} is deprecated; use {replacement}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
