"""Made by scripts/unasync.py from client/queue/monitoring.py; do not edit."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET

from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.blocking.server_calls import ServerCalls
from bunqueue.client.deprecation import deprecated, warn
from bunqueue.client.models.jobs import QueueInfo, ServerStats
from bunqueue.client.options import checks
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import monitoring
from bunqueue.protocol.commands.insight import ShardView
from bunqueue.protocol.commands.monitoring import (
    Overview,
    QueueDetails,
    QueueHistory,
    QueueOverview,
    ServerMetrics,
    StorageState,
)
from bunqueue.protocol.commands.workers import WorkerInfo


class Monitoring(QueueBase):
    """The part of a queue that watches it."""

    def list_workers(self, *, all_queues: bool = False) -> list[WorkerInfo]:
        """The registered workers of this queue.

        `all_queues` is deprecated: use `Admin.list_workers()`.
        """
        if all_queues:
            warn("list_workers(all_queues=True)", "Admin.list_workers()", type(self).__name__)
        return self._server.list_workers(None if all_queues else self.name)

    def history(self, kind: Literal["completed", "failed"] = "completed") -> QueueHistory:
        """How many jobs of this queue completed, or failed, in each of the last minutes."""
        checks.one_of("kind", kind, ("completed", "failed"))
        command = monitoring.Metrics(queue=self.name, type=kind)
        reply = self._caller.call(command, monitoring.MetricsReply)
        if reply.data is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.data

    def dashboard_queue(self) -> QueueDetails:
        """This queue in detail."""
        command = monitoring.DashboardQueue(queue=self.name)
        return (self._caller.call(command, monitoring.DashboardQueueReply)).data

    @property
    def _server(self) -> ServerCalls:
        return ServerCalls(self._caller)

    @deprecated("Admin.list_queues()")
    def list_queues(self) -> list[QueueInfo]:
        """Deprecated: use `Admin.list_queues`."""
        return self._server.list_queues()

    @deprecated("Admin.list_shards()")
    def list_shards(self) -> list[ShardView]:
        """Deprecated: use `Admin.list_shards`."""
        return self._server.list_shards()

    @deprecated("Admin.stats()")
    def stats(self) -> ServerStats:
        """Deprecated: use `Admin.stats`."""
        return self._server.stats()

    @deprecated("Admin.metrics()")
    def metrics(self) -> ServerMetrics:
        """Deprecated: use `Admin.metrics`."""
        return self._server.metrics()

    @deprecated("Admin.prometheus()")
    def prometheus(self) -> str:
        """Deprecated: use `Admin.prometheus`."""
        return self._server.prometheus()

    @deprecated("Admin.storage_status()")
    def storage_status(self) -> StorageState:
        """Deprecated: use `Admin.storage_status`."""
        return self._server.storage_status()

    @deprecated("Admin.dashboard()")
    def dashboard(self) -> Overview:
        """Deprecated: use `Admin.dashboard`."""
        return self._server.dashboard()

    @deprecated("Admin.dashboard_queues()")
    def dashboard_queues(self) -> list[QueueOverview]:
        """Deprecated: use `Admin.dashboard_queues`."""
        return self._server.dashboard_queues()

    @deprecated("Admin.compact_memory()")
    def compact_memory(self) -> None:
        """Deprecated: use `Admin.compact_memory`."""
        self._server.compact_memory()

    @deprecated("Admin.ping()")
    def ping(self) -> float:
        """Deprecated: use `Admin.ping`."""
        return self._server.ping()
