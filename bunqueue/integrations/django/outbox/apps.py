"""Django's description of the app, which has the table and the relay's command."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """An app with one model."""

    name = "bunqueue.integrations.django.outbox"
    label = "bunqueue_outbox"
    verbose_name = "bunqueue outbox"
    default_auto_field = "django.db.models.BigAutoField"
