"""Error classes by name, for retry rules and failure reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bunqueue.client.connection.options import refused
from bunqueue.client.conversion.raised import well_formed

ErrorClass = type[BaseException] | str
"""A class of exceptions, or its name: ``httpx.ConnectTimeout``, or ``ConnectTimeout`` of any module."""

MAX_NAME = 256  # characters; the protocol's limit
MAX_TYPES = 32  # classes reported for one error


def class_name(kind: type[BaseException]) -> str:
    """`module.Class`; just `Class` for Python's built-in exceptions."""
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[-MAX_NAME:]


def types_of(error: BaseException) -> list[str]:
    """The names of an error's class and its base classes, the most derived first. Empty if a user's metaclass
    prevents finding them. Never raises.
    """
    try:
        kinds = [kind for kind in type.mro(type(error)) if issubclass(kind, BaseException)]
        return [well_formed(class_name(kind)) for kind in kinds[:MAX_TYPES]]
    except BaseException:
        return []


def class_names(classes: ErrorClass | Iterable[ErrorClass], name: str) -> list[str]:
    """The names of some classes. Raises OptionError, beginning with `name`, for anything else."""
    one = isinstance(classes, str | type) or not isinstance(classes, Iterable)
    given: Iterable[Any] = [classes] if one else classes  # type: ignore[assignment]
    return [_named(each, name) for each in given]


def some_class_names(classes: ErrorClass | Iterable[ErrorClass], name: str) -> list[str]:
    """Like `class_names`, for at least one class: an empty list would have no meaning."""
    names = class_names(classes, name)
    if not names:
        raise refused(name, classes, "says nothing; give classes of errors, or None for all")
    return names


def _named(kind: Any, name: str) -> str:
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return class_name(kind)
    if isinstance(kind, str) and 0 < len(kind) <= MAX_NAME and not any(map(str.isspace, kind)):
        return kind
    raise refused(name, kind, "is no class of errors; give some, such as [ConnectionError], or their names")
