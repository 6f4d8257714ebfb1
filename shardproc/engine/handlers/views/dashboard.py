"""Data for dashboards: the server, its queues, one queue."""

from __future__ import annotations

from itertools import islice

from msgspec import UNSET, Raw
from msgspec.structs import asdict

from bunqueue.model.job import Job
from bunqueue.protocol.commands import Data, Ok
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.monitoring import (
    CompactMemory,
    DashboardOverview,
    DashboardOverviewReply,
    DashboardQueue,
    DashboardQueueReply,
    DashboardQueues,
    JobSketch,
    Latency,
    Memory,
    Overview,
    OverviewStats,
    QueueDetails,
    QueueJobs,
    QueueOverview,
    QueueOverviews,
    StorageState,
    Throughput,
    WorkerOverview,
)
from bunqueue.protocol.job_view import queried_job, state_name

from ...lookup import known_queue
from ...memory.history import lately
from ...memory.job_figures import JobFigures, by_bound
from ...memory.sums import Sums, of_queues
from ...memory.vitals import MB
from ...ready import queue_limits
from ...registry import handles
from ...scoped import is_limited, queues_of
from ...slices import Steps, sliced
from ...state import Client, QueueState, State
from ..crons.commands import next_ones
from .query import counts_of
from .stats import mean, of_all, of_shard, storage_state

PREVIEW = 10  # dead letters shown with a queue
PREVIEW_BYTES = 1024 * 1024  # of their payloads in total
QUEUES_A_SLICE = 25
JOBS_A_SLICE = 1_000
SKETCHES = 50  # jobs of each state shown with a queue
MAX_CRONS = 100
RATE_MINUTES = 4  # full minutes over which the rates of queues are averaged


@handles(DashboardOverview)
@sliced
def overview(state: State, client: Client, command: DashboardOverview) -> Steps:
    queues = queues_of(state, client)
    jobs = yield from of_queues(queues)
    crons = yield from next_ones(state, client, MAX_CRONS)
    if is_limited(client):
        return _limited_overview(state, queues, jobs, crons)
    totals, vitals, figures = state.totals, state.vitals(), of_shard(state)
    return DashboardOverviewReply(
        data=Overview(
            stats=OverviewStats(
                waiting=jobs.waiting,
                active=jobs.active,
                delayed=jobs.delayed,
                completed=jobs.completed,
                dlq=jobs.failed,
                total_pushed=totals.pushed,
                total_pulled=totals.pulled,
                total_completed=totals.completed,
                total_failed=totals.failed,
                uptime=float(state.now - state.started_at),
            ),
            throughput=Throughput(*state.rates.per_second(state.now, totals)),
            latency=_latency(figures, totals.completed),
            memory=Memory(vitals.memory / MB),
            collections={
                "queues": len(state.queues),
                "jobs": len(state.jobs),
                "webhooks": len(state.webhooks),
                "connections": len(state.clients),
            },
            workers=WorkerOverview(0, 0, []),  # only the router knows them
            crons=crons,
            storage=storage_state(state.shard, vitals),
            timestamp_ms=float(state.now),
        )
    )


def _limited_overview(
    state: State, queues: list[QueueState], jobs: Sums, crons: list[CronView]
) -> DashboardOverviewReply:
    """The overview for who is for these queues only: nothing in it is about the server."""
    figures = of_all(queues)
    completed, failed = (sum(queue.total_completed for queue in queues), sum(q.total_failed for q in queues))
    recent = [lately(state, queue, RATE_MINUTES) for queue in queues]
    return DashboardOverviewReply(
        data=Overview(
            stats=OverviewStats(
                waiting=jobs.waiting,
                active=jobs.active,
                delayed=jobs.delayed,
                completed=jobs.completed,
                dlq=jobs.failed,
                total_pushed=figures.pushed,
                total_pulled=figures.started,
                total_completed=completed,
                total_failed=failed,
                uptime=float(state.now - state.started_at),
            ),
            throughput=Throughput(
                0.0, 0.0, sum(rates[0] for rates in recent) / 60, sum(rates[1] for rates in recent) / 60
            ),
            latency=_latency(figures, completed),
            memory=Memory(0.0),
            collections={"queues": len(queues), "jobs": jobs.waiting + jobs.active + jobs.delayed},
            workers=WorkerOverview(0, 0, []),  # only the router knows them
            crons=crons,
            storage=StorageState(False, None, None, None),
            timestamp_ms=float(state.now),
        )
    )


def _latency(figures: JobFigures, completed: int) -> Latency:
    return Latency(
        mean(figures.waits_ms, figures.waits),
        mean(figures.runs_ms, figures.runs),
        completed,
        by_bound(figures.waits),
        by_bound(figures.runs),
        sum(figures.runs),
        by_bound(figures.totals),
    )


@handles(DashboardQueues)
@sliced
def dashboard_queues(state: State, client: Client, command: DashboardQueues) -> Steps:
    found = []
    for number, known in enumerate(queues_of(state, client), 1):
        queue = state.queues.get(known.name)
        if queue is not None:
            found.append(_overview_of(state, queue))
        if number % QUEUES_A_SLICE == 0:
            yield
    return Data(data=QueueOverviews(found, float(state.now)))


def _overview_of(state: State, queue: QueueState) -> QueueOverview:
    oldest = queue_limits.oldest(queue)
    prioritized = queue.ready.prioritized()
    return QueueOverview(
        queue.name,
        queue.waiting - prioritized,
        prioritized,
        len(queue.delayed),
        len(queue.active),
        queue.failed,
        queue.paused,
        queue.completed,
        queue.total_completed,
        queue.total_failed,
        *lately(state, queue, RATE_MINUTES),
        0.0 if oldest is None else float(max(0, state.now - oldest)),
        len(queue.blocked) + len(queue.suspended),
        queue.dropped or UNSET,
    )


@handles(DashboardQueue)
@sliced
def dashboard_queue(state: State, client: Client, command: DashboardQueue) -> Steps:
    queue = known_queue(state, command.queue)
    if queue is None:
        queue = QueueState(0, command.queue)  # as empty as an unused queue
    priorities = queue_limits.ready_counts(queue)  # counted as jobs come and go; delayed jobs are not
    for place, job in enumerate(list(queue.delayed.values()), 1):
        priorities[job.priority] += 1
        if place % JOBS_A_SLICE == 0:
            yield
    counts = asdict(counts_of(queue, 3))
    counts["waiting-children"] = counts.pop("waiting_children")
    if counts.pop("waiting_signal") is not UNSET:
        counts["waiting-signal"] = queue.waiting_signal
    return DashboardQueueReply(
        data=QueueDetails(
            queue.name,
            {**counts, "totalCompleted": queue.total_completed, "totalFailed": queue.total_failed},
            queue.paused,
            {str(priority): priorities[priority] for priority in sorted(priorities)},
            _preview(state, queue),
            float(state.now),
            _sketches(queue) if command.include_jobs else UNSET,
        )
    )


def _sketches(queue: QueueState) -> QueueJobs:
    ready = [_sketch(job) for job in islice(queue_limits.ready_jobs(queue), SKETCHES)]
    return QueueJobs(
        waiting=[] if queue.paused else ready,
        active=[_sketch(job) for job in islice(queue.active.values(), SKETCHES)],
        delayed=[_sketch(job) for job in islice(queue.delayed.values(), SKETCHES)],
        paused=ready if queue.paused else [],
    )


def _sketch(job: Job) -> JobSketch:
    return JobSketch(
        job.id, job.priority, float(job.created_at), float(job.run_at), job.attempts, float(job.progress)
    )


def _preview(state: State, queue: QueueState) -> list[Raw]:
    """The oldest dead letters, as many as fit into PREVIEW_BYTES."""
    shown: list[Raw] = []
    size = 0
    rows = state.archive.dead_letters(queue.id, PREVIEW, (0, 0))
    for job in state.archive.load([row.seq for row in rows]).values():
        size += len(job.data)
        if size > PREVIEW_BYTES:
            break
        shown.append(Raw(queried_job(job, state_name(job, 3))))
    return shown


@handles(CompactMemory)
@sliced
def compact_memory(state: State, client: Client, command: CompactMemory) -> Steps:
    for queue in list(state.queues.values()):
        queue.ready.compact()
        yield
    return Ok()
