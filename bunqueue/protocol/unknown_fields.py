"""Refuses unknown field names, because a misspelled option would silently have no effect.

Over TCP, unknown names are ignored, because clients of other servers and of newer versions send them.  So the
structures of the protocol cannot forbid them, and requests of people are checked here, before they are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec.inspect as mi
from msgspec import Struct

from bunqueue.model.names import hint
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.from_text import UNTOLD
from bunqueue.protocol.lenient import declared_fields

MAX_SHOWN = 64  # characters of a name in an error; also the most that the search for a similar name reads


def check_names(given: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise CommandError for the first unknown name.  ``where`` is its prefix, such as ``jobs[0].``."""
    for name in given:
        if name not in known:
            short = name[:MAX_SHOWN]
            advice = hint(short, known) if known else "leave it out"
            field = f"{where}{short}"
            text = f"{field} is unknown; {advice}"
            raise CommandError(text, Code.UNKNOWN_FIELD, field=field)


def check_fields(request: type[Struct], fields: Mapping[str, Any]) -> None:
    """Raise CommandError for a field that the command, or one of its options, does not have."""
    _check_struct(request, fields, "")


def _check_struct(struct: type[Struct], fields: Mapping[str, Any], where: str) -> None:
    known = _fields(struct)
    check_names(fields, known, where)
    for name, value in fields.items():
        _check(known[name], value, f"{where}{name}")


@cache
def _fields(struct: type[Struct]) -> dict[str, mi.Type]:
    return {field.encode_name: field.type for field in declared_fields(struct) if field.name not in UNTOLD}


def _check(kind: mi.Type, value: Any, where: str) -> None:
    """Check the names inside a value.  A value of the wrong type is passed on, and the server refuses it."""
    if not isinstance(value, dict | list):
        return
    match kind:
        case mi.Metadata(type=inner):
            _check(inner, value, where)
        case mi.UnionType(types=members):  # at most one of them takes maps, and one takes lists
            for member in members:
                _check(member, value, where)
        case mi.StructType(cls=struct) if isinstance(value, dict):
            _check_struct(struct, value, f"{where}.")
        case mi.DictType(value_type=inner) if isinstance(value, dict):
            for name, part in value.items():
                _check(inner, part, f"{where}.{name[:MAX_SHOWN]}")
        case mi.ListType(item_type=inner) if isinstance(value, list):
            for index, part in enumerate(value):
                _check(inner, part, f"{where}[{index}]")
