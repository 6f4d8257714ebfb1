"""Configurations of which clients change single fields."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Raw, Struct, convert, to_builtins
from msgspec.msgpack import Encoder

from .lenient import clean

C = TypeVar("C", bound=Struct)

_encode = Encoder().encode


def changed(config: C, changes: Struct) -> C:
    """``config`` with the fields set in ``changes``; CommandError names a field that is out of bounds."""
    given: dict[str, Any] = to_builtins(changes)  # omits UNSET fields
    numbers = {name: _number(value) for name, value in given.items()}
    checked = clean(type(config), {name: Raw(_encode(value)) for name, value in numbers.items()})
    nulls = {name: None for name, value in given.items() if value is None}
    return convert({**to_builtins(config), **checked, **nulls}, type(config))


def _number(value: Any) -> Any:
    """Convert a number given as text; return other values unchanged."""
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value
