"""Errors of reading. Each text is one line that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from bunqueue.errors import BunqueueError
from bunqueue.server.folder.unreadable import NotReadable as NotReadable
from bunqueue.server.folder.unreadable import UnreadableShard as UnreadableShard


class EventsLost(Exception):
    """A stream cannot continue without skipping events."""


T = TypeVar("T")


def brief(kind: type[T]) -> type[T]:
    """A class that Spark calls.  Of its errors that say what to do, Spark shows only the text."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, _brief(method))
    return kind


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **given: Any) -> Any:
        with _told():
            found = method(*args, **given)
        return _brief_rows(found) if isinstance(found, Iterator) else found

    return called


def _brief_rows(rows: Iterator[Any]) -> Iterator[Any]:
    with _told():
        yield from rows


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (NotReadable, EventsLost, BunqueueError) as error:
        # Spark's workers end with the error that they report, so this is about no other.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error.with_traceback(None) from None
