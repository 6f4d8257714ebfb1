"""Shell completion of the names that a running server knows. On any error it offers nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer

from bunqueue.errors import BunqueueError
from bunqueue.server.settings import SettingsError

if TYPE_CHECKING:
    from bunqueue.client.blocking.admin import Admin

PATIENCE_MS = 700
"""How long pressing the tab key may take."""


def _ask(context: typer.Context, question: Callable[[Admin], Iterable[str]], incomplete: str) -> list[str]:
    """Names that begin with ``incomplete``, from the server that the command line names so far."""
    from dataclasses import replace

    from bunqueue.cli.framework.server_address import endpoint_of
    from bunqueue.client.connection.caller import Caller

    from .checked import CheckedAdmin

    place: dict[str, Any] = {}
    level: Any = context
    while level is not None:
        place = {**{key: value for key, value in level.params.items() if value}, **place}
        level = level.parent
    try:
        endpoint = endpoint_of(place)
        quick = replace(endpoint.options, command_timeout=PATIENCE_MS, connect_timeout=PATIENCE_MS)
        caller = Caller(replace(endpoint, options=quick))
        try:
            return sorted(name for name in question(CheckedAdmin(caller)) if name.startswith(incomplete))
        finally:
            caller.close()
    except (BunqueueError, SettingsError):
        return []


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """Names of queues."""
    return _ask(context, lambda admin: (each.name for each in admin.list_queues()), incomplete)


def crons(context: typer.Context, incomplete: str) -> list[str]:
    """Names of schedules."""
    return _ask(context, lambda admin: (each.name for each in admin.list_crons()), incomplete)


def webhooks(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of webhooks."""
    return _ask(context, lambda admin: (each.id for each in admin.list_webhooks()), incomplete)


def commands(incomplete: str) -> list[str]:
    """Names of commands of the protocol."""
    from bunqueue.client.any_command import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def fields_of_command(context: typer.Context, incomplete: str) -> list[str]:
    """Fields of the command that the line names."""
    from bunqueue.protocol.commands import COMMANDS
    from bunqueue.protocol.from_text import wire_fields

    spec = COMMANDS.get(str(context.params.get("name")))
    fields = () if spec is None else wire_fields(spec.request)
    return [f"{name}=" for name in fields if name.startswith(incomplete)]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """A completer of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
