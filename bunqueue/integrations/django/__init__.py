"""Django's tasks on bunqueue: a backend, and the command that runs them. See docs/integrations.md.

    INSTALLED_APPS = [..., "bunqueue.integrations.django"]
    TASKS = {"default": {"BACKEND": "bunqueue.integrations.django.BunqueueBackend"}}

Django has `django.tasks` since version 6.0. For earlier versions, the package `django-tasks` has the same
API. The names are loaded on first use, because Django imports this package before its settings are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue.integrations import missing

try:
    import django as _django  # noqa: F401  # to say at once what is missing
except ImportError as error:
    raise missing("django", error) from None

if TYPE_CHECKING:
    from .backend import BunqueueBackend
    from .running import run_task

__all__ = ["BunqueueBackend", "run_task"]

_WHERE = {"BunqueueBackend": "backend", "run_task": "running"}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
