"""All functions of a shard, by what they handle: commands, messages of other shards, stored records."""

from __future__ import annotations

from collections.abc import Container
from importlib import import_module
from pkgutil import walk_packages

from bunqueue.protocol.commands import COMMANDS, Route

from . import handlers, lifecycle, memory, peers
from .registry import HANDLERS, RECORDS

__all__ = ["HANDLERS", "RECORDS"]


def unhandled(handled: Container[object]) -> list[str]:
    """The names of the commands for shards that have no handler."""
    return [
        spec.name
        for spec in COMMANDS.values()
        if spec.route is not Route.ROUTER
        and not all(request in handled for request in (spec.request, spec.plain) if request is not None)
    ]


for package in (handlers, lifecycle, memory, peers):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)

if missing := unhandled(HANDLERS):
    raise TypeError(f"no function handles {', '.join(missing)}")
