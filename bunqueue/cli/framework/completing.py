"""What shells complete: names that a running server knows. Whatever goes wrong, there is just nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import typer

from bunqueue.errors import BunqueueError
from bunqueue.settings import SettingsError

PATIENCE_MS = 700
"""How long a person waits who has pressed the tab key."""


def _ask(context: typer.Context, question: Callable[[Any], Iterable[str]], incomplete: str) -> list[str]:
    """Answers to a question to the server that the command line names so far."""
    from dataclasses import replace

    from bunqueue.client.connection.caller import Caller

    from .place import endpoint_of

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
            return sorted(name for name in question(caller) if name.startswith(incomplete))
        finally:
            caller.close()
    except (BunqueueError, SettingsError):
        return []


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """Names of queues."""
    from bunqueue.client.models import jobs as replies
    from bunqueue.protocol.commands import server

    def names(caller: Any) -> Iterable[str]:
        found = caller.call(server.ListQueues(), replies.NamesOfQueues).queues
        return (each if isinstance(each, str) else each.name for each in found)

    return _ask(context, names, incomplete)


def crons(context: typer.Context, incomplete: str) -> list[str]:
    """Names of schedules."""
    from bunqueue.protocol.commands import cron

    def names(caller: Any) -> Iterable[str]:
        return (each.name for each in caller.call(cron.CronList(), cron.CronListReply).crons)

    return _ask(context, names, incomplete)


def webhooks(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of webhooks."""
    from bunqueue.protocol.commands import webhooks

    def ids(caller: Any) -> Iterable[str]:
        reply = caller.call(webhooks.ListWebhooks(), webhooks.ListWebhooksReply)
        return (each.id for each in reply.data.webhooks)

    return _ask(context, ids, incomplete)


def one_of(*words: str) -> Callable[[str], list[str]]:
    """These words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
