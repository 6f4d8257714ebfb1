"""The table of resources: which method and path map to which command, as the commands declare it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bunqueue.protocol.commands import COMMANDS, Spec
from bunqueue.protocol.commands.base import Tag

OFFERED: Mapping[str, Spec] = {name: spec for name, spec in COMMANDS.items() if spec.is_offered}

_PULL: Mapping[str, Any] = {"detach": True, "group": {"fair": True}}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"PULL": _PULL, "PULLB": _PULL}
"""Defaults of commands over HTTP. A pulled job stays with its worker, because no connection ends that could
release it. Groups take turns by weight, as for workers of this package."""


def with_defaults(command: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request, with the defaults for missing ones, also within `group`."""
    found = {**DEFAULTS.get(command, {}), **fields}
    for name, default in DEFAULTS.get(command, {}).items():
        if isinstance(default, Mapping) and isinstance(found[name], Mapping):
            found[name] = {**default, **found[name]}
    return found


_METHODS = ("GET", "PUT", "POST", "DELETE")


@dataclass(frozen=True)
class Resource:
    """One method of one path."""

    spec: Spec
    method: str
    path: str
    tag: Tag
    whole: str | None
    """The field that gets the whole body, which may be any JSON value. The other fields are in the query."""

    @property
    def command(self) -> str:
        return self.spec.name

    @property
    def names(self) -> list[str]:
        """The fields in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def has_body(self) -> bool:
        """Whether the other fields are in the body. If not, they are in the query."""
        return self.method in ("POST", "PUT") and self.whole is None


def _place(resource: Resource) -> tuple[object, ...]:
    """Sorts by headings, then by paths, with fixed names before fields."""
    return list(Tag).index(resource.tag), resource.path.split("/"), _METHODS.index(resource.method)


RESOURCES: tuple[Resource, ...] = tuple(
    sorted((Resource(spec, *route) for spec in COMMANDS.values() for route in spec.http), key=_place)
)
