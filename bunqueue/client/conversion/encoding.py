"""Values as MessagePack: all that msgspec knows, Pydantic's models, and classes that their text describes."""

from __future__ import annotations

from typing import Any

from msgspec.msgpack import Encoder

STORABLE = (
    "dicts, lists, text, numbers, bytes, dates, dataclasses, attrs classes, Pydantic models or msgspec "
    "structs"
)
"""What can be sent and stored, as refusals say it."""

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
"""Classes by name, so that nobody has to import them: `str` gives a text of which the class makes an equal
object."""


def is_text(kind: type) -> bool:
    """Whether objects of a class are sent as their text."""
    return any((each.__module__, each.__qualname__) in _AS_TEXT for each in kind.__mro__)


def is_pydantic(kind: type) -> bool:
    """Whether Pydantic knows how to treat a class, as a model, or as a type of its own."""
    return hasattr(kind, "__get_pydantic_core_schema__")


def to_plain(value: object) -> Any:
    """An object that msgspec does not know, as something that it does. TypeError for what nobody knows."""
    kind = type(value)
    if is_pydantic(kind):
        from bunqueue.client.conversion import models

        return models.dumped(value)
    if is_text(kind):
        return str(value)
    raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")


encode = Encoder(enc_hook=to_plain).encode
"""A value as MessagePack. Raises whatever the conversion of foreign types raises."""
