"""The types that job data and results can carry: a value must arrive as what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec.inspect as mi
from msgspec import Meta, Raw, Struct

from bunqueue.client.conversion.encoding import is_pydantic, is_text

_DECODED = (dict, list, str, int, float, bool, bytes, type(None), datetime)
"""The types of decoded MessagePack if no type is known."""
_PYDANTICS = ("pydantic", "pydantic_core", "annotated_types")
"""Packages whose annotations Pydantic understands and msgspec does not."""


def check_carriable(hint: Any, where: str) -> bool:
    """Whether an annotation has classes for which msgspec needs our hook. Raises TypeError, beginning with
    `where`, for a type whose values cannot arrive, or would arrive as another type.
    """
    foreign = list(_classes(hint))
    for kind in foreign:
        if _arrives(kind) or is_text(kind) or is_model(kind):
            continue
        raise TypeError(
            f"{where} has the type {kind.__qualname__}, which jobs cannot carry; use dicts, lists, text, "
            f"numbers, bytes, dates, dataclasses, attrs classes, Pydantic models or msgspec structs"
        )
    return bool(foreign)


def is_model(kind: type) -> bool:
    """Whether a class is a Pydantic model."""
    return is_pydantic(kind) and hasattr(kind, "model_fields")


def needs_pydantic(hint: Any) -> bool:
    """Whether an annotation needs Pydantic: it has a model, or one of Pydantic's own constraints.

    The fields of dataclasses and structs are not checked: these belong to msgspec.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return False
    if origin is Annotated:
        kind, *notes = parts
        return any(map(_is_pydantics, notes)) or needs_pydantic(kind)
    if isinstance(hint, type) and is_pydantic(hint):
        return True
    return any(needs_pydantic(part) for part in parts)


def has_bounds_of_both(hint: Any) -> bool:
    """Whether an annotation has constraints of msgspec next to those of Pydantic: one of them would be
    ignored.
    """
    if get_origin(hint) is Annotated and any(isinstance(note, Meta) for note in get_args(hint)[1:]):
        return True
    return any(has_bounds_of_both(part) for part in get_args(hint))


def _is_pydantics(note: object) -> bool:
    kind = note if isinstance(note, type) else type(note)
    return any(each.__module__.partition(".")[0] in _PYDANTICS for each in kind.__mro__)


def _classes(hint: Any) -> Iterator[type]:
    """The classes in an annotation that msgspec does not know."""
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
    for info in _infos(hint if origin is None else origin):
        if isinstance(info, mi.CustomType):
            yield info.cls
        elif isinstance(info, mi.RawType):
            yield Raw


def records_of(hint: Any) -> set[type]:
    """The classes with declared fields that values of an annotation consist of."""
    found: set[type] = set()
    _collect_records(hint, found)
    return found


def _collect_records(hint: Any, found: set[type]) -> None:
    for part in get_args(hint):
        _collect_records(part, found)
    if not isinstance(hint, type) or hint in found:
        return
    if is_model(hint):
        found.add(hint)
        for field in hint.model_fields.values():  # type: ignore[attr-defined]
            _collect_records(field.annotation, found)
        return
    for info in _infos(hint):
        if isinstance(info, mi.StructType | mi.DataclassType):
            found.add(info.cls)
        elif isinstance(info, mi.CustomType):
            _collect_records(info.cls, found)


def _infos(kind: Any) -> list[Any]:
    """What msgspec reports about a type and all types in it; empty if msgspec cannot use the type."""
    try:
        info = mi.type_info(kind)
    except Exception:  # the error is raised where the type is used
        return []
    return list(_below(info, set()))


def _below(info: Any, seen: set[type]) -> Iterator[Any]:
    """A type's information and all that is nested in it, down to the fields of structs and dataclasses."""
    if isinstance(info, tuple):
        for part in info:
            yield from _below(part, seen)
    elif isinstance(info, mi.Type | mi.Field):
        yield info
        cls = getattr(info, "cls", None)
        if cls is not None:
            if cls in seen:
                return
            seen.add(cls)
        for name in info.__struct_fields__:
            part = getattr(info, name)
            if isinstance(part, Struct | tuple):
                yield from _below(part, seen)


def _arrives(kind: type) -> bool:
    """Whether decoded data can be an instance of it, for example of `object` or `Hashable`."""
    try:
        return any(issubclass(each, kind) for each in _DECODED)
    except TypeError:  # a protocol that does not support issubclass
        return False
