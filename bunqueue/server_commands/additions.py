"""What is added to the answers of the shards, as no shard knows it: connections, workers, the router itself.

The router of a server uses it, and so does the embedded engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import to_builtins

from bunqueue.protocol.commands.workers import WorkerList
from bunqueue.protocol.gather import Addition, Answer

from .router_figures import RouterFigures

MB = 1024 * 1024
MAX_LISTED = 100  # workers in an overview


class Additions:
    """Of one server, or one embedded engine. It leaves refusals alone."""

    def __init__(self, figures: Callable[[], RouterFigures], listing: Callable[[], WorkerList]) -> None:
        """``figures`` and ``listing``, all workers, are asked for with each answer."""
        self._figures = figures
        self._listing = listing
        self.by_command: Mapping[str, Addition] = {
            "Metrics": self._metrics,
            "Prometheus": self._prometheus,
            "DashboardOverview": self._overview,
        }

    def _metrics(self, answer: Answer) -> None:
        metrics = answer.get("metrics")  # not there when it was about one queue
        if metrics is not None:
            figures = self._figures()
            metrics["memoryUsageMb"] += _memory(figures) / MB
            metrics["activeConnections"] = figures.connections

    def _prometheus(self, answer: Answer) -> None:
        from .prometheus import exposition  # its library takes a while to load, and is seldom needed

        answer["data"] = {"metrics": exposition(answer["data"], self._figures())}

    def _overview(self, answer: Answer) -> None:
        data, figures, workers = answer["data"], self._figures(), self._listing()
        data["memory"]["rss"] += _memory(figures) / MB
        data["collections"]["connections"] = figures.connections
        data["workers"] = {
            "total": workers.stats.total,
            "active": workers.stats.active,
            "list": to_builtins(workers.workers[:MAX_LISTED]),
        }


def _memory(figures: RouterFigures) -> int:
    """Of all routers of the host, in bytes."""
    return figures.memory_bytes + sum(memory for memory, _, _ in figures.further)
