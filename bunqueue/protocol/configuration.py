"""Configurations that clients change piece by piece."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Raw, Struct, convert, to_builtins
from msgspec.msgpack import Encoder

from .lenient import clean

C = TypeVar("C", bound=Struct)

_encode = Encoder().encode


def changed(config: C, changes: Struct) -> C:
    """``config`` with what is set in ``changes``; CommandError names the field that is out of bounds."""
    given: dict[str, Any] = to_builtins(changes)  # without what is UNSET
    numbers = {name: _number(value) for name, value in given.items()}
    checked = clean(type(config), {name: Raw(_encode(value)) for name, value in numbers.items()})
    nulls = {name: None for name, value in given.items() if value is None}
    return convert({**to_builtins(config), **checked, **nulls}, type(config))


def _number(value: Any) -> Any:
    """A number that was given as text; other values are as they are."""
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value
