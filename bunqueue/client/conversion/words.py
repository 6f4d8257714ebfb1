"""Texts for people, made storable: log lines, progress messages, reasons.

No program depends on them, so none is refused: lone surrogates, which file names may have, are escaped, long
texts are cut, and other objects are converted to text.
"""

from __future__ import annotations

from typing import overload

from bunqueue.client.conversion.raised import well_formed

MAX_MESSAGE = 4096  # characters of a progress message or a reason; the protocol's limit
MAX_LINE = 65_536  # the same for a log line


@overload
def storable(words: None, most: int = MAX_MESSAGE) -> None: ...
@overload
def storable(words: object, most: int = MAX_MESSAGE) -> str: ...


def storable(words: object, most: int = MAX_MESSAGE) -> str | None:
    """The same words, or the closest storable text; None for None. Never raises."""
    if words is None:
        return None
    try:
        text = well_formed(words if type(words) is str else str(words))
    except BaseException:  # raised by a user's own class
        text = f"<{type(words).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."
