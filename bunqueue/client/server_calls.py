"""Calls about a server as a whole, for `Admin`.

`scripts/unasync.py` generates `blocking/server_calls.py` from this file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.replies import fields_of_reply
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import QueueInfo, ServerStats
from bunqueue.client.models.views import EventPage, ServerInfo
from bunqueue.client.options import checks
from bunqueue.client.options.moments import PastMoment, past_moment
from bunqueue.errors import BunqueueError
from bunqueue.protocol.commands import backups, cluster, events, insight, monitoring, server, workers
from bunqueue.protocol.commands.backups import BackupStatusView, Promoted
from bunqueue.protocol.commands.cluster import ClusterView
from bunqueue.protocol.commands.insight import ShardView
from bunqueue.protocol.commands.monitoring import Overview, QueueOverview, ServerMetrics, StorageState
from bunqueue.protocol.commands.workers import WorkerInfo, WorkerStats


class AsyncServerCalls:
    """Calls to a server that need no queue name."""

    _caller: AsyncCaller

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    async def call(self, command: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send any command of PROTOCOL.md by its name, with the names of its fields there; returns the fields
        of the reply. For commands that have no method here:

            await admin.call("MoveToWaitingChildren", {"id": job_id})

        Raises OptionError for unknown names and invalid values.
        """
        from bunqueue.client.any_command import command_of  # 20 ms: the decoder of a server

        asked = command_of(command, fields or {})
        return fields_of_reply(await self._caller.raw(asked), asked, self._caller.endpoint.address)

    async def ping(self) -> float:
        """The server's response time, in ms."""
        start = time.perf_counter()
        await self._caller.call(server.Ping())
        return (time.perf_counter() - start) * 1000

    async def info(self) -> ServerInfo:
        """The version of the server, and the time on its clock."""
        hello = await self._caller.call(server.Hello(protocol_version=server.NEWEST))
        pong = await self._caller.call(server.Ping())
        return ServerInfo(hello.version, pong.data.time)

    async def stats(self) -> ServerStats:
        """The number of jobs in each state on the whole server, and how fast jobs are added and finished."""
        reply = await self._caller.call(server.Stats(), replies.StatsOfServer)
        return reply.stats

    async def metrics(self) -> ServerMetrics:
        """Totals since the server started, averages over all completed jobs, memory and disk."""
        reply = await self._caller.call(monitoring.Metrics())
        if reply.metrics is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.metrics

    async def cluster_status(self) -> ClusterView:
        """The hosts of the cluster, and the location of each shard. Raises CommandFailed outside
        a cluster.
        """
        return (await self._caller.call(cluster.ClusterStatus())).data

    async def backup_status(self) -> BackupStatusView:
        """How far what changes is backed up, and what a standby follows; each None if it does not do that."""
        return (await self._caller.call(backups.BackupStatus())).data

    async def promote_standby(self, *, force: bool = False) -> Promoted:
        """Make a standby the primary; it restarts at once. `force`: even if the old primary seems to be
        alive, or the place of the backups does not answer.
        """
        return (await self._caller.call(backups.PromoteStandby(force=force))).data

    async def drain_host(self, host: str, *, draining: bool = True) -> ClusterView:
        """Move all shards of a host to others before it is replaced; with `draining=False` it may own shards
        again. Returns at once: the shards move one after the other.
        """
        command = cluster.ClusterDrain(host=host, draining=draining)
        return (await self._caller.call(command)).data

    async def move_shard(self, shard: int, host: str) -> ClusterView:
        """Move a shard to a host; it stays there until `rebalance`. Returns at once."""
        command = cluster.ClusterMove(shard=shard, host=host)
        return (await self._caller.call(command)).data

    async def rebalance(self) -> ClusterView:
        """Forget where shards were moved to, so that all hosts get their share. Returns at once."""
        return (await self._caller.call(cluster.ClusterRebalance())).data

    async def forget_host(self, host: str) -> ClusterView:
        """Remove a host that is dead and will not return under its name."""
        return (await self._caller.call(cluster.ClusterForget(host=host))).data

    async def prometheus(self) -> str:
        """All metrics in the Prometheus text exposition format, version 0.0.4."""
        reply = await self._caller.call(monitoring.Prometheus())
        return reply.data.metrics

    async def storage_status(self) -> StorageState:
        """Whether everything can be stored, and if not, why and since when."""
        reply = await self._caller.call(monitoring.StorageStatus())
        return reply.data

    async def compact_memory(self) -> None:
        """Free memory kept for jobs that have moved on. The server does this on its own, but later."""
        await self._caller.call(monitoring.CompactMemory())

    async def list_queues(self) -> list[QueueInfo]:
        """All queues of the server."""
        reply = await self._caller.call(server.ListQueues(details=True), replies.NamesOfQueues)
        return [QueueInfo(queue) if isinstance(queue, str) else queue for queue in reply.queues]

    async def list_workers(self, queue: str | None = None) -> list[WorkerInfo]:
        """The registered workers: all, or those of one queue."""
        reply = await self._caller.call(workers.ListWorkers())
        return [worker for worker in reply.data.workers if queue is None or queue in worker.queues]

    async def control_worker(
        self,
        worker_id: str,
        *,
        paused: bool | None = None,
        concurrency: int | None = None,
        stop: workers.Stop | None = None,
    ) -> WorkerInfo:
        """Pause a running worker (True), resume it (False), change how many jobs it runs at a time, or stop
        it: with "grace" its jobs have the worker's grace to end, with "drain" all the time that they need.

        The worker is notified within about 3 s; `list_workers` shows when the change is effective. Returns
        the worker as it was. A paused worker finishes the jobs that it has. Raises NotFound for an unknown
        worker.
        """
        command = workers.ControlWorker(
            worker_id=worker_id, paused=paused, concurrency=concurrency, stop=stop
        )
        return (await self._caller.call(checks.checked(command))).data

    async def worker_stats(self) -> WorkerStats:
        """How many workers are registered and active, and their totals."""
        return (await self._caller.call(workers.ListWorkers())).data.stats

    async def list_shards(self) -> list[ShardView]:
        """The state of each shard. Shards that do not answer are left out; `of` is the total number."""
        reply = await self._caller.call(insight.ListShards())
        return reply.data.shards

    async def dashboard(self) -> Overview:
        """The figures on the front page of a dashboard."""
        command = monitoring.DashboardOverview()
        return (await self._caller.call(command)).data

    async def dashboard_queues(self) -> list[QueueOverview]:
        """All queues with their counts."""
        command = monitoring.DashboardQueues()
        return (await self._caller.call(command)).data.queues

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
        unless some are given. `limit` is at most 10,000.

        Begin with the oldest event, or with `since`: a datetime with a zone, a timedelta (so long ago), or ms
        since the epoch. Continue with the `after` of the previous page, until a page is the `last`.
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
