"""Analytics of queues with Spark: a lake of their history, tables of figures, a report.

    from bunqueue import analytics

    analytics.report(["/var/lib/bunqueue"], "report", zone="Europe/Rome")

Needs ``pip install 'bunqueue[spark]'``; docs/analytics.md has all of it.  Importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runs import aggregate, export, report

__all__ = ["aggregate", "export", "register", "report"]


def register(spark: Any) -> None:
    """Make the format ``bunqueue`` known to a Spark session: `bunqueue.spark.register`."""
    from bunqueue.spark import register

    register(spark)


def __getattr__(name: str) -> Any:
    if name in ("aggregate", "export", "report"):
        from . import runs

        return getattr(runs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
