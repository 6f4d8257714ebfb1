"""A queue in figures, and its workers. What is about the whole server belongs to `client/admin.py`; the old
methods for that are deprecated.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET

from bunqueue.client.deprecation import deprecated, warn
from bunqueue.client.models.jobs import QueueInfo, ServerStats
from bunqueue.client.options import checks
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.client.server_calls import AsyncServerCalls
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


class AsyncMonitoring(AsyncQueueBase):
    """The part of a queue that watches it."""

    async def list_workers(self, *, all_queues: bool = False) -> list[WorkerInfo]:
        """The registered workers of this queue.

        `all_queues` is deprecated: use `AsyncAdmin.list_workers()`.
        """
        if all_queues:
            warn("list_workers(all_queues=True)", "AsyncAdmin.list_workers()", type(self).__name__)
        return await self._server.list_workers(None if all_queues else self.name)

    async def history(self, kind: Literal["completed", "failed"] = "completed") -> QueueHistory:
        """How many jobs of this queue completed, or failed, in each of the last minutes."""
        checks.one_of("kind", kind, ("completed", "failed"))
        command = monitoring.Metrics(queue=self.name, type=kind)
        reply = await self._caller.call(command, monitoring.MetricsReply)
        if reply.data is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.data

    async def dashboard_queue(self) -> QueueDetails:
        """This queue in detail."""
        command = monitoring.DashboardQueue(queue=self.name)
        return (await self._caller.call(command, monitoring.DashboardQueueReply)).data

    @property
    def _server(self) -> AsyncServerCalls:
        return AsyncServerCalls(self._caller)

    @deprecated("AsyncAdmin.list_queues()")
    async def list_queues(self) -> list[QueueInfo]:
        """Deprecated: use `AsyncAdmin.list_queues`."""
        return await self._server.list_queues()

    @deprecated("AsyncAdmin.list_shards()")
    async def list_shards(self) -> list[ShardView]:
        """Deprecated: use `AsyncAdmin.list_shards`."""
        return await self._server.list_shards()

    @deprecated("AsyncAdmin.stats()")
    async def stats(self) -> ServerStats:
        """Deprecated: use `AsyncAdmin.stats`."""
        return await self._server.stats()

    @deprecated("AsyncAdmin.metrics()")
    async def metrics(self) -> ServerMetrics:
        """Deprecated: use `AsyncAdmin.metrics`."""
        return await self._server.metrics()

    @deprecated("AsyncAdmin.prometheus()")
    async def prometheus(self) -> str:
        """Deprecated: use `AsyncAdmin.prometheus`."""
        return await self._server.prometheus()

    @deprecated("AsyncAdmin.storage_status()")
    async def storage_status(self) -> StorageState:
        """Deprecated: use `AsyncAdmin.storage_status`."""
        return await self._server.storage_status()

    @deprecated("AsyncAdmin.dashboard()")
    async def dashboard(self) -> Overview:
        """Deprecated: use `AsyncAdmin.dashboard`."""
        return await self._server.dashboard()

    @deprecated("AsyncAdmin.dashboard_queues()")
    async def dashboard_queues(self) -> list[QueueOverview]:
        """Deprecated: use `AsyncAdmin.dashboard_queues`."""
        return await self._server.dashboard_queues()

    @deprecated("AsyncAdmin.compact_memory()")
    async def compact_memory(self) -> None:
        """Deprecated: use `AsyncAdmin.compact_memory`."""
        await self._server.compact_memory()

    @deprecated("AsyncAdmin.ping()")
    async def ping(self) -> float:
        """Deprecated: use `AsyncAdmin.ping`."""
        return await self._server.ping()
