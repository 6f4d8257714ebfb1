"""The server as a whole: numbers, workers, queues."""

from __future__ import annotations

import time
from typing import Literal

from msgspec import UNSET

from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import QueueInfo, ServerStats
from bunqueue.client.options import checks
from bunqueue.client.queue.base import AsyncQueueBase
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import Ok, insight, monitoring, server, workers
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
    """What a queue can tell of its server."""

    async def list_queues(self) -> list[QueueInfo]:
        """All queues of the server."""
        reply = await self._caller.call(server.ListQueues(), replies.NamesOfQueues)
        return [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]

    async def list_workers(self, *, all_queues: bool = False) -> list[WorkerInfo]:
        """The workers that made themselves known: those of this queue, or all."""
        reply = await self._caller.call(workers.ListWorkers(), workers.ListWorkersReply)
        return [worker for worker in reply.data.workers if all_queues or self.name in worker.queues]

    async def list_shards(self) -> list[ShardView]:
        """How each shard of the server is; those that are away are left out, and each says `of` how many."""
        reply = await self._caller.call(insight.ListShards(), insight.ShardViewsReply)
        return reply.data.shards

    async def stats(self) -> ServerStats:
        """How many jobs are in each state over the whole server, and how fast they come and go."""
        reply = await self._caller.call(server.Stats(), replies.StatsOfServer)
        return reply.stats

    async def metrics(self) -> ServerMetrics:
        """Totals of the server since it started, averages over all completed jobs, memory and disk."""
        reply = await self._caller.call(monitoring.Metrics(), monitoring.MetricsReply)
        if reply.metrics is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.metrics

    async def history(self, kind: Literal["completed", "failed"] = "completed") -> QueueHistory:
        """How many jobs of this queue completed, or failed, in each of the last minutes."""
        checks.one_of("kind", kind, ("completed", "failed"))
        command = monitoring.Metrics(queue=self.name, type=kind)
        reply = await self._caller.call(command, monitoring.MetricsReply)
        if reply.data is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.data

    async def prometheus(self) -> str:
        """All numbers as Prometheus reads them: the text exposition format, version 0.0.4."""
        reply = await self._caller.call(monitoring.Prometheus(), monitoring.PrometheusReply)
        return reply.data.metrics

    async def storage_status(self) -> StorageState:
        """Whether everything can be stored, and if not, why and since when."""
        reply = await self._caller.call(monitoring.StorageStatus(), monitoring.StorageStatusReply)
        return reply.data

    async def dashboard(self) -> Overview:
        """What the front page of a dashboard shows of the whole server."""
        command = monitoring.DashboardOverview()
        return (await self._caller.call(command, monitoring.DashboardOverviewReply)).data

    async def dashboard_queues(self) -> list[QueueOverview]:
        """All queues with their counts."""
        command = monitoring.DashboardQueues()
        return (await self._caller.call(command, monitoring.DashboardQueuesReply)).data.queues

    async def dashboard_queue(self) -> QueueDetails:
        """This queue in detail."""
        command = monitoring.DashboardQueue(queue=self.name)
        return (await self._caller.call(command, monitoring.DashboardQueueReply)).data

    async def compact_memory(self) -> None:
        """Have the server drop what it keeps for jobs that have moved on; it does so itself, only later."""
        await self._caller.call(monitoring.CompactMemory(), Ok)

    async def ping(self) -> float:
        """How long the server takes to answer, in ms."""
        start = time.perf_counter()
        await self._caller.call(server.Ping(), server.PingReply)
        return (time.perf_counter() - start) * 1000
