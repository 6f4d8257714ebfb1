"""An outbox in Django's database: jobs that are added when, and only when, the transaction is committed.

    INSTALLED_APPS = [..., "bunqueue.integrations.django.outbox"]
    python manage.py migrate
    python manage.py bunqueue_relay

The names are loaded on first use, because Django imports this package before models can be loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adding import add, add_on_commit
    from .table import DjangoOutbox

__all__ = ["DjangoOutbox", "add", "add_on_commit"]

_WHERE = {"DjangoOutbox": "table", "add": "adding", "add_on_commit": "adding"}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
