"""Encoding of values as MessagePack: msgspec's types, Pydantic models, and classes defined by their text."""

from __future__ import annotations

from typing import Any

from msgspec.msgpack import Encoder

STORABLE = (
    "dicts, lists, text, numbers, bytes, dates, dataclasses, attrs classes, Pydantic models or msgspec "
    "structs"
)
"""What can be sent and stored, in the words of error messages."""

_AS_TEXT = frozenset(
    {
        ("pathlib", "PurePath"),
        ("ipaddress", "IPv4Address"),
        ("ipaddress", "IPv4Interface"),
        ("ipaddress", "IPv4Network"),
        ("ipaddress", "IPv6Address"),
        ("ipaddress", "IPv6Interface"),
        ("ipaddress", "IPv6Network"),
    }
)
"""Classes by name, to avoid importing them. Each class makes an equal object from its `str` text."""


def is_text(kind: type) -> bool:
    """Whether objects of a class are sent as their text."""
    return any((each.__module__, each.__qualname__) in _AS_TEXT for each in kind.__mro__)


def is_pydantic(kind: type) -> bool:
    """Whether Pydantic handles a class, as a model or as a custom type."""
    return hasattr(kind, "__get_pydantic_core_schema__")


def to_plain(value: object) -> Any:
    """Convert an object that msgspec does not know to one that it does. Raises TypeError if that is
    impossible.
    """
    kind = type(value)
    if is_pydantic(kind):
        from bunqueue.client.conversion import models

        return models.dumped(value)
    if is_text(kind):
        return str(value)
    raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")


encode = Encoder(enc_hook=to_plain).encode
"""A value as MessagePack. Raises whatever the conversion of foreign types raises."""
