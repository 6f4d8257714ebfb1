"""Django's description of the app, which is there for its command."""

from __future__ import annotations

from django.apps import AppConfig


class BunqueueConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Has no models."""

    name = "bunqueue.integrations.django"
    label = "bunqueue"
    verbose_name = "bunqueue"
