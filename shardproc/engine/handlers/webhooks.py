"""Webhooks: kept on the first shard, since events of all queues may concern them."""

from __future__ import annotations

from msgspec.json import Decoder

from bunqueue.model.addresses import url_problem, without_password
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.base import Data, Removed
from bunqueue.protocol.commands.webhooks import (
    EVENTS,
    AddedWebhook,
    AddWebhook,
    Delivery,
    ListWebhooks,
    RecordDelivery,
    RemoveWebhook,
    SetWebhookEnabled,
    WebhookInfo,
    WebhookList,
    WebhookStats,
)

from ..memory.webhooks import Webhook
from ..registry import handles, recovers
from ..scoped import allows, is_limited
from ..state import Client, State

KIND = "webhook"
MAX_WEBHOOKS = 1000
SLOT = 0  # webhooks belong to no queue

_decode = Decoder(Webhook).decode


def slot_of_record(key: str, value: str) -> int:
    """The slot of a stored record."""
    return SLOT


@recovers(KIND, slot_of_record)
def recover(state: State, key: str, value: str) -> None:
    hook = state.webhooks[key] = _decode(value)
    if hook.places is not None and len(hook.places) != state.shards:  # the number of logs has changed
        hook.places = None
        state.out.keep(KIND, key, hook)


@handles(AddWebhook)
def add_webhook(state: State, client: Client, command: AddWebhook) -> Data[AddedWebhook]:
    _check(state, command)
    if client.scope is not None and is_limited(client) and command.queue is None:
        bound = ", ".join(client.scope.identity.queues or ("*",))
        text = f"a webhook of {client.scope.identity.name} needs a queue that it is for: {bound}"
        raise CommandError(text, Code.FORBIDDEN, field="queue", bound=bound)
    if len(state.webhooks) >= MAX_WEBHOOKS:
        raise CommandError(
            f"Too many webhooks (max {MAX_WEBHOOKS}): remove one that is no longer needed",
            Code.TOO_MANY_WEBHOOKS,
            field="url",
            value=command.url,
            bound=MAX_WEBHOOKS,
        )
    if command.queue is not None and (tenant := state.tenants.of(command.queue)) is not None:
        hooks = state.webhooks.values()
        there = sum(hook.queue is not None and hook.queue.startswith(tenant.prefix) for hook in hooks)
        tenant.admit("webhooks", there)
    hook = Webhook(
        state.ids.job_id(SLOT, state.now, state.next_seq),
        command.url,
        list(dict.fromkeys(command.events)),
        command.queue,
        command.secret,
        state.now,
    )
    state.next_seq += 1
    state.webhooks[hook.id] = hook
    state.out.keep(KIND, hook.id, hook)
    return Data[AddedWebhook](
        data=AddedWebhook(hook.id, hook.url, hook.events, hook.queue, float(hook.created_at))
    )


def _check(state: State, command: AddWebhook) -> None:
    if problem := url_problem(command.url, anywhere=state.webhooks_anywhere):
        raise CommandError(problem, Code.INVALID_WEBHOOK, field="url", value=command.url)
    unknown = [event for event in command.events if event not in EVENTS]
    if unknown:
        raise CommandError(
            f"Invalid webhook event(s): {', '.join(unknown)}. Valid: {', '.join(EVENTS)}",
            Code.INVALID_WEBHOOK,
            field="events",
            value=unknown[0],
            bound=", ".join(EVENTS),
        )
    if not command.events:
        raise CommandError(
            f"events must name at least one event. Valid: {', '.join(EVENTS)}",
            Code.INVALID_WEBHOOK,
            field="events",
            bound=", ".join(EVENTS),
        )
    if command.queue is not None and (problem := queue_name_problem(command.queue)):
        raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=command.queue)


@handles(RemoveWebhook)
def remove_webhook(state: State, client: Client, command: RemoveWebhook) -> Data[Removed]:
    drop(state, known(state, client, command.webhook_id))
    return Data(data=Removed(True))


def drop(state: State, hook: Webhook) -> None:
    """Remove a webhook."""
    del state.webhooks[hook.id]
    state.out.keep(KIND, hook.id, None)


@handles(SetWebhookEnabled)
def set_webhook_enabled(state: State, client: Client, command: SetWebhookEnabled) -> Ok:
    hook = known(state, client, command.id)
    hook.enabled = command.enabled
    state.out.keep(KIND, hook.id, hook)
    return Ok()


def known(state: State, client: Client, webhook_id: str) -> Webhook:
    """A webhook that exists for a client.  CommandError if it does not."""
    hook = state.webhooks.get(webhook_id)
    if hook is None or not _exists(client, hook):
        raise CommandError("Webhook not found", Code.WEBHOOK_NOT_FOUND, field="webhookId", value=webhook_id)
    return hook


@handles(ListWebhooks)
def list_webhooks(state: State, client: Client, command: ListWebhooks) -> Data[WebhookList]:
    hooks = [hook for hook in state.webhooks.values() if _exists(client, hook)]
    hooks.sort(key=lambda hook: hook.id)  # ids ascend
    shown = [_shown(hook) for hook in hooks]
    stats = WebhookStats(
        total=len(hooks),
        enabled=sum(hook.enabled for hook in hooks),
        success_count=sum(hook.success_count for hook in hooks),
        failure_count=sum(hook.failure_count for hook in hooks),
    )
    return Data(data=WebhookList(shown, stats))


def _exists(client: Client, hook: Webhook) -> bool:
    return not is_limited(client) or (hook.queue is not None and allows(client, hook.queue))


def _shown(hook: Webhook) -> WebhookInfo:
    return WebhookInfo(
        hook.id,
        without_password(hook.url),
        hook.events,
        hook.queue,
        float(hook.created_at),
        None if hook.last_triggered is None else float(hook.last_triggered),
        hook.success_count,
        hook.failure_count,
        hook.enabled,
        hook.last_error,
    )


def delivery(hook: Webhook) -> Delivery:
    """A webhook as the gateway needs it for deliveries."""
    return Delivery(
        hook.id,
        hook.url,
        hook.events,
        hook.queue,
        hook.secret,
        hook.enabled,
        hook.places,
        float(hook.created_at if hook.until is None else hook.until),
    )


@handles(RecordDelivery)
def record_delivery(state: State, client: Client, command: RecordDelivery) -> Ok:
    hook = known(state, client, command.webhook_id)
    if command.places is not None:
        hook.places = command.places
    if command.until is not None:
        hook.until = int(command.until)
    hook.success_count += command.succeeded
    hook.failure_count += command.failed
    if command.at is not None:
        hook.last_triggered = int(command.at)
        hook.last_error = command.error
    if command.disable:
        hook.enabled = False
    state.out.keep(KIND, hook.id, hook)
    return Ok()
