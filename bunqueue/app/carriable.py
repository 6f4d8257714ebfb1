"""Which types the data and the result of a job can carry: what was put in has to come out as the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec.inspect as mi
from msgspec import Raw, Struct

_DECODED = (dict, list, str, int, float, bool, bytes, type(None), datetime)
"""What MessagePack is decoded to where no type is known."""


def check_carriable(hint: Any, where: str) -> None:
    """TypeError, which begins with `where`, for a type whose values never arrive, or arrive as another."""
    for kind in _classes(hint):
        if _arrives(kind):
            continue
        if hasattr(kind, "model_dump"):
            name = kind.__name__
            raise TypeError(
                f"{where} is the Pydantic model {name}, which jobs cannot carry: declare a dict, give "
                f'model_dump(mode="json"), and make the model of it again with {name}.model_validate()'
            )
        raise TypeError(
            f"{where} has the type {kind.__qualname__}, which jobs cannot carry; use dicts, lists, text, "
            f"numbers, bytes, dates, dataclasses or msgspec structs"
        )


def _classes(hint: Any) -> Iterator[type]:
    """The classes in an annotation that msgspec knows nothing of."""
    origin = get_origin(hint)
    if origin is Literal:
        return
    if origin is Annotated:
        hint, *_ = get_args(hint)
        yield from _classes(hint)
        return
    for part in get_args(hint):
        yield from _classes(part)
    if origin in (Union, UnionType):
        return
    try:
        info = mi.type_info(hint if origin is None else origin)
    except Exception:  # what msgspec cannot use at all it says itself
        return
    yield from _unknown(info, set())


def _unknown(info: Any, seen: set[type]) -> Iterator[type]:
    """The same of what msgspec says of a type, down to the fields of structs and dataclasses."""
    if isinstance(info, mi.CustomType):
        yield info.cls
    elif isinstance(info, mi.RawType):
        yield Raw
    elif isinstance(info, tuple):
        for part in info:
            yield from _unknown(part, seen)
    elif isinstance(info, mi.Type | mi.Field):
        cls = getattr(info, "cls", None)
        if cls is not None:
            if cls in seen:
                return
            seen.add(cls)
        for name in info.__struct_fields__:
            part = getattr(info, name)
            if isinstance(part, Struct | tuple):
                yield from _unknown(part, seen)


def _arrives(kind: type) -> bool:
    """Whether decoded data can be an instance of it, as of `object` or `Hashable`."""
    try:
        return any(issubclass(each, kind) for each in _DECODED)
    except TypeError:  # a protocol that cannot be asked
        return False
