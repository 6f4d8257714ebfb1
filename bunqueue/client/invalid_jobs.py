"""A warning for jobs that no function can run, as far as apps have declared what their functions take."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable


class InvalidJobWarning(UserWarning):
    """A job was added that no function can run: `invalid_jobs="warn"` of an app."""


def warn_of(problems: Iterable[str]) -> None:
    """Warn with the line of the user's code."""
    level = user_level()
    for problem in problems:
        warnings.warn(problem, InvalidJobWarning, stacklevel=level)


def user_level() -> int:
    """The `stacklevel` of the user's code, for a warning of the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "bunqueue"
