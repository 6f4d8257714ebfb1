"""What the router adds to the answers of the shards: connections, workers, itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import to_builtins

from bunqueue import vitals
from bunqueue.protocol.gather import Addition, Answer
from bunqueue.server_commands.prometheus import RouterFigures, exposition

from .local import now_ms, version

if TYPE_CHECKING:
    from .hub import Hub

MB = 1024 * 1024
MAX_LISTED = 100  # workers in an overview


class Additions:
    """Of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._started = time.monotonic()
        self.by_command: Mapping[str, Addition] = {
            "Metrics": self._metrics,
            "Prometheus": self._prometheus,
            "DashboardOverview": self._overview,
        }

    def _metrics(self, answer: Answer) -> None:
        metrics = answer.get("metrics")  # not there when it was about one queue
        if metrics is not None:
            metrics["memoryUsageMb"] += vitals.memory() / MB
            metrics["activeConnections"] = len(self._hub.clients)

    def _prometheus(self, answer: Answer) -> None:
        hub = self._hub
        own = RouterFigures(
            version=version(),
            uptime_s=time.monotonic() - self._started,
            connections=len(hub.clients),
            workers=hub.workers.stats(now_ms()),
            memory_bytes=vitals.memory(),
            cpu_s=vitals.cpu_s(),
            lag_s=hub.lag.longest(),
            wrong_tokens=hub.strangers.guesses.total,
            exposed=tuple(hub.exposed),
            shards=hub.shards,
            shards_up=[shard for shard, link in enumerate(hub.links) if link is not None],
            shards_damaged=list(hub.damaged),
        )
        answer["data"] = {"metrics": exposition(answer["data"], own)}

    def _overview(self, answer: Answer) -> None:
        data, workers = answer["data"], self._hub.workers.listing(now_ms())
        data["memory"]["rss"] += vitals.memory() / MB
        data["collections"]["connections"] = len(self._hub.clients)
        data["workers"] = {
            "total": workers.stats.total,
            "active": workers.stats.active,
            "list": to_builtins(workers.workers[:MAX_LISTED]),
        }
