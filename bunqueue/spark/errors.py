"""Errors of reading. Each text is one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from bunqueue.errors import BunqueueError
from bunqueue.server.folder.unreadable import NoRoom as NoRoom
from bunqueue.server.folder.unreadable import NotReadable as NotReadable
from bunqueue.server.folder.unreadable import UnreadableShard as UnreadableShard


class BadOption(ValueError):
    """An option of the source is unknown, or its value is not allowed."""


class EventsLost(Exception):
    """A stream cannot continue without skipping events."""


T = TypeVar("T")
_TOLD = (BadOption, NotReadable, EventsLost, BunqueueError)


def brief(kind: type[T]) -> type[T]:
    """A class that Spark calls.  It shows the frames of an error before its text; from the methods of this
    class, errors that say what to do come without them."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, _brief(method))
    return kind


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **given: Any) -> Any:
        try:
            found = method(*args, **given)
        except _TOLD as error:
            raise error.with_traceback(None) from None
        return _brief_rows(found) if isinstance(found, Iterator) else found

    return called


def _brief_rows(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except _TOLD as error:
        raise error.with_traceback(None) from None
