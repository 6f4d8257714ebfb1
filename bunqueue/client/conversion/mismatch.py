"""What is wrong with data, and where in the data."""

from __future__ import annotations

import re

import msgspec

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)


class Mismatch(ValueError):
    """Data does not have the declared type: the problem, and the path to it, as in `items[0].name`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path


def mismatch(error: msgspec.ValidationError | Mismatch) -> Mismatch:
    """The problem and the path in msgspec's message."""
    if isinstance(error, Mismatch):
        return error
    match = _WHERE.match(str(error))
    assert match is not None
    return Mismatch(match["problem"], (match["path"] or "").removeprefix("."))


def below(name: str, found: Mismatch) -> Mismatch:
    """A mismatch within the value called `name`."""
    dot = "" if not found.path or found.path.startswith("[") else "."
    return Mismatch(found.problem, f"{name}{dot}{found.path}")


WRONG = (msgspec.ValidationError, Mismatch)
"""What decoding raises for data that does not fit."""
