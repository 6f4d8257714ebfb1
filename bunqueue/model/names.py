"""Validation of queue names, and suggestions for unknown names."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_QUEUE_NAME = 256  # characters; the specification's validation table
_ALLOWED = re.compile(r"[a-zA-Z0-9_\-.:]+")


def queue_name_problem(name: object) -> str | None:
    """What is wrong with a queue name, as the text of the refusal; None if it is valid."""
    if name is None or name == "":
        return "Queue name is required"
    if not isinstance(name, str):
        return "Queue name must be a string"
    if len(name) > MAX_QUEUE_NAME:
        return f"Queue name too long (max {MAX_QUEUE_NAME} characters)"
    if not _ALLOWED.fullmatch(name):
        return "Queue name contains invalid characters"
    return None


def hint(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the known name that was probably meant, or all known names."""
    import difflib  # costs milliseconds at start-up and is needed only here

    names = list(known)
    close = difflib.get_close_matches(name, names, 1, 0.75)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
