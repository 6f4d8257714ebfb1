"""Monitoring: Metrics, Prometheus, StorageStatus and dashboards."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.bounds import Bounds
from bunqueue.model.marks import JOB
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    LARGEST,
    SMALLEST,
    Across,
    Command,
    Data,
    IdOf,
    Merge,
    OfQueue,
    Ok,
    QueueName,
    QueueOf,
    Reach,
    Reply,
    Route,
    Tag,
    command,
    http,
)
from bunqueue.protocol.commands.bounds import Space
from bunqueue.protocol.commands.breakers import BreakerFigures
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.dlq import Dropped
from bunqueue.protocol.moments import MaybeMoment, Moment

COMMIT_MS = (
    0.5,
    1,
    1.5,
    2,
    3,
    4,
    5,
    7.5,
    10,
    15,
    20,
    30,
    50,
    100,
    250,
    1000,
)  # bucket bounds for the times of commits
OVER_ATTEMPTS = Across("mean", weight="totalAttempts")


class ServerMetrics(Struct, rename="camel", gc=False):
    """Totals since the start.  The averages are over the ``total_attempts`` that completed their job
    or failed: latency is the time from a job's due time until its pull, processing the time from the pull
    until its ack or failure.
    """

    total_pushed: int
    total_pulled: int
    total_completed: int
    total_failed: int
    avg_latency_ms: Annotated[float, OVER_ATTEMPTS]
    avg_processing_ms: Annotated[float, OVER_ATTEMPTS]
    memory_usage_mb: float
    sqlite_size_mb: float
    active_connections: int
    total_attempts: int = 0


class HistoryMeta(Struct, rename="camel", gc=False):
    """``count`` is the total number of jobs; the newest minute began at ``prev_ts`` (epoch ms) and has
    ``prev_count`` jobs so far.
    """

    count: int
    prev_ts_ms: Annotated[float, LARGEST] = msgspec.field(name="prevTS")
    prev_count: int

    prev_ts = Moment("prev_ts_ms")


class QueueHistory(Struct, gc=False):
    """Jobs per minute, newest minute first; ``count`` is the number of minutes."""

    meta: HistoryMeta
    data: list[int]
    count: int


class MetricsReply(Reply, kw_only=True):
    """``metrics`` of the server, or ``data`` of the requested queue."""

    metrics: ServerMetrics | UnsetType = UNSET
    data: QueueHistory | UnsetType = UNSET


class MetricsText(Struct, gc=False):
    metrics: str


class PrometheusReply(Reply, kw_only=True):
    """The text exposition format, version 0.0.4."""

    data: MetricsText


class NameFigures(Struct, gc=False):
    """The jobs of one name in a queue since the shard started; ``failed`` counts attempts, ``dead`` jobs."""

    name: str
    pushed: int
    started: int
    completed: int
    failed: int
    retried: int
    dead: int


class ClassFigures(Struct, gc=False):
    """Failed attempts of a queue by outcome and class of the error."""

    outcome: str
    error: str
    muted: bool
    count: int


class Times(Struct, gc=False):
    """A histogram of times: up to 1, 2, 4, ... ms, and longer; and their sum."""

    counts: list[int]
    sum_ms: float


class QueueFigures(Struct, gc=False):
    """One queue for Prometheus."""

    name: QueueOf
    waiting: int
    delayed: int
    active: int
    dlq: int
    oldest_ms: float  # how long the oldest ready job has been ready
    groups: int | UnsetType = UNSET  # groups with jobs or settings, if there are any
    bounds: Bounds | UnsetType = UNSET  # if its waiting jobs are bounded
    space: Space | UnsetType = UNSET  # likewise
    names: list[NameFigures] = []  # the most used ones; the rest as "other"
    classes: list[ClassFigures] = []
    waits: Times | None = None  # of attempts that completed their job or failed
    runs: Times | None = None
    totals: Times | None = None  # of jobs that completed or failed for good
    paused: bool = False
    has_workers: bool = True  # whether a worker is known to take its jobs


class NamespaceFigures(Struct, gc=False):
    """What is in a namespace, on one shard."""

    name: str
    queues: int = 0
    waiting: int = 0
    delayed: int = 0
    active: int = 0
    dlq: int = 0


class DroppedFigures(Struct, gc=False):
    """A queue with dropped dead letters."""

    queue: QueueOf
    too_many: int
    too_old: int
    last_at_ms: float


class ShardStore(Struct, rename="camel", gc=False):
    """The state of a shard's log, if the server has a store.  ``position`` is the last acknowledged record,
    ``held`` the number of bytes that wait for acknowledgement, ``appended`` how many were acknowledged since
    the start; ``round_trip_ms`` is the mean time of a commit.  Normally ``phase`` is ``owning``, and
    ``away_since`` (epoch ms) is null.  Without ``protected``, PostgreSQL waits for no standby.  ``commits``
    counts the commits that took up to 0.5, 1, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 20, 30, 50, 100, 250 and 1000 ms,
    and longer; ``commits_ms`` is their total time.
    """

    position: int
    epoch: int
    phase: str
    held: float
    round_trip_ms: float
    appended: float
    away_since_ms: float | None = msgspec.field(name="awaySince")
    protected: bool
    commits: list[int]
    commits_ms: float

    away_since = MaybeMoment("away_since_ms")


class ShardFigures(Struct, gc=False):
    """One shard for Prometheus."""

    shard: int
    queues: int  # number of queues
    waiting: int
    delayed: int
    active: int
    dlq: int
    completed: int
    pushed_total: int
    pulled_total: int
    completed_total: int
    failed_total: int
    attempts_failed_total: int
    waits: Times
    runs: Times
    totals: Times
    memory_bytes: float
    sqlite_bytes: float
    cpu_s: float
    storage_degraded: bool
    disk_full: bool
    clock_jumps: int = 0  # of the wall clock, as noticed by the shard
    clock_last_jump_ms: float = 0.0  # negative: backwards
    clock_moved: int = 0  # times of jobs, schedules and limits that were corrected
    clock_doubt_ms: float = 0.0  # how far the clock may be ahead; retention waits that much longer
    damaged_tables: int = 0  # tables with rows that could not be read or written
    unreadable_jobs: int = 0
    half_flows_removed: int = 0  # after the start, because another shard had lost its half
    disk_free_bytes: float = 0.0  # 0 in memory, like the others here
    disk_refused_below_bytes: float = 0.0
    reserve_bytes: float = 0.0
    wal_bytes: float = 0.0
    wal_limit_bytes: float = 0.0
    checkpoint_failures: int = 0  # failed attempts to copy the write-ahead log into the database
    memory_limit_bytes: float = 0.0  # 0: no limit
    memory_full: bool = False
    cron_missed_total: int = 0  # runs that were missed while the server was down
    unique_keys_kept: int = 0  # of jobs that have ended
    dropped_too_many: int = 0  # dead letters, since the shard started
    dropped_too_old: int = 0
    store: ShardStore | None = None


class Figures(Struct, gc=False):
    """A shard's numbers, which the router formats as text; ``queues`` has only the largest queues."""

    shards: list[ShardFigures]
    queues: list[QueueFigures]
    webhooks: int
    webhooks_enabled: int
    breakers: list[BreakerFigures] = []
    dropped: list[DroppedFigures] = []  # the queues that lost the most
    namespaces: list[NamespaceFigures] = []


class ShardRoom(Struct, rename="camel", gc=False):
    """The disk space of one shard, in bytes.  It refuses pushes when its disk has less than ``refused_below``
    free bytes, or its write-ahead log is longer than ``wal_limit``.  ``reserve`` is set aside in addition.
    """

    shard: int
    free: float
    refused_below: float
    reserve: float
    wal: float
    wal_limit: float


class StorageState(Struct, rename="camel", gc=False):
    """``error`` describes the current problem, ``since`` (epoch ms) is when it began, and ``code`` is the
    code of the refusals that it causes; all are null without a problem.  ``warnings`` describes future
    problems; ``rooms`` has the disk space of each shard that stores files.
    """

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
    """Averages as in ServerMetrics, over ``total_attempts``.

    ``waits`` and ``runs`` are histograms of these times, ``totals`` of the time from a job's push until it
    completed or failed for good.  Each key is the upper bound of a bucket in ms: 1, 2, 4 and so on, and
    ``inf`` for all that took longer.
    """

    avg_latency_ms: Annotated[float, OVER_ATTEMPTS]
    avg_processing_ms: Annotated[float, OVER_ATTEMPTS]
    total_completed: int
    waits: dict[str, int]
    runs: dict[str, int]
    total_attempts: int = 0
    totals: dict[str, int] = {}


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
    crons: list[CronView]  # the next to run, of each shard
    storage: StorageState
    timestamp_ms: Annotated[float, LARGEST] = msgspec.field(name="timestamp")  # epoch ms

    timestamp = Moment("timestamp_ms")


class DashboardOverviewReply(Reply, kw_only=True):
    data: Overview


class QueueOverview(Struct, rename="camel", gc=False):
    """``waiting`` counts the ready jobs without a priority, ``prioritized`` those with one."""

    name: QueueOf
    waiting: int
    prioritized: int
    delayed: int
    active: int
    dlq: int
    paused: bool
    completed: int
    total_completed: int  # since the start
    total_failed: int
    completed_per_min: float  # over at most the last five minutes
    failed_per_min: float
    oldest_ms: float  # how long the oldest ready job has been ready
    blocked: int  # jobs that depend on others
    dropped: Dropped | UnsetType = UNSET  # dead letters that were dropped, if any were


class QueueOverviews(Struct, gc=False):
    queues: list[QueueOverview]
    timestamp_ms: Annotated[float, LARGEST] = msgspec.field(name="timestamp")

    timestamp = Moment("timestamp_ms")


class JobSketch(Struct, rename="camel", gc=False):
    """A summary of a job; times are in epoch ms, ``progress`` in percent."""

    id: IdOf
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
    """``counts`` has the counts of GetJobCounts in version 3, plus totals since the start."""

    name: QueueOf
    counts: dict[str, int]
    paused: bool
    priority_counts: dict[str, int]
    dlq_preview: list[Annotated[Any, JOB]]
    timestamp_ms: Annotated[float, LARGEST] = msgspec.field(name="timestamp")
    jobs: QueueJobs | UnsetType = UNSET

    timestamp = Moment("timestamp_ms")


class DashboardQueueReply(Reply, kw_only=True):
    data: QueueDetails


@http("GET /queues/{queue}/metrics", Tag.QUEUES)
@http("GET /metrics", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.SUM, operational=True, reach=Reach.ALLOWED)
class Metrics(Command[MetricsReply], tag="Metrics"):
    """Get the totals of the server; with ``queue`` and ``type`` (completed or failed), a queue's jobs per
    minute.
    """

    queue: QueueName | None = None
    type: str | None = None


@command(
    Route.ALL, Verb.SCRAPE, merge=Merge.SUM, heavy=True, partial=True, operational=True, reach=Reach.ALLOWED
)
class Prometheus(Command[PrometheusReply], tag="Prometheus"):
    """Get all metrics in the Prometheus text format."""


@http("GET /storage", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.SUM, operational=True)
class StorageStatus(Command[StorageStatusReply], tag="StorageStatus"):
    """Check whether the server can store everything, and get its disk space."""


@http("GET /overview", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.SUM, heavy=True, since=3, operational=True, reach=Reach.ALLOWED)
class DashboardOverview(Command[DashboardOverviewReply], tag="DashboardOverview"):
    """Get the data for the front page of a dashboard."""


@http("GET /queues", Tag.QUEUES)
@command(Route.ALL, Verb.SEE, merge=Merge.SUM, heavy=True, since=3, reach=Reach.ALLOWED)
class DashboardQueues(Command[Data[QueueOverviews]], tag="DashboardQueues"):
    """List all queues with their counts."""


@http("GET /queues/{queue}", Tag.QUEUES)
@command(Route.QUEUE, Verb.SEE | Verb.READ, heavy=True, since=3)
class DashboardQueue(OfQueue[DashboardQueueReply], tag="DashboardQueue"):
    """Get a queue in detail; with ``includeJobs`` also the first jobs of each state, without their data."""

    include_jobs: bool = False


@http("POST /compact", Tag.SERVER)
@command(
    Route.ALL, Verb.ADMINISTER, merge=Merge.FIRST_ERROR, writes=True, repeatable=True, heavy=True, since=3
)
class CompactMemory(Command[Ok], tag="CompactMemory"):
    """Free memory that is kept for finished jobs now; the server also does so automatically, but later."""
