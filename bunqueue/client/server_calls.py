"""Questions about a server as a whole, for `Admin`.

`blocking/server_calls.py` is made from it by `scripts/unasync.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from msgspec import UNSET

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import QueueInfo, ServerStats
from bunqueue.client.models.views import EventPage, ServerInfo
from bunqueue.client.options import checks
from bunqueue.client.options.moments import PastMoment, past_moment
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import Ok, cluster, events, insight, monitoring, server, workers
from bunqueue.protocol.commands.cluster import ClusterView
from bunqueue.protocol.commands.insight import ShardView
from bunqueue.protocol.commands.monitoring import Overview, QueueOverview, ServerMetrics, StorageState
from bunqueue.protocol.commands.workers import WorkerInfo, WorkerStats


class AsyncServerCalls:
    """What can be asked of a server without naming a queue."""

    _caller: AsyncCaller

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def ping(self) -> float:
        """How long the server takes to answer, in ms."""
        start = time.perf_counter()
        await self._caller.call(server.Ping(), server.PingReply)
        return (time.perf_counter() - start) * 1000

    async def info(self) -> ServerInfo:
        """The version of the server, and the time on its clock."""
        hello = await self._caller.call(server.Hello(protocol_version=server.NEWEST), server.HelloReply)
        pong = await self._caller.call(server.Ping(), server.PingReply)
        return ServerInfo(hello.version, pong.data.time)

    async def stats(self) -> ServerStats:
        """How many jobs are in each state over the whole server, and how fast they come and go."""
        reply = await self._caller.call(server.Stats(), replies.StatsOfServer)
        return reply.stats

    async def metrics(self) -> ServerMetrics:
        """Totals since the server started, averages over all completed jobs, memory and disk."""
        reply = await self._caller.call(monitoring.Metrics(), monitoring.MetricsReply)
        if reply.metrics is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.metrics

    async def cluster_status(self) -> ClusterView:
        """The hosts of the cluster, and where each shard is. CommandFailed from a server that is in none."""
        return (await self._caller.call(cluster.ClusterStatus(), cluster.ClusterReply)).data

    async def drain_host(self, host: str, *, draining: bool = True) -> ClusterView:
        """Have all shards of a host move to others, before it is replaced; with `draining=False` it may own
        some again. Returns at once: the shards move one after the other."""
        command = cluster.ClusterDrain(host=host, draining=draining)
        return (await self._caller.call(command, cluster.ClusterReply)).data

    async def move_shard(self, shard: int, host: str) -> ClusterView:
        """Have a shard move to a host, and stay there until `rebalance`. Returns at once."""
        command = cluster.ClusterMove(shard=shard, host=host)
        return (await self._caller.call(command, cluster.ClusterReply)).data

    async def rebalance(self) -> ClusterView:
        """Forget where shards were moved to: all hosts get their share. Returns at once."""
        return (await self._caller.call(cluster.ClusterRebalance(), cluster.ClusterReply)).data

    async def forget_host(self, host: str) -> ClusterView:
        """Remove a host that is dead, and will not come back under its name."""
        return (await self._caller.call(cluster.ClusterForget(host=host), cluster.ClusterReply)).data

    async def prometheus(self) -> str:
        """All numbers in the text exposition format of Prometheus, version 0.0.4."""
        reply = await self._caller.call(monitoring.Prometheus(), monitoring.PrometheusReply)
        return reply.data.metrics

    async def storage_status(self) -> StorageState:
        """Whether everything can be stored, and if not, why and since when."""
        reply = await self._caller.call(monitoring.StorageStatus(), monitoring.StorageStatusReply)
        return reply.data

    async def compact_memory(self) -> None:
        """Free memory that the server keeps for jobs that have moved on. It does so by itself, only later."""
        await self._caller.call(monitoring.CompactMemory(), Ok)

    async def list_queues(self) -> list[QueueInfo]:
        """All queues of the server."""
        reply = await self._caller.call(server.ListQueues(details=True), replies.NamesOfQueues)
        return [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]

    async def list_workers(self, queue: str | None = None) -> list[WorkerInfo]:
        """The workers that have registered: all, or those of one queue."""
        reply = await self._caller.call(workers.ListWorkers(), workers.ListWorkersReply)
        return [worker for worker in reply.data.workers if queue is None or queue in worker.queues]

    async def control_worker(
        self, worker_id: str, *, paused: bool | None = None, concurrency: int | None = None
    ) -> WorkerInfo:
        """Have a worker pause (True), resume (False), or run another number of jobs at a time, while it runs.

        It hears within some 3 s, and `list_workers` shows when it is so; the answer is the worker as it was.
        A paused worker goes on with the jobs that it has. Raises NotFound for an unknown worker.
        """
        command = workers.ControlWorker(worker_id=worker_id, paused=paused, concurrency=concurrency)
        return (await self._caller.call(checks.checked(command), workers.WorkerInfoReply)).data

    async def worker_stats(self) -> WorkerStats:
        """How many workers have registered and are active, and what they have done."""
        return (await self._caller.call(workers.ListWorkers(), workers.ListWorkersReply)).data.stats

    async def list_shards(self) -> list[ShardView]:
        """The state of each shard. Those that do not answer are left out; `of` says how many there are."""
        reply = await self._caller.call(insight.ListShards(), insight.ShardViewsReply)
        return reply.data.shards

    async def dashboard(self) -> Overview:
        """The figures on the front page of a dashboard."""
        command = monitoring.DashboardOverview()
        return (await self._caller.call(command, monitoring.DashboardOverviewReply)).data

    async def dashboard_queues(self) -> list[QueueOverview]:
        """All queues with their counts."""
        command = monitoring.DashboardQueues()
        return (await self._caller.call(command, monitoring.DashboardQueuesReply)).data.queues

    async def read_events(
        self,
        *,
        since: PastMoment | None = None,
        after: Sequence[int] | None = None,
        limit: int = 1000,
        queues: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        job_id: str | None = None,
    ) -> EventPage:
        """A page of the server's event log: at most `limit` events of each shard, of all queues and types
        unless some are named. `limit` is at most 10,000.

        Begin with the oldest event, or with `since`: a datetime with a zone, a timedelta (so long ago), or
        ms since the epoch. Go on with the `after` of the page before, until a page is the `last`.
        """
        command = events.GetEvents(
            after=None if after is None else list(after),
            since=None if since is None else past_moment(since, "since"),
            limit=limit,
            queues=None if queues is None else [checks.queue_name(queue) for queue in queues],
            types=None if types is None else list(types),
            job_id=job_id,
        )
        return await self._caller.call(checks.checked(command), EventPage)
