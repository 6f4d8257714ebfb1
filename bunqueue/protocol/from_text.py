"""Converts text from a URL or a command line to the type of a command's field.  Text that does not fit is
passed on, and the server refuses it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from bunqueue.protocol.commands import COMMANDS

UNTOLD = ("req_id",)  # fields that belong to a connection


@cache
def wire_fields(request: type[Struct]) -> dict[str, Any]:
    """The fields of a command by their wire names, with their types."""
    hints = get_type_hints(request)
    found = msgspec.structs.fields(request)
    return {field.encode_name: hints[field.name] for field in found if field.name not in UNTOLD}


@cache
def _kinds(request: type[Struct], name: str) -> tuple[frozenset[Any], frozenset[Any]]:
    """The types that a field takes, and the types of its entries if it takes a list."""
    kinds: set[Any] = set()
    entries: set[Any] = set()
    for kind in _alternatives(wire_fields(request).get(name, str)):
        kinds.add(get_origin(kind) or kind)
        if get_origin(kind) is list:
            entries.update(_alternatives(get_args(kind)[0]))
    return frozenset(kinds), frozenset(entries)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def from_texts(request: type[Struct], name: str, texts: list[str]) -> Any:
    """The value of a field in a query.  A repeated name gives a list."""
    kinds, entries = _kinds(request, name)
    if list in kinds and not (len(texts) == 1 and texts[0].startswith("[")):
        if len(texts) > 1 or str not in kinds:
            return [_value(text, entries) for text in texts]
    return _value(texts[-1], kinds)


def _value(text: str, kinds: frozenset[Any]) -> Any:
    """The value of a text.  Numbers, booleans, maps and data are written as in JSON."""
    if kinds <= {str, list, NoneType, UnsetType} and not (list in kinds and text.startswith("[")):
        return text
    return json_or_text(text)


def json_or_text(text: str) -> Any:
    """The value of a text that may be JSON."""
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text


def fields_of(command: str, texts: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The fields of a command from their names and texts.  ``dedup.ttl`` is the field ``ttl`` of the field
    ``dedup``.  A repeated name gives a list.  ValueError if a field that has fields is no map."""
    given: dict[str, list[str]] = {}
    for name, text in texts:
        given.setdefault(name, []).append(text)
    spec = COMMANDS.get(command)
    fields: dict[str, Any] = {}
    for name, values in sorted(given.items()):  # a field before the fields in it
        *path, last = name.split(".")
        place: Any = fields
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"{name}: {part} is {values[0]!r} already")
        if path or spec is None:
            parts = [json_or_text(each) for each in values]
            place[last] = parts[0] if len(parts) == 1 else parts
        else:
            place[last] = from_texts(spec.request, last, values)
    return fields
