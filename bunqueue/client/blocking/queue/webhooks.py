"""Made by scripts/unasync.py from client/queue/webhooks.py; do not edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from bunqueue.client.connection.caller import Caller
from bunqueue.client.options import checks
from bunqueue.errors import NotFound
from bunqueue.protocol.commands import webhooks
from bunqueue.protocol.commands.webhooks import Trial, WebhookInfo

WebhookEvent = Literal[
    "job.pushed", "job.started", "job.completed", "job.failed", "job.progress", "error.returned"
]


class ServerWebhooks:
    """The common part of `Queue` and `Admin`. Webhook ids are unique on the whole server."""

    _caller: Caller

    def remove_webhook(self, webhook_id: str) -> bool:
        """Remove a webhook; False if it does not exist."""
        try:
            self._caller.call(checks.checked(webhooks.RemoveWebhook(webhook_id=webhook_id)))
        except NotFound:
            return False
        return True

    def set_webhook_enabled(self, webhook_id: str, enabled: bool) -> None:
        """Switch a webhook on or off. Raises NotFound."""
        command = webhooks.SetWebhookEnabled(id=webhook_id, enabled=enabled)
        self._caller.call(checks.checked(command, id="webhook_id"))

    def test_webhook(self, webhook_id: str) -> Trial:
        """Send a test delivery to a webhook, and return the result. Raises NotFound."""
        command = checks.checked(webhooks.TryWebhook(webhook_id=webhook_id))
        return (self._caller.call(command)).data

    def _add(
        self, url: str, events: Iterable[WebhookEvent], secret: str | None, queue: str | None
    ) -> str:
        wanted: list[str] = [events] if isinstance(events, str) else list(events)
        for event in wanted:
            checks.one_of("events", event, webhooks.EVENTS)
        command = checks.checked(webhooks.AddWebhook(url=url, events=wanted, queue=queue, secret=secret))
        reply = self._caller.call(command)
        return reply.data.webhook_id

    def _webhooks(self, queue: str | None) -> list[WebhookInfo]:
        """All webhooks, or those that get the events of a queue, oldest first."""
        reply = self._caller.call(webhooks.ListWebhooks())
        return [hook for hook in reply.data.webhooks if queue is None or hook.queue in (None, queue)]
