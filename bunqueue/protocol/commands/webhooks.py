"""Webhooks: URLs that receive events over HTTP."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Command,
    Data,
    Message,
    Ok,
    QueueName,
    QueueOf,
    Reach,
    Removed,
    Reply,
    Route,
    Tag,
    Text,
    command,
    http,
)
from bunqueue.protocol.commands.events import Place
from bunqueue.protocol.commands.times import Time
from bunqueue.protocol.moments import MaybeMoment, Moment

EVENTS = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress", "error.returned")


class AddedWebhook(Struct, rename="camel", gc=False):
    webhook_id: str
    url: str
    events: list[str]
    queue: QueueOf | None  # null: all queues
    created_at_ms: float = msgspec.field(name="createdAt")  # epoch ms

    created_at = Moment("created_at_ms")


class WebhookInfo(Struct, rename="camel", gc=False):
    """A webhook without its secret; a password in its URL is shown as ``***``.  Times are in epoch ms."""

    id: str
    url: str
    events: list[str]
    queue: QueueOf | None
    created_at_ms: float = msgspec.field(name="createdAt")
    last_triggered_ms: float | None = msgspec.field(name="lastTriggered")
    success_count: int
    failure_count: int
    enabled: bool
    last_error: str | None = None  # of the last delivery, if it failed

    created_at = Moment("created_at_ms")
    last_triggered = MaybeMoment("last_triggered_ms")


class WebhookStats(Struct, rename="camel", gc=False):
    total: int
    enabled: int
    success_count: int
    failure_count: int


class WebhookList(Struct, gc=False):
    webhooks: list[WebhookInfo]
    stats: WebhookStats


Secret = Annotated[str, Meta(min_length=1, max_length=1024, description="signs the deliveries")]


@http("POST /webhooks", Tag.WEBHOOKS)
@command(Route.FIRST, Verb.ADMINISTER, writes=True, grows=True, reach=Reach.ALLOWED)
class AddWebhook(Command[Data[AddedWebhook]], kw_only=True, tag="AddWebhook"):
    """Send the events of one queue, or of all, to a URL.  Addresses inside the network are refused."""

    url: str = ""
    events: Annotated[list[Text], Meta(max_length=64)]
    queue: QueueName | None = None
    secret: Secret | None = None


@http("DELETE /webhooks/{webhookId}", Tag.WEBHOOKS)
@command(Route.FIRST, Verb.ADMINISTER, writes=True, reach=Reach.ALLOWED)
class RemoveWebhook(Command[Data[Removed]], tag="RemoveWebhook"):
    """Remove a webhook."""

    webhook_id: Text


@http("GET /webhooks", Tag.WEBHOOKS)
@command(Route.FIRST, Verb.ADMINISTER, masked=Verb.SEE, reach=Reach.ALLOWED)
class ListWebhooks(Command[Data[WebhookList]], tag="ListWebhooks"):
    """List all webhooks, oldest first."""


@http("PUT /webhooks/{id}/enabled", Tag.WEBHOOKS)
@command(Route.FIRST, Verb.ADMINISTER, writes=True, repeatable=True, since=3, reach=Reach.ALLOWED)
class SetWebhookEnabled(Command[Ok], tag="SetWebhookEnabled"):
    """Switch a webhook on or off."""

    id: Text
    enabled: bool


class Trial(Struct, rename="camel", gc=False):
    """The outcome of a test delivery: the ``status`` of the answer, or the ``error`` if none came."""

    delivered: bool
    status: int | None
    error: str | None
    duration_ms: float


@http("POST /webhooks/{webhookId}/test", Tag.WEBHOOKS)
@command(Route.FIRST, Verb.ADMINISTER, writes=True, parks=True, since=3, reach=Reach.ALLOWED)
class TryWebhook(Command[Data[Trial]], tag="TestWebhook"):
    """Send a webhook a test delivery, whether it is on or off, and return the outcome.

    The HTTP gateway sends it.  An outcome after more than ``timeout`` ms is not reported.
    """

    webhook_id: Text
    timeout: Annotated[float, Meta(ge=1, le=60_000)] = 20_000


class WantedTrial(Struct, rename="camel", gc=False):
    trial: str
    webhook_id: str


class Delivery(Struct, rename="camel", gc=False):
    """A webhook with everything that its deliverer needs."""

    id: str
    url: str
    events: list[str]
    queue: str | None
    secret: str | None
    enabled: bool
    places: list[int] | None  # the last delivered event of each shard; null: unknown
    until: float  # time of the last of these events, or when the webhook was added, epoch ms


class DeliveriesReply(Reply, kw_only=True):
    """``trials`` has the pending test deliveries; each is listed once.  ``delivers``: whether the asker
    should deliver; if not, both lists are empty."""

    webhooks: list[Delivery]
    trials: list[WantedTrial]
    delivers: bool = True


@command(Route.FIRST, Verb.ADMINISTER, internal=True)
class GetDeliveries(Command[DeliveriesReply], tag="GetDeliveries"):
    """Get all webhooks with secrets and delivery positions, and the pending test deliveries.

    In a cluster each host has a gateway, and one of them delivers.  ``deliverer`` names the gateway that
    asks, and ``delivers`` is whether it has been the delivering one so far.  The others get empty lists.
    """

    deliverer: Annotated[str, Meta(max_length=64)] = ""
    delivers: bool = False


@command(Route.FIRST, Verb.ADMINISTER, writes=True, internal=True)
class RecordDelivery(Command[Ok], tag="RecordDelivery"):
    """Store how far a webhook's events were delivered, and the outcome."""

    webhook_id: Text
    places: Annotated[list[Place], Meta(max_length=64)] | None = None
    until: Time | None = None
    succeeded: Annotated[int, Meta(ge=0, le=MAX_SAFE)] = 0
    failed: Annotated[int, Meta(ge=0, le=MAX_SAFE)] = 0
    at: Time | None = None
    error: Message | None = None  # of the last attempt, if it failed
    disable: bool = False


@command(Route.FIRST, Verb.ADMINISTER, writes=True, internal=True)
class RecordTrial(Command[Ok], tag="RecordTrial"):
    """Report the outcome of a test delivery to the client that requested it."""

    trial: Text
    data: Trial
