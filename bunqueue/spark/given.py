"""Options as Spark gives them: all values are texts, and the case of names does not matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from bunqueue.client.connection.options import refused, unknown_option

T = TypeVar("T")
Given = Mapping[str, str]
"""The options by their names in lower case."""


def lowered(options: Mapping[str, str], known: Iterable[str], what: str) -> dict[str, str]:
    """The options that were given.  Raises OptionError if ``what`` has no such option."""
    names = {name.lower() for name in known}
    for name in options:
        if name.lower() not in names:
            raise unknown_option(what, name, known)
    return {name.lower(): value for name, value in options.items()}


def one_of(given: Given, name: str, values: Mapping[str, T]) -> T:
    """What one of these words stands for; the first one unless it is given."""
    text = given.get(name.lower(), next(iter(values)))
    known = {word.lower(): value for word, value in values.items()}
    if text.lower() not in known:
        raise refused(name, text, f"is not allowed; give one of {', '.join(values)}", list(values))
    return known[text.lower()]


def whole(given: Given, name: str, default: int, most: int | None = None) -> int:
    """A whole number from 1 on, up to ``most``."""
    text = given.get(name.lower(), str(default))
    if not text.isdecimal() or int(text) < 1 or (most is not None and int(text) > most):
        up_to = "on" if most is None else f"to {most}"
        raise refused(name, text, f"is not allowed; give a whole number from 1 {up_to}", most)
    return int(text)
