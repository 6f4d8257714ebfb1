"""Adds to the shards' answers what no shard knows: connections, workers, and the router itself.

Both the router of a server and the embedded engine use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bunqueue.model.scope import Scope
from bunqueue.protocol.commands.workers import WorkerInfo, WorkerList
from bunqueue.protocol.namespaces import answers
from bunqueue.server.links.gather import Answer

from .router_figures import RouterFigures
from .workers import seen_by


class ScopedAddition(Protocol):
    """Adds to an answer what no shard knows, and a scope may know."""

    def __call__(self, answer: Answer, scope: Scope | None = None) -> None: ...


MB = 1024 * 1024
MAX_LISTED = 100  # workers in an overview


class Additions:
    """The additions of one server, or one embedded engine. Refusals stay unchanged, and for a scope of some
    queues nothing is added about the server."""

    def __init__(self, figures: Callable[[], RouterFigures], listing: Callable[[], WorkerList]) -> None:
        """``figures`` and ``listing`` (all workers) are called for each answer."""
        self._figures = figures
        self._listing = listing
        self.by_command: Mapping[str, ScopedAddition] = {
            "Metrics": self._metrics,
            "Prometheus": self._prometheus,
            "DashboardOverview": self._overview,
        }

    def _metrics(self, answer: Answer, scope: Scope | None = None) -> None:
        metrics = answer.get("metrics")  # absent if the command was about one queue
        if metrics is not None:
            figures = self._figures()
            metrics["memoryUsageMb"] += _memory(figures) / MB
            metrics["activeConnections"] = figures.connections

    def _prometheus(self, answer: Answer, scope: Scope | None = None) -> None:
        from .prometheus import (  # their library loads slowly, for a rare need
            exposition,
            exposition_of_queues,
        )

        data = answer["data"]
        limited = scope is not None and not scope.is_everywhere
        text = exposition_of_queues(data) if limited else exposition(data, self._figures())
        answer["data"] = {"metrics": text}

    def _overview(self, answer: Answer, scope: Scope | None = None) -> None:
        data, workers = answer["data"], seen_by(scope, self._listing())
        if scope is None or scope.is_everywhere:
            figures = self._figures()
            data["memory"]["rss"] += _memory(figures) / MB
            data["collections"]["connections"] = figures.connections
        prefix = "" if scope is None else scope.prefix
        data["workers"] = {
            "total": workers.stats.total,
            "active": workers.stats.active,
            "list": [answers(prefix).value(WorkerInfo, each) for each in workers.workers[:MAX_LISTED]],
        }


def _memory(figures: RouterFigures) -> int:
    """The memory of all routers on the host, in bytes."""
    return figures.memory_bytes + sum(memory for memory, _, _ in figures.secondary)
