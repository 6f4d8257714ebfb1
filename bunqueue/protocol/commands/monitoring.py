"""Numbers for those who watch the server: Metrics, Prometheus, StorageStatus, dashboards."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from bunqueue.protocol.commands.base import (
    LARGEST,
    SMALLEST,
    Across,
    Command,
    Merge,
    QueueName,
    Reply,
    Route,
    command,
)
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.moments import MaybeMoment, Moment

OVER_COMPLETED = Across("mean", weight="totalCompleted")


class ServerMetrics(Struct, rename="camel", gc=False):
    """Totals since the start.  The averages are over completed jobs: the time from being due to being
    pulled (latency), and from then to the ack (processing)."""

    total_pushed: int
    total_pulled: int
    total_completed: int
    total_failed: int
    avg_latency_ms: Annotated[float, OVER_COMPLETED]
    avg_processing_ms: Annotated[float, OVER_COMPLETED]
    memory_usage_mb: float
    sqlite_size_mb: float
    active_connections: int


class HistoryMeta(Struct, rename="camel", gc=False):
    """``count`` jobs in all; the newest minute began at ``prev_ts`` (epoch ms), with ``prev_count``
    jobs counted until now."""

    count: int
    prev_ts_ms: Annotated[float, LARGEST] = msgspec.field(name="prevTS")
    prev_count: int

    prev_ts = Moment("prev_ts_ms")


class QueueHistory(Struct, gc=False):
    """Jobs a minute, the newest minute first; ``count`` minutes."""

    meta: HistoryMeta
    data: list[int]
    count: int


class MetricsReply(Reply, kw_only=True):
    """``metrics`` of the server, or ``data`` of the queue that was asked for."""

    metrics: ServerMetrics | UnsetType = UNSET
    data: QueueHistory | UnsetType = UNSET


class MetricsText(Struct, gc=False):
    metrics: str


class PrometheusReply(Reply, kw_only=True):
    """The text exposition format, version 0.0.4."""

    data: MetricsText


class QueueFigures(Struct, gc=False):
    """One queue for Prometheus."""

    name: str
    waiting: int
    delayed: int
    active: int
    dlq: int
    oldest_ms: float  # how long the job that is ready longest has been so


class ShardFigures(Struct, gc=False):
    """One shard for Prometheus."""

    shard: int
    queues: int  # how many it has
    waiting: int
    delayed: int
    active: int
    dlq: int
    completed: int
    pushed_total: int
    pulled_total: int
    completed_total: int
    failed_total: int
    waited_ms: float  # over all completed jobs
    worked_ms: float
    waits: list[int]  # how many of them waited up to 1, 2, 4, ... ms, and longer than that
    runs: list[int]
    memory_bytes: float
    sqlite_bytes: float
    cpu_s: float
    storage_degraded: bool
    disk_full: bool
    clock_jumps: int = 0  # of the wall clock, that the shard has noticed
    clock_last_jump_ms: float = 0.0  # negative: back
    clock_moved: int = 0  # times of jobs, schedules and limits that were brought back
    clock_doubt_ms: float = 0.0  # by which the clock may be ahead: retention waits
    damaged_tables: int = 0  # in which something could not be read or written
    unreadable_jobs: int = 0
    half_flows_removed: int = 0  # after the start, because another shard had lost its part
    disk_free_bytes: float = 0.0  # in memory, as are the others
    disk_refused_below_bytes: float = 0.0
    reserve_bytes: float = 0.0
    wal_bytes: float = 0.0
    wal_limit_bytes: float = 0.0
    memory_limit_bytes: float = 0.0  # none
    memory_full: bool = False
    cron_missed_total: int = 0  # times of schedules that passed while the server was away


class Figures(Struct, gc=False):
    """A shard's numbers for the router, which makes the text; at most so many queues, the largest."""

    shards: list[ShardFigures]
    queues: list[QueueFigures]
    webhooks: int
    webhooks_enabled: int


class FiguresReply(Reply, kw_only=True):
    data: Figures


class ShardRoom(Struct, rename="camel", gc=False):
    """The room of one shard, in bytes: with less than ``refused_below`` free bytes on its disk, or a
    write-ahead log longer than ``wal_limit``, it refuses pushes.  ``reserve`` is set aside beside that."""

    shard: int
    free: float
    refused_below: float
    reserve: float
    wal: float
    wal_limit: float


class StorageState(Struct, rename="camel", gc=False):
    """``error`` says what is wrong since ``since`` (epoch ms), ``code`` is that of the refusals; null when
    nothing is.  ``warnings`` say what will be wrong soon; ``rooms`` has the shards that keep files."""

    disk_full: bool
    error: str | None
    since_ms: Annotated[float | None, SMALLEST] = msgspec.field(name="since")
    code: str | None = None
    warnings: list[str] = []
    rooms: list[ShardRoom] = []

    since = MaybeMoment("since_ms")


class StorageStatusReply(Reply, kw_only=True):
    data: StorageState


class OverviewStats(Struct, rename="camel", gc=False):
    waiting: int
    active: int
    delayed: int
    completed: int
    dlq: int
    total_pushed: int
    total_pulled: int
    total_completed: int
    total_failed: int
    uptime: Annotated[float, LARGEST]  # ms


class Throughput(Struct, rename="camel", gc=False):
    push_per_sec: float
    pull_per_sec: float
    complete_per_sec: float
    fail_per_sec: float


class Latency(Struct, rename="camel", gc=False):
    """As in ServerMetrics; ``total_completed`` is what they are averages over.

    ``waits`` and ``runs`` are the completed jobs by these times: how many took up to so many ms, 1, 2, 4 and
    so on, and more than the number before; ``inf`` for all that took longer.
    """

    avg_latency_ms: Annotated[float, OVER_COMPLETED]
    avg_processing_ms: Annotated[float, OVER_COMPLETED]
    total_completed: int
    waits: dict[str, int]
    runs: dict[str, int]


class Memory(Struct, gc=False):
    """MB."""

    rss: float


class WorkerOverview(Struct, gc=False, rename={"listed": "list"}):
    total: int
    active: int
    listed: list[Any]


class Overview(Struct, gc=False):
    stats: OverviewStats
    throughput: Throughput
    latency: Latency
    memory: Memory
    collections: dict[str, int]
    workers: WorkerOverview
    crons: list[CronView]  # those that run next, of each shard
    storage: StorageState
    timestamp_ms: Annotated[float, LARGEST] = msgspec.field(name="timestamp")  # epoch ms

    timestamp = Moment("timestamp_ms")


class DashboardOverviewReply(Reply, kw_only=True):
    data: Overview


class QueueOverview(Struct, rename="camel", gc=False):
    """``waiting`` are ready jobs without a priority, ``prioritized`` those with one."""

    name: str
    waiting: int
    prioritized: int
    delayed: int
    active: int
    dlq: int
    paused: bool
    completed: int
    total_completed: int  # since the start
    total_failed: int
    completed_per_min: float  # over the last minutes, five at most
    failed_per_min: float
    oldest_ms: float  # how long the job that is ready longest has been so
    blocked: int  # jobs that depend on others


class QueueOverviews(Struct, gc=False):
    queues: list[QueueOverview]
    timestamp_ms: Annotated[float, LARGEST] = msgspec.field(name="timestamp")

    timestamp = Moment("timestamp_ms")


class DashboardQueuesReply(Reply, kw_only=True):
    data: QueueOverviews


class JobSketch(Struct, rename="camel", gc=False):
    """What an overview shows of a job; times in epoch ms, ``progress`` in percent."""

    id: str
    priority: int
    created_at_ms: float = msgspec.field(name="createdAt")
    run_at_ms: float = msgspec.field(name="runAt")
    attempts: int
    progress: float

    created_at = Moment("created_at_ms")
    run_at = Moment("run_at_ms")


class QueueJobs(Struct, gc=False):
    """The first jobs of a queue in each state, in no particular order within a state."""

    waiting: list[JobSketch]
    active: list[JobSketch]
    delayed: list[JobSketch]
    paused: list[JobSketch]


class QueueDetails(Struct, rename="camel", gc=False):
    """``counts`` as of GetJobCounts in version 3, with totals since the start."""

    name: str
    counts: dict[str, int]
    paused: bool
    priority_counts: dict[str, int]
    dlq_preview: list[Any]
    timestamp_ms: Annotated[float, LARGEST] = msgspec.field(name="timestamp")
    jobs: QueueJobs | UnsetType = UNSET

    timestamp = Moment("timestamp_ms")


class DashboardQueueReply(Reply, kw_only=True):
    data: QueueDetails


@command(Route.ALL, MetricsReply, merge=Merge.SUM)
class Metrics(Command, tag="Metrics"):
    """Totals of the server; with ``queue`` and ``type`` (completed or failed), jobs a minute of a queue."""

    queue: QueueName | None = None
    type: str | None = None


@command(Route.ALL, PrometheusReply, merge=Merge.SUM, heavy=True, partial=True)
class Prometheus(Command, tag="Prometheus"):
    """All numbers as Prometheus reads them."""


@command(Route.ALL, StorageStatusReply, merge=Merge.SUM)
class StorageStatus(Command, tag="StorageStatus"):
    """Whether everything can be stored."""


@command(Route.ALL, DashboardOverviewReply, merge=Merge.SUM, heavy=True, since=3)
class DashboardOverview(Command, tag="DashboardOverview"):
    """What the front page of a dashboard shows."""


@command(Route.ALL, DashboardQueuesReply, merge=Merge.SUM, heavy=True, since=3)
class DashboardQueues(Command, tag="DashboardQueues"):
    """All queues with their counts."""


@command(Route.QUEUE, DashboardQueueReply, heavy=True, since=3)
class DashboardQueue(Command, tag="DashboardQueue"):
    """One queue in detail; with ``includeJobs`` the first jobs of each state, too, without their data."""

    queue: QueueName
    include_jobs: bool = False


@command(Route.ALL, merge=Merge.FIRST_ERROR, writes=True, repeatable=True, heavy=True, since=3)
class CompactMemory(Command, tag="CompactMemory"):
    """Drop what is kept for jobs that have moved on; the server does so by itself, only later."""
