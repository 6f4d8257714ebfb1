"""ListQueues, Stats, Metrics and similar commands: figures of this shard, which the router merges with those
of the others."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from heapq import nlargest
from itertools import islice

from msgspec import UNSET
from msgspec.msgpack import Encoder

from bunqueue.model.names import namespace_of
from bunqueue.model.scope import not_of_server
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data
from bunqueue.protocol.commands.breakers import BreakerFigures
from bunqueue.protocol.commands.monitoring import (
    ClassFigures,
    DroppedFigures,
    Figures,
    HistoryMeta,
    Metrics,
    MetricsReply,
    NameFigures,
    NamespaceFigures,
    Prometheus,
    QueueFigures,
    QueueHistory,
    ServerMetrics,
    ShardFigures,
    ShardRoom,
    ShardStore,
    StorageState,
    StorageStatus,
    StorageStatusReply,
    Times,
)
from bunqueue.protocol.commands.server import (
    ListQueues,
    ListQueuesReply,
    QueueInfo,
    ServerStats,
    Stats,
    StatsReply,
)
from bunqueue.protocol.job_view import job_list

from ...handlers.bounds import space_of
from ...memory.history import MINUTE_MS, by_minute
from ...memory.job_figures import OTHER, JobFigures, total
from ...memory.sums import QUEUES_A_SLICE, Sums, of_queues
from ...memory.vitals import MB, Disk, Vitals
from ...ready import queue_limits
from ...registry import handles
from ...scoped import is_limited, queues_of
from ...slices import Steps, sliced
from ...state import Client, QueueState, State

_encode = Encoder().encode

MAX_BREAKERS = 200  # circuit breakers in Prometheus, per shard
MAX_DROPPED = 200  # queues with dropped dead letters in Prometheus, per shard
MAX_QUEUES = 200  # queues with series of their own in Prometheus, over all shards: each costs four
MAX_NAMES = 20  # names of a queue with series of their own in Prometheus
SHOWN_A_SLICE = 20  # queues shown per slice


@handles(ListQueues)
@sliced
def list_queues(state: State, client: Client, command: ListQueues) -> Steps:
    found: list[bytes] = []
    names_only = client.version >= 3 and not command.details
    for number, queue in enumerate(queues_of(state, client)):
        if number and number % QUEUES_A_SLICE == 0:
            yield
        found.append(_encode(queue.name if names_only else _info(queue)))
    return ListQueuesReply(queues=job_list(found))


def _info(queue: QueueState) -> QueueInfo:
    return QueueInfo(queue.name, queue.waiting, len(queue.delayed), len(queue.active), queue.paused)


@handles(Stats)
@sliced
def stats(state: State, client: Client, command: Stats) -> Steps:
    jobs = yield from of_queues(queues_of(state, client))
    push_rate, pull_rate = (0.0, 0.0)
    if not is_limited(client):
        push_rate, pull_rate, *_ = state.rates.per_second(state.now, state.totals)
    return StatsReply(
        stats=ServerStats(
            queued=jobs.waiting,
            processing=jobs.active,
            waiting=jobs.waiting,
            active=jobs.active,
            delayed=jobs.delayed,
            dlq=jobs.failed,
            completed=jobs.completed,
            failed=jobs.failed,
            uptime=float(state.now - state.started_at),
            push_per_sec=push_rate,
            pull_per_sec=pull_rate,
        )
    )


@handles(Metrics)
def metrics(state: State, client: Client, command: Metrics) -> MetricsReply:
    if command.queue is not None or command.type is not None:
        return MetricsReply(data=_history(state, command.queue, command.type))
    if client.scope is not None and is_limited(client):
        raise CommandError(not_of_server(client.scope, "Metrics without a queue"), Code.FORBIDDEN)
    totals, vitals, figures = state.totals, state.vitals(), of_shard(state)
    return MetricsReply(
        metrics=ServerMetrics(
            total_pushed=totals.pushed,
            total_pulled=totals.pulled,
            total_completed=totals.completed,
            total_failed=totals.failed,
            avg_latency_ms=mean(figures.waits_ms, figures.waits),
            avg_processing_ms=mean(figures.runs_ms, figures.runs),
            memory_usage_mb=vitals.memory / MB,
            sqlite_size_mb=vitals.sqlite / MB,
            active_connections=len(state.clients),
            total_attempts=sum(figures.runs),
        )
    )


def _history(state: State, name: str | None, kind: str | None) -> QueueHistory:
    """Jobs per minute of a queue; empty for a queue that is not here."""
    if name is None:
        raise CommandError("Metrics queue is required", Code.INVALID_QUEUE, field="queue", value=None)
    if kind not in ("completed", "failed"):
        raise CommandError(
            "Metrics type must be 'completed' or 'failed'",
            Code.INVALID_FIELD,
            field="type",
            value=kind,
            bound="completed, failed",
        )
    queue = state.queues.get(name)
    if queue is None:
        return QueueHistory(HistoryMeta(0, 0.0, 0), [], 0)
    data = by_minute(state, queue, kind)
    total = queue.total_completed if kind == "completed" else queue.total_failed
    if not data:
        return QueueHistory(HistoryMeta(0, 0.0, 0), [], 0)
    minute = float(state.now // MINUTE_MS * MINUTE_MS)
    return QueueHistory(HistoryMeta(total, minute, data[0]), data, len(data))


@handles(Prometheus)
@sliced
def prometheus(state: State, client: Client, command: Prometheus) -> Steps:
    queues = queues_of(state, client)
    jobs = yield from of_queues(queues)
    largest: list[QueueState] = []
    for start in range(0, len(queues), QUEUES_A_SLICE):
        if start:
            yield
        largest = nlargest(MAX_QUEUES, largest + queues[start : start + QUEUES_A_SLICE], _size)
    limited = is_limited(client)  # then it gets nothing about the server
    namespaces: list[NamespaceFigures] = []
    if not limited:
        namespaces = yield from _namespaces(queues)
    figures = []
    for number, queue in enumerate(largest, 1):
        figures.append(_of_queue(state, queue))
        if number % SHOWN_A_SLICE == 0:
            yield
    hooks = () if limited else state.webhooks.values()
    return Data(
        data=Figures(
            shards=[] if limited else [_of_shard(state, jobs)],
            queues=figures,
            webhooks=len(hooks),
            webhooks_enabled=sum(hook.enabled for hook in hooks),
            breakers=list(islice(_breakers(queues), MAX_BREAKERS)),
            dropped=nlargest(MAX_DROPPED, _dropped(queues), lambda each: each.too_many + each.too_old),
            namespaces=namespaces,
        )
    )


def _namespaces(queues: list[QueueState]) -> Generator[None, None, list[NamespaceFigures]]:
    """What is in each namespace."""
    found: dict[str, NamespaceFigures] = {}
    for number, queue in enumerate(queues):
        if number and number % QUEUES_A_SLICE == 0:
            yield
        if name := namespace_of(queue.name):
            _count(found.setdefault(name, NamespaceFigures(name)), queue)
    return list(found.values())


def _count(figures: NamespaceFigures, queue: QueueState) -> None:
    figures.queues += 1
    figures.waiting += queue.waiting
    figures.delayed += len(queue.delayed)
    figures.active += len(queue.active)
    figures.dlq += queue.failed


def _dropped(queues: list[QueueState]) -> Iterator[DroppedFigures]:
    for queue in queues:
        if (found := queue.dropped) is not None:
            yield DroppedFigures(queue.name, found.too_many, found.too_old, found.last_at_ms or 0.0)


def _breakers(queues: list[QueueState]) -> Iterator[BreakerFigures]:
    for queue in queues:
        if queue.limits is not None and queue.limits.breakers is not None:
            for each in queue.limits.breakers:
                yield BreakerFigures(queue.name, each.name, each.record.is_open, each.record.opened)


def _size(queue: QueueState) -> int:
    return queue.waiting + len(queue.delayed) + len(queue.active) + queue.failed


def of_shard(state: State) -> JobFigures:
    """The sum of what all jobs have done."""
    return total([state.figures.gone, of_all(state.queues.values())])


def of_all(queues: Iterable[QueueState]) -> JobFigures:
    """The sum of what the jobs of these queues have done."""
    return total([figures for queue in queues for figures in queue.names.values()])


def mean(sum_ms: int, counts: list[int]) -> float:
    """The average of a histogram."""
    count = sum(counts)
    return sum_ms / count if count else 0.0


def _of_queue(state: State, queue: QueueState) -> QueueFigures:
    oldest, now = queue_limits.oldest(queue), state.now
    figures, errors = total(queue.names.values()), state.errors.queues.get(queue.name)
    groups = queue.limits.groups if queue.limits is not None else None
    return QueueFigures(
        queue.name,
        queue.waiting,
        len(queue.delayed),
        len(queue.active),
        queue.failed,
        0.0 if oldest is None else float(max(0, now - oldest)),
        UNSET if groups is None or not groups.by_id else len(groups.by_id),
        UNSET if queue.space is None else queue.space.bounds,
        UNSET if queue.space is None else space_of(queue),
        _names(queue),
        [] if errors is None else [ClassFigures(*key, count) for key, count in errors.classes.items()],
        Times(figures.waits, figures.waits_ms),
        Times(figures.runs, figures.runs_ms),
        Times(figures.totals, figures.totals_ms),
        queue.paused,
        bool(queue.active or queue.waiters or queue.name in state.queues_with_workers),
    )


def _names(queue: QueueState) -> list[NameFigures]:
    """The figures of the names of a queue that are used most; the others are added up."""
    ranked = sorted(queue.names.items(), key=lambda each: (each[0] == OTHER, -each[1].started, each[0]))
    shown = dict(ranked[:MAX_NAMES])
    if rest := [figures for _, figures in ranked[MAX_NAMES:]]:
        shown[OTHER] = total([*rest, *([shown[OTHER]] if OTHER in shown else [])])
    return [
        NameFigures(name, each.pushed, each.started, each.completed, each.failed, each.retried, each.dead)
        for name, each in shown.items()
    ]


def _of_shard(state: State, jobs: Sums) -> ShardFigures:
    totals, vitals, figures = state.totals, state.vitals(), of_shard(state)
    disk = vitals.disk or Disk()
    return ShardFigures(
        shard=state.shard,
        queues=len(state.queues),
        waiting=jobs.waiting,
        delayed=jobs.delayed,
        active=jobs.active,
        dlq=jobs.failed,
        completed=jobs.completed,
        pushed_total=totals.pushed,
        pulled_total=totals.pulled,
        completed_total=totals.completed,
        failed_total=totals.failed,
        attempts_failed_total=figures.failed,
        waits=Times(figures.waits, figures.waits_ms),
        runs=Times(figures.runs, figures.runs_ms),
        totals=Times(figures.totals, figures.totals_ms),
        memory_bytes=float(vitals.memory),
        sqlite_bytes=float(vitals.sqlite),
        cpu_s=vitals.cpu_s,
        storage_degraded=vitals.fault is not None,
        disk_full=vitals.fault is not None and vitals.fault.disk_full,
        clock_jumps=vitals.clock.jumps,
        clock_last_jump_ms=float(vitals.clock.last_jump),
        clock_moved=vitals.clock.moved,
        clock_doubt_ms=float(vitals.clock.uncertainty),
        damaged_tables=vitals.damaged_tables,
        unreadable_jobs=vitals.unreadable_jobs,
        half_flows_removed=state.recovery.half_flows.flows,
        disk_free_bytes=float(disk.free),
        disk_refused_below_bytes=float(disk.refused_below),
        reserve_bytes=float(disk.reserve),
        wal_bytes=float(disk.wal),
        wal_limit_bytes=float(disk.wal_limit),
        checkpoint_failures=disk.checkpoint_failures,
        memory_limit_bytes=float(vitals.memory_limit),
        memory_full=vitals.memory_full,
        cron_missed_total=totals.cron_missed,
        unique_keys_kept=state.ended_keys.count,
        dropped_too_many=totals.dropped[0],
        dropped_too_old=totals.dropped[1],
        store=store_view(vitals),
    )


def store_view(vitals: Vitals) -> ShardStore | None:
    """The shard's position in its log, if it has one."""
    log = vitals.log
    if log is None:
        return None
    return ShardStore(
        position=log.position,
        epoch=log.epoch,
        phase=log.phase,
        held=float(log.held),
        round_trip_ms=log.round_trip_ms,
        appended=float(log.appended),
        away_since_ms=None if log.unavailable_since is None else float(log.unavailable_since),
        protected=log.is_protected,
        commits=list(log.commits),
        commits_ms=log.commits_ms,
    )


@handles(StorageStatus)
def storage_status(state: State, client: Client, command: StorageStatus) -> StorageStatusReply:
    return StorageStatusReply(data=storage_state(state.shard, state.vitals()))


def storage_state(shard: int, vitals: Vitals) -> StorageState:
    fault, warnings = vitals.fault, list(vitals.warnings)
    rooms = [] if vitals.disk is None else [_room(shard, vitals.disk)]
    if fault is None:
        return StorageState(False, None, None, None, warnings, rooms)
    code = str(fault.code)
    return StorageState(
        fault.disk_full, fault.error, float(fault.since), code, warnings=warnings, rooms=rooms
    )


def _room(shard: int, disk: Disk) -> ShardRoom:
    sizes = (disk.free, disk.refused_below, disk.reserve, disk.wal, disk.wal_limit)
    return ShardRoom(shard, *map(float, sizes))
