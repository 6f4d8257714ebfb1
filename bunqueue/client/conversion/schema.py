"""The JSON Schema of a type, for programs that send values from elsewhere."""

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
    """The schema as MessagePack; None for a type without one or with one that is too large. Then only the
    receiver can tell whether a value fits. A schema never refuses a value that the SDK can send for the type.
    """
    try:
        found = _by_pydantic(converting.hint) if converting.by_pydantic else _by_msgspec(converting.hint)
        encoded = _encode(found)
    except Exception:  # classes and annotations may report anything
        return None
    return Raw(encoded) if found and len(encoded) <= MOST else None


def _by_msgspec(hint: Any) -> dict[str, Any]:
    found: dict[str, Any] = _loosened(msgspec.json.schema(hint, schema_hook=_of_foreign))
    return found


def _of_foreign(kind: type) -> dict[str, Any]:
    """The schema of a class that msgspec does not know."""
    return {"type": "string"} if is_text(kind) else {}


def _loosened(schema: Any) -> Any:
    """Accept numbers for decimals as well as text."""
    if isinstance(schema, list):
        return [_loosened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {**schema, **_ALSO_NUMBERS}
    return {name: _loosened(each) for name, each in schema.items()}


def _by_pydantic(hint: Any) -> dict[str, Any]:
    """By the names that the SDK sends. If there are aliases, either name may come, so names are neither
    required nor refused.
    """
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
    """Whether it is `required`, or forbids additional properties; a property may have either name."""
    is_keyword = isinstance(value, list) if keyword == "required" else value is False
    return keyword in ("required", "additionalProperties") and is_keyword
