"""Which commands are tools, and how a tool describes itself.  All of it is derived from the command table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mcp.types import Tool, ToolAnnotations
from msgspec import Struct

from bunqueue.client.connection.options import unfit
from bunqueue.gateway.api_docs.schemas import Schema, Schemas, prose
from bunqueue.gateway.http import resources
from bunqueue.protocol.commands import Command, Spec

OF_WORKERS = frozenset({"RegisterWorker", "UnregisterWorker", "Heartbeat"})
"""Commands of worker programs about themselves; a registration ends with its connection."""
OFFERED: Mapping[str, Spec] = {
    name: spec for name, spec in resources.OFFERED.items() if name not in OF_WORKERS
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "FindJobs": {"limit": 20, "dataLimit": 4096},
    "GetJobs": {"limit": 20, "dataLimit": 4096},
    "GetGroupJobs": {"limit": 20, "dataLimit": 4096},
    "Dlq": {"count": 20},
}
"""Defaults of a tool's fields if the assistant gives none: pages that fit into a conversation."""
DEFINITIONS = "#/$defs/"


def choose(allow_writes: bool, only: Sequence[str] = ()) -> dict[str, Spec]:
    """The offered commands, by name: those that only read, or all of them.  If `only` has patterns, such as
    "Get*", only those with a matching name.  Raises OptionError for a pattern without a match."""
    allowed = {name: spec for name, spec in OFFERED.items() if allow_writes or not spec.writes}
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in allowed):
            raise unfit("only", f"{pattern!r} matches {_nothing(pattern)}; bunqueue mcp --list shows all")
    return {
        name: spec
        for name, spec in allowed.items()
        if not only or any(fnmatchcase(name, pattern) for pattern in only)
    }


def _nothing(pattern: str) -> str:
    changes = any(fnmatchcase(name, pattern) for name in OFFERED)
    return "only tools that change something, see --allow-writes" if changes else "no tool"


def with_defaults(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a call, with the defaults for missing ones."""
    return resources.with_defaults(name, {**DEFAULTS.get(name, {}), **fields})


def tool_of(spec: Spec) -> Tool:
    """A command as a tool: its name, description and fields."""
    text = prose(spec.request.__doc__ or "")
    return Tool(
        name=spec.name,
        title=re.split(r"(?<=\.) |: |; ", text)[0].rstrip(".:;"),
        description=_described(spec),
        input_schema=_schema(spec),
        annotations=ToolAnnotations(
            read_only_hint=not spec.writes,
            destructive_hint=spec.writes and not spec.grows,  # a command that grows the data only adds to it
            idempotent_hint=spec.repeatable,
            open_world_hint=False,
        ),
    )


def _described(spec: Spec) -> str:
    parts = [prose(each.__doc__ or "") for each in _families(spec.request)]
    defaults = DEFAULTS.get(spec.name, {})
    if defaults:
        sentence = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in defaults.items())
        parts.append(f"Unless the call says otherwise: {sentence}.")
    if spec.writes:
        parts.append("This changes something.")
    return " ".join(part for part in parts if part)


def _families(request: type[Struct]) -> list[type]:
    """A command's class, and its base classes that have fields and a description."""
    found = [each for each in request.__mro__ if issubclass(each, Struct) and "__doc__" in vars(each)]
    return [each for each in found if each not in (Struct, Command)]


def _schema(spec: Spec) -> Schema:
    schemas = Schemas(DEFINITIONS)
    schema = schemas.of_request(spec.request)
    schema.pop("description", None)
    for name, value in DEFAULTS.get(spec.name, {}).items():
        schema["properties"][name] = {**schema["properties"][name], "default": value}
    if schemas.components:
        schema["$defs"] = schemas.components
    return schema
