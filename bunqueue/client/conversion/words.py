"""Words for people, as they can be stored: lines of logs, messages of progress, reasons.

What they say matters to nobody's program, so none of them is refused: half characters, as names of files may
have, are written out, what is too long is cut, and what is no text is written as one.
"""

from __future__ import annotations

from typing import overload

from bunqueue.client.conversion.raised import well_formed

MAX_MESSAGE = 4096  # characters of a message of progress, or of a reason; the protocol's limit
MAX_LINE = 65_536  # the same of a line of a log


@overload
def storable(words: None, most: int = MAX_MESSAGE) -> None: ...
@overload
def storable(words: object, most: int = MAX_MESSAGE) -> str: ...


def storable(words: object, most: int = MAX_MESSAGE) -> str | None:
    """The same words, or as near to them as can be; None for None. Never raises."""
    if words is None:
        return None
    try:
        text = well_formed(words if type(words) is str else str(words))
    except BaseException:  # of a user's own class
        text = f"<{type(words).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."
