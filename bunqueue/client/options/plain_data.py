"""Rejects job data that would silently arrive as something other than what was given."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from bunqueue.client.connection.options import shown
from bunqueue.errors import PayloadError

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_FIXES = {
    datetime: "give it a time zone, as datetime.now(UTC) has one, or its isoformat()",
    date: "give its isoformat()",
    time: "give its isoformat()",
    timedelta: "give its total_seconds()",
    UUID: "give str() of it",
}


class Declared(dict[str, Any]):
    """The arguments of a function with annotations: the worker converts them back to the annotated types."""

    __slots__ = ()


def is_plain(data: object) -> bool:
    """Whether data is one plain value or a dict of them, as nearly all data is: then all is well."""
    if type(data) is not dict:
        return type(data) in _PLAIN
    for value in data.values():  # `all` and `map` would take longer
        if type(value) not in _PLAIN:
            return False
    return True


def check_plain(data: object, what: str) -> None:
    """Raise PayloadError, beginning with `what`, for a value in `data` that would arrive as text.

    Objects of classes with declared fields are skipped. `data` must not have cycles.
    """
    if (problem := not_plain(data)) is not None:
        text, value = problem
        raise PayloadError(
            f"{what} has {text}; or add the job as a function of an app that declares the type",
            field="data",
            value=value,
        )


def not_plain(data: object) -> tuple[str, str] | None:
    """What is wrong with the first such value, and the value to show; None if all values are plain."""
    if is_plain(data) or (found := _find(data)) is None:
        return None
    path, value = found
    fix = next(fix for kind, fix in _FIXES.items() if isinstance(value, kind))
    where = f" at {path}" if path else ""
    return f"{shown(value)}{where}, which would arrive as text: {fix}", shown(value)


def _find(value: Any) -> tuple[str, object] | None:
    """The first such value, and the path to it: "['order']['id']"."""
    kind = type(value)
    items: Iterable[tuple[Any, Any]]
    if kind is dict:
        if _PLAIN.issuperset(map(type, value.values())):
            return None
        items = value.items()
    elif kind is list or kind is tuple:
        if _PLAIN.issuperset(map(type, value)):
            return None
        items = enumerate(value)
    else:
        aware = isinstance(value, datetime) and value.tzinfo is not None
        return ("", value) if isinstance(value, tuple(_FIXES)) and not aware else None
    for key, each in items:
        if type(each) not in _PLAIN and (found := _find(each)) is not None:
            return f"[{key!r}]{found[0]}", found[1]
    return None
