"""Decides whether two errors are the same kind of failure."""

from __future__ import annotations

import re

MAX_PATTERN = 200  # characters of the first line that are compared

# UUIDs, hexadecimal numbers, and decimal numbers, except those that look like an HTTP status: 404 and 503 are
# different failures, 404 ms and 503 ms are not.  Java and Python read this pattern alike.
_UNIT = r" ?(?:[mun\u00b5]?s|sec|seconds?|min|minutes?|[kKMG]i?[Bb]|bytes|rows|%)(?![0-9a-zA-Z])"
CHANGING = (
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|0x[0-9a-fA-F]+"
    r"|(?<![0-9a-zA-Z])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?![0-9a-zA-Z])"
    rf"|(?<![0-9])(?![45][0-9]{{2}}(?![0-9]|{_UNIT}))[0-9]+"
)


def pattern_of(error: str | None) -> str:
    """The first line of an error with # in place of every number and id.  Empty when there is no error."""
    line = (error or "").partition("\n")[0][:MAX_PATTERN]
    return re.sub(CHANGING, "#", line)
