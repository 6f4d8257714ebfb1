"""Analytics of queues: a lake of their history, tables of figures, a report.

    from bunqueue import analytics

    place = analytics.From(["/var/lib/bunqueue"])
    page = analytics.report(place, "report", analytics.wanted(since="7d", zone="Europe/Rome"))

Needs ``pip install 'bunqueue[analytics]'``, and for Spark also ``bunqueue[spark]``; see docs/analytics.md.
Importing this package is cheap."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline import Wanted, wanted
    from .runs import From, Made, aggregate, export, report

__all__ = ["From", "Made", "Wanted", "aggregate", "export", "report", "wanted"]

_LATER = {  # these need Arrow
    **dict.fromkeys(("Wanted", "wanted"), "pipeline"),
    **dict.fromkeys(("From", "Made", "aggregate", "export", "report"), "runs"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
