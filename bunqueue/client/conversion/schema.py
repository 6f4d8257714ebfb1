"""What a type takes, as a JSON Schema for those who send values from elsewhere."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.encoding import is_text
from bunqueue.model.workflow import MAX_SCHEMA_BYTES

MOST = MAX_SCHEMA_BYTES - 1024  # as MessagePack; a codec may add some

_encode = msgspec.msgpack.Encoder().encode
_ALSO_NUMBERS = {"type": ["string", "number"], "format": "decimal"}


@lru_cache(maxsize=1024)
def schema_of(converting: Converter) -> Raw | None:
    """As MessagePack; None for a type that has none, or too large a one: then only who takes a value can say
    whether it fits. It never refuses what the type takes, if it is sent as the SDK sends it."""
    try:
        found = _by_pydantic(converting.hint) if converting.by_pydantic else _by_msgspec(converting.hint)
        encoded = _encode(found)
    except Exception:  # classes and annotations may say anything of themselves
        return None
    return Raw(encoded) if found and len(encoded) <= MOST else None


def _by_msgspec(hint: Any) -> dict[str, Any]:
    found: dict[str, Any] = _loosened(msgspec.json.schema(hint, schema_hook=_of_foreign))
    return found


def _of_foreign(kind: type) -> dict[str, Any]:
    """Of a class that msgspec does not know."""
    return {"type": "string"} if is_text(kind) else {}


def _loosened(schema: Any) -> Any:
    """Numbers are taken for decimals, too."""
    if isinstance(schema, list):
        return [_loosened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {**schema, **_ALSO_NUMBERS}
    return {name: _loosened(each) for name, each in schema.items()}


def _by_pydantic(hint: Any) -> dict[str, Any]:
    """By the names that the SDK sends. Where there are aliases, too, either may come, so no name is asked
    for, or refused."""
    from bunqueue.client.conversion import models

    adapter = models.adapter(hint)
    found = adapter.json_schema(by_alias=False, mode="validation")
    if found != adapter.json_schema(by_alias=True, mode="validation"):
        found = _without_names(found)
    return found


def _without_names(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_names(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if not _is_of_names(name, each)}
    return {name: _without_names(each) for name, each in kept.items()}


def _is_of_names(keyword: str, value: object) -> bool:
    """`required`, and that no others are allowed; properties may be called so, too."""
    is_keyword = isinstance(value, list) if keyword == "required" else value is False
    return keyword in ("required", "additionalProperties") and is_keyword
