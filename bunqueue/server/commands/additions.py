"""Adds to the shards' answers what no shard knows: connections, workers, and the router itself.

Both the router of a server and the embedded engine use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import to_builtins

from bunqueue.protocol.commands.workers import WorkerList
from bunqueue.server.links.gather import Addition, Answer

from .router_figures import RouterFigures

MB = 1024 * 1024
MAX_LISTED = 100  # workers in an overview


class Additions:
    """The additions of one server, or one embedded engine. Refusals stay unchanged."""

    def __init__(self, figures: Callable[[], RouterFigures], listing: Callable[[], WorkerList]) -> None:
        """``figures`` and ``listing`` (all workers) are called for each answer."""
        self._figures = figures
        self._listing = listing
        self.by_command: Mapping[str, Addition] = {
            "Metrics": self._metrics,
            "Prometheus": self._prometheus,
            "DashboardOverview": self._overview,
        }

    def _metrics(self, answer: Answer) -> None:
        metrics = answer.get("metrics")  # absent if the command was about one queue
        if metrics is not None:
            figures = self._figures()
            metrics["memoryUsageMb"] += _memory(figures) / MB
            metrics["activeConnections"] = figures.connections

    def _prometheus(self, answer: Answer) -> None:
        from .prometheus import exposition  # its library loads slowly and is rarely needed

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
    """The memory of all routers on the host, in bytes."""
    return figures.memory_bytes + sum(memory for memory, _, _ in figures.further)
