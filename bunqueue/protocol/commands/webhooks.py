"""Webhooks: who is told of events over HTTP."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.protocol.commands.base import Command, QueueName, Reply, Route, Text, command
from bunqueue.protocol.commands.workers import RemovedReply

EVENTS = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress")


class AddedWebhook(Struct, rename="camel", gc=False):
    webhook_id: str
    url: str
    events: list[str]
    queue: str | None  # null: all queues
    created_at: float  # epoch ms


class AddWebhookReply(Reply, kw_only=True):
    data: AddedWebhook


class WebhookInfo(Struct, rename="camel", gc=False):
    """A webhook without its secret.  Times in epoch ms."""

    id: str
    url: str
    events: list[str]
    queue: str | None
    created_at: float
    last_triggered: float | None
    success_count: int
    failure_count: int
    enabled: bool


class WebhookStats(Struct, rename="camel", gc=False):
    total: int
    enabled: int
    success_count: int
    failure_count: int


class WebhookList(Struct, gc=False):
    webhooks: list[WebhookInfo]
    stats: WebhookStats


class ListWebhooksReply(Reply, kw_only=True):
    data: WebhookList


@command(Route.FIRST, AddWebhookReply, writes=True, grows=True)
class AddWebhook(Command, kw_only=True, tag="AddWebhook"):
    """Have events of one queue, or of all, sent to a URL; addresses inside the network are refused."""

    url: str = ""
    events: Annotated[list[Text], Meta(max_length=64)]
    queue: QueueName | None = None
    secret: Annotated[str, Meta(max_length=1024, description="signs what is sent")] | None = None


@command(Route.FIRST, RemovedReply, writes=True)
class RemoveWebhook(Command, tag="RemoveWebhook"):
    """Remove a webhook."""

    webhook_id: Text


@command(Route.FIRST, ListWebhooksReply)
class ListWebhooks(Command, tag="ListWebhooks"):
    """All webhooks, in the order in which they were added."""


@command(Route.FIRST, writes=True, repeatable=True, since=3)
class SetWebhookEnabled(Command, tag="SetWebhookEnabled"):
    """Switch a webhook on or off."""

    id: Text
    enabled: bool
