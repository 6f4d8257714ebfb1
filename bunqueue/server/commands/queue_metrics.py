"""The metrics of single queues, for queues that are important enough to have their own series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bunqueue.model.bounds import Bounds
from bunqueue.model.dead_letters import MAX_AGE, MAX_ENTRIES
from bunqueue.protocol.commands.bounds import Space
from bunqueue.protocol.commands.monitoring import Figures, NameFigures, QueueFigures, Times

from .prometheus_format import buckets_of, family_of, histogram_of

MAX_QUEUES = 200  # with their own series, over all shards

GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily


# Name without "bunqueue_", its help, its value.
_BY_QUEUE: tuple[tuple[str, str, Callable[[QueueFigures], float]], ...] = (
    ("queue_jobs_waiting", "Ready jobs of the queue", lambda queue: queue.waiting),
    ("queue_jobs_delayed", "Delayed jobs of the queue", lambda queue: queue.delayed),
    ("queue_jobs_active", "Active jobs of the queue", lambda queue: queue.active),
    ("queue_jobs_dlq", "Dead letters of the queue", lambda queue: queue.dlq),
    ("queue_paused", "The queue is paused", lambda queue: queue.paused),
    (
        "queue_has_workers",
        "Somebody takes jobs of the queue: a registered worker, or a client that waits for one or has one",
        lambda queue: queue.has_workers,
    ),
    (
        "queue_oldest_waiting_seconds",
        "How long the job of the queue that is ready longest has been so",
        lambda queue: queue.oldest_ms / 1000,
    ),
)
# Only for queues where the value is not 0: a series for every queue costs time at each scrape.
_OF_SOME_QUEUES: tuple[tuple[str, type[Metric], str, Callable[[QueueFigures], float]], ...] = (
    (
        "queue_groups",
        GAUGE,
        "Groups of the queue that have jobs or settings",
        lambda queue: queue.groups or 0,
    ),
)
_OF_BOUNDED_QUEUES: tuple[tuple[str, type[Metric], str, Callable[[Bounds, Space], float | None]], ...] = (
    ("queue_max_waiting", GAUGE, "Jobs that may wait in the queue", lambda bounds, _: bounds.max_waiting),
    (
        "queue_max_waiting_bytes",
        GAUGE,
        "Bytes of data of jobs that may wait in the queue",
        lambda bounds, _: bounds.max_waiting_bytes,
    ),
    ("queue_waiting_bytes", GAUGE, "Bytes of data of waiting jobs", lambda _, space: space.waiting_bytes),
    (
        "queue_refused_jobs",
        COUNTER,
        "Jobs that were refused because the queue was full, since the shard started",
        lambda _, space: space.refused,
    ),
    (
        "queue_dropped_jobs",
        COUNTER,
        "Jobs that were dropped because the queue was full, since the shard started",
        lambda _, space: space.dropped,
    ),
)


# Name without "bunqueue_queue_", its help, its value; by the names of the jobs.
_BY_NAME: tuple[tuple[str, str, Callable[[NameFigures], int]], ...] = (
    ("jobs_pushed", "Jobs pushed", lambda jobs: jobs.pushed),
    ("jobs_started", "Attempts started", lambda jobs: jobs.started),
    ("jobs_completed", "Jobs completed", lambda jobs: jobs.completed),
    ("attempts_failed", "Attempts failed", lambda jobs: jobs.failed),
    ("jobs_retried", "Attempts that failed, and after which another one follows", lambda jobs: jobs.retried),
    ("jobs_dead", "Jobs failed for good", lambda jobs: jobs.dead),
)
_TIMES: tuple[tuple[str, str, Callable[[QueueFigures], Times | None]], ...] = (
    ("queue_wait_seconds", "Time of attempts from being due to being pulled", lambda queue: queue.waits),
    ("queue_run_seconds", "Time of attempts from being pulled on", lambda queue: queue.runs),
    ("queue_total_seconds", "Time of ended jobs from being pushed on", lambda queue: queue.totals),
)
MAX_TIMED = 50  # queues with histograms of their own: each costs some 40 series
EVERY_BOUND = 2  # of a histogram: one of so many


def queue_metrics(figures: Figures) -> Iterator[Metric]:
    """The metrics of the largest queues; their number is limited, because each one adds series."""
    largest = sorted(
        figures.queues,
        key=lambda queue: (-(queue.waiting + queue.delayed + queue.active + queue.dlq), queue.name),
    )[:MAX_QUEUES]
    timed = sorted(largest[:MAX_TIMED], key=lambda queue: queue.name)
    largest.sort(key=lambda queue: queue.name)
    for name, text, value in _BY_QUEUE:
        family = family_of(GAUGE, name, text, ["queue"])
        for queue in largest:
            family.add_metric([queue.name], value(queue))
        yield family
    for name, kind, text, value in _OF_SOME_QUEUES:
        family = family_of(kind, name, text, ["queue"])
        for queue in largest:
            if number := value(queue):
                family.add_metric([queue.name], number)
        yield family
    yield from _jobs(largest)
    for name, text, of_times in _TIMES:
        histogram = histogram_of(name, text, ["queue"])
        for queue in timed:
            if (times := of_times(queue)) is not None and any(times.counts):
                histogram.add_metric([queue.name], *buckets_of([times], EVERY_BOUND))
        yield histogram
    yield from _breakers(figures)
    yield from _dropped(figures)
    for name, kind, text, of_space in _OF_BOUNDED_QUEUES:
        family = family_of(kind, name, text, ["queue"])
        for queue in largest:
            if queue.bounds and queue.space and (found := of_space(queue.bounds, queue.space)) is not None:
                family.add_metric([queue.name], found)
        yield family
    total = sum(shard.queues for shard in figures.shards) or len(figures.queues)
    text = "Queues with series of their own"
    yield family_of(GAUGE, "queue_metrics_exported", text, value=len(largest))
    text = f"Smaller queues left out, beyond the largest {MAX_QUEUES}"
    yield family_of(GAUGE, "queue_metrics_omitted", text, value=total - len(largest))


def _jobs(queues: Sequence[QueueFigures]) -> Iterator[Metric]:
    """What the jobs of queues have done, by their names; and how they failed."""
    for name, text, value in _BY_NAME:
        family = family_of(COUNTER, f"queue_{name}", text, ["queue", "name"])
        for queue in queues:
            for jobs in queue.names:
                family.add_metric([queue.name, jobs.name], value(jobs))
        yield family
    text = "Attempts failed, by how, and by the class of the error; muted: its group of errors is muted"
    failures = family_of(COUNTER, "queue_failures", text, ["queue", "outcome", "error", "muted"])
    for queue in queues:
        for each in queue.classes:
            muted = "yes" if each.muted else "no"
            failures.add_metric([queue.name, each.outcome, each.error, muted], each.count)
    yield failures


def _breakers(figures: Figures) -> Iterator[Metric]:
    """The metrics of circuit breakers, if there are any."""
    if not figures.breakers:
        return
    labels = ["queue", "job"]  # job: the job name that it applies to; empty for all jobs
    text = "Whether the circuit breaker is open, or waits for a trial"
    is_open = family_of(GAUGE, "breaker_open", text, labels)
    opened = family_of(COUNTER, "breaker_opened", "How often the circuit breaker has opened", labels)
    for each in sorted(figures.breakers, key=lambda each: (each.queue, each.name))[:MAX_QUEUES]:
        is_open.add_metric([each.queue, each.name], each.is_open)
        opened.add_metric([each.queue, each.name], each.opened)
    yield is_open
    yield opened


def _dropped(figures: Figures) -> Iterator[Metric]:
    """The metrics of dropped dead letters, if there are any."""
    text = "Dead letters of the queue that were dropped, as it had too many or they were too old"
    dropped = family_of(COUNTER, "queue_dead_letters_dropped", text, ["queue", "reason"])
    text = "When that happened last"
    last = family_of(GAUGE, "queue_dead_letters_dropped_last_timestamp_seconds", text, ["queue"])
    for each in sorted(figures.dropped, key=lambda each: -each.too_many - each.too_old)[:MAX_QUEUES]:
        dropped.add_metric([each.queue, MAX_ENTRIES], each.too_many)
        dropped.add_metric([each.queue, MAX_AGE], each.too_old)
        last.add_metric([each.queue], each.last_at_ms / 1000)
    yield dropped
    yield last
