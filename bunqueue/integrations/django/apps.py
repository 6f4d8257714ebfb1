"""Django's description of the app, which is needed for its command and for finding tasks."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class BunqueueConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """An app without models."""

    name = "bunqueue.integrations.django"
    label = "bunqueue"
    verbose_name = "bunqueue"

    def ready(self) -> None:
        """Load the modules that have tasks: a job finds its task only if the task's module is loaded."""
        from .backend import BunqueueBackend  # only after the apps are loaded
        from .compat import task_backends

        autodiscover_modules("tasks")
        for alias in task_backends.settings:
            backend = task_backends[alias]
            if isinstance(backend, BunqueueBackend):
                for module in backend.modules:
                    import_module(module)
