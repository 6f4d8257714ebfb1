"""The numbers of the whole server in the Prometheus format."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec import convert
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from bunqueue.model.dead_letters import MAX_AGE, MAX_ENTRIES
from bunqueue.protocol.commands.backups import BackupView, StandbyView
from bunqueue.protocol.commands.cluster import ClusterView, HostView
from bunqueue.protocol.commands.monitoring import (
    COMMIT_MS,
    Figures,
    NamespaceFigures,
    ShardFigures,
    ShardStore,
    Times,
)
from bunqueue.protocol.commands.workers import WorkerStats
from bunqueue.server.host.file_permissions import KINDS
from bunqueue.text import CONTROL

from .prometheus_format import Snapshot, buckets_of, family_of, histogram_of
from .queue_metrics import queue_metrics
from .router_figures import RouterFigures

GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily


MAX_NAMESPACES = 100  # with series of their own
OTHERS = "_other"  # all others together; no namespace is called so

# Name without "bunqueue_", what it is, its help, its value.
_TOTALS: tuple[tuple[str, type[Metric], str, Callable[[ShardFigures], float]], ...] = (
    ("jobs_waiting", GAUGE, "Jobs that are ready, of any priority", lambda shard: shard.waiting),
    ("jobs_delayed", GAUGE, "Jobs whose time has not come", lambda shard: shard.delayed),
    ("jobs_active", GAUGE, "Jobs that are being worked on", lambda shard: shard.active),
    ("jobs_dlq", GAUGE, "Dead letters", lambda shard: shard.dlq),
    ("jobs_completed", GAUGE, "Completed jobs that are kept", lambda shard: shard.completed),
    ("queues", GAUGE, "Queues", lambda shard: shard.queues),
    ("jobs_pushed", COUNTER, "Jobs pushed", lambda shard: shard.pushed_total),
    ("jobs_pulled", COUNTER, "Jobs pulled", lambda shard: shard.pulled_total),
    ("jobs_completed", COUNTER, "Jobs completed", lambda shard: shard.completed_total),
    ("jobs_failed", COUNTER, "Jobs failed for good", lambda shard: shard.failed_total),
    ("attempts_failed", COUNTER, "Attempts failed", lambda shard: shard.attempts_failed_total),
)
# Name, its help, its buckets and its sum in ms.
_TIMES: tuple[tuple[str, str, Callable[[ShardFigures], Times]], ...] = (
    (
        "job_wait_seconds",
        "Time of attempts that completed their job or failed, from being due to being pulled",
        lambda shard: shard.waits,
    ),
    (
        "job_processing_seconds",
        "Time of attempts that completed their job or failed, from being pulled on",
        lambda shard: shard.runs,
    ),
    (
        "job_total_seconds",
        "Time of jobs that completed or failed for good, from being pushed on",
        lambda shard: shard.totals,
    ),
)
_BY_SHARD: tuple[tuple[str, type[Metric], str, Callable[[ShardFigures], float]], ...] = (
    ("shard_jobs_waiting", GAUGE, "Ready jobs of the shard", lambda shard: shard.waiting),
    ("shard_jobs_active", GAUGE, "Active jobs of the shard", lambda shard: shard.active),
    ("shard_jobs_pushed", COUNTER, "Jobs pushed to the shard", lambda shard: shard.pushed_total),
    ("shard_jobs_completed", COUNTER, "Jobs completed on the shard", lambda shard: shard.completed_total),
    ("sqlite_database_size_bytes", GAUGE, "Size of the shard's files", lambda shard: shard.sqlite_bytes),
    ("storage_degraded", GAUGE, "Not everything can be stored", lambda shard: shard.storage_degraded),
    ("storage_disk_full", GAUGE, "The disk is full, or almost", lambda shard: shard.disk_full),
    ("disk_free_bytes", GAUGE, "Free space on the disk of the shard", lambda shard: shard.disk_free_bytes),
    (
        "disk_pushes_refused_below_bytes",
        GAUGE,
        "With less free space the shard refuses pushes",
        lambda shard: shard.disk_refused_below_bytes,
    ),
    ("disk_reserve_bytes", GAUGE, "Space set aside for the jobs that are there", lambda s: s.reserve_bytes),
    ("sqlite_wal_size_bytes", GAUGE, "Size of the shard's write-ahead log", lambda shard: shard.wal_bytes),
    (
        "sqlite_wal_limit_bytes",
        GAUGE,
        "With a longer write-ahead log the shard refuses pushes",
        lambda shard: shard.wal_limit_bytes,
    ),
    (
        "sqlite_checkpoint_failures",
        COUNTER,
        "Failed attempts to copy the write-ahead log into the database",
        lambda shard: shard.checkpoint_failures,
    ),
    ("clock_jumps", COUNTER, "Jumps of the wall clock by 2 s or more", lambda shard: shard.clock_jumps),
    (
        "clock_last_jump_seconds",
        GAUGE,
        "Size of the last jump of the wall clock, negative for back",
        lambda shard: shard.clock_last_jump_ms / 1000,
    ),
    (
        "clock_times_moved",
        COUNTER,
        "Jobs, schedules and limits whose times were brought back after the clock had been ahead",
        lambda shard: shard.clock_moved,
    ),
    (
        "clock_doubt_seconds",
        GAUGE,
        "How far the clock may be ahead; what is kept for a time is not deleted for it",
        lambda shard: shard.clock_doubt_ms / 1000,
    ),
    (
        "storage_damaged_tables",
        GAUGE,
        "Tables in which something could not be read or written since the start",
        lambda shard: shard.damaged_tables,
    ),
    (
        "storage_unreadable_jobs",
        GAUGE,
        "Jobs that were found to be unreadable since the start",
        lambda shard: shard.unreadable_jobs,
    ),
    (
        "half_flows_removed",
        COUNTER,
        "Flows of which another shard had lost its part, and which were removed after a start",
        lambda shard: shard.half_flows_removed,
    ),
    (
        "shard_memory_limit_bytes",
        GAUGE,
        "Memory of the shard from which on it takes no more jobs; 0: no limit",
        lambda shard: shard.memory_limit_bytes,
    ),
    (
        "cron_runs_missed",
        COUNTER,
        "Times of schedules that passed while the server was down, since the shard started",
        lambda shard: shard.cron_missed_total,
    ),
    ("shard_memory_full", GAUGE, "The shard takes no more jobs", lambda shard: shard.memory_full),
    ("unique_keys_kept", GAUGE, "Unique keys that ended jobs still hold", lambda s: s.unique_keys_kept),
)
_BY_NAMESPACE: tuple[tuple[str, str, Callable[[NamespaceFigures], int]], ...] = (
    ("namespace_queues", "Queues of the namespace", lambda namespace: namespace.queues),
    ("namespace_jobs_waiting", "Ready jobs of the namespace", lambda namespace: namespace.waiting),
    ("namespace_jobs_delayed", "Delayed jobs of the namespace", lambda namespace: namespace.delayed),
    ("namespace_jobs_active", "Active jobs of the namespace", lambda namespace: namespace.active),
    ("namespace_jobs_dlq", "Dead letters of the namespace", lambda namespace: namespace.dlq),
)
# Only for a server with a store.
_BY_STORE: tuple[tuple[str, type[Metric], str, Callable[[ShardStore], float]], ...] = (
    ("store_position", GAUGE, "Last record of the shard's log that is acknowledged", lambda s: s.position),
    ("store_epoch", GAUGE, "Counts the owners that the shard has had", lambda store: store.epoch),
    (
        "store_away",
        GAUGE,
        "The store does not acknowledge: commands are refused",
        lambda s: s.away_since_ms is not None,
    ),
    ("store_held_bytes", GAUGE, "What waits for its acknowledgement", lambda store: store.held),
    ("store_round_trip_seconds", GAUGE, "Mean time of a commit", lambda store: store.round_trip_ms / 1000),
    ("store_appended_bytes", COUNTER, "Records acknowledged since the start", lambda s: s.appended),
    ("store_unprotected", GAUGE, "PostgreSQL waits for no standby", lambda store: not store.protected),
)
_OF_WORKERS: tuple[tuple[str, type[Metric], str, Callable[[WorkerStats], float]], ...] = (
    ("workers_registered", GAUGE, "Registered workers", lambda workers: workers.total),
    ("workers_active", GAUGE, "Registered workers that were heard lately", lambda workers: workers.active),
    ("worker_active_jobs", GAUGE, "Jobs that workers say they work on", lambda workers: workers.active_jobs),
    (
        "worker_concurrency_slots",
        GAUGE,
        "Jobs that workers can do at a time",
        lambda workers: workers.concurrency_slots,
    ),
    ("workers_processed", COUNTER, "Jobs that workers processed", lambda workers: workers.total_processed),
    ("workers_failed", COUNTER, "Jobs that failed at workers", lambda workers: workers.total_failed),
)


def exposition(data: Mapping[str, Any], own: RouterFigures) -> str:
    """The text, from the merged figures of the shards and those of the router."""
    figures = convert(data, Figures)
    return _text(
        [
            *_totals(figures),
            *_shards(figures, own),
            *queue_metrics(figures),
            *_namespaces(figures),
            *_router(own),
            *_backup(own.backup),
            *_standby(own.standby),
            *_cluster(own.cluster),
        ]
    )


def exposition_of_queues(data: Mapping[str, Any]) -> str:
    """The text for who is for some queues only, from their figures: nothing in it is about the server."""
    return _text([*queue_metrics(convert(data, Figures))])


def _text(metrics: Sequence[Metric]) -> str:
    text: bytes = generate_latest(Snapshot(metrics))
    # Clients choose the names. Prometheus would accept control characters, and a terminal would obey them.
    return CONTROL.sub(
        lambda found: found[0] if found[0] == "\n" else f"\\\\x{ord(found[0]):02x}", text.decode()
    )


def _totals(figures: Figures) -> Iterator[Metric]:
    for name, kind, text, value in _TOTALS:
        yield family_of(kind, name, text, value=sum(map(value, figures.shards)))
    text = "Dead letters that were dropped, as their queue had too many or they were too old"
    dropped = family_of(COUNTER, "dead_letters_dropped", text, ["reason"])
    dropped.add_metric([MAX_ENTRIES], sum(shard.dropped_too_many for shard in figures.shards))
    dropped.add_metric([MAX_AGE], sum(shard.dropped_too_old for shard in figures.shards))
    yield dropped
    for name, text, times in _TIMES:
        every = [times(shard) for shard in figures.shards]
        histogram = histogram_of(name, text)
        histogram.add_metric([], *buckets_of(every))
        yield histogram
    yield family_of(GAUGE, "webhooks_registered", "Webhooks", value=figures.webhooks)
    yield family_of(GAUGE, "webhooks_enabled", "Webhooks that are on", value=figures.webhooks_enabled)


def _namespaces(figures: Figures) -> Iterator[Metric]:
    """Those with the most queues have series of their own."""
    queues = Counter[str]()
    for each in figures.namespaces:
        queues[each.name] += each.queues
    shown = {name for name, _ in queues.most_common(MAX_NAMESPACES)}
    for name, text, value in _BY_NAMESPACE if queues else ():
        family, sums = family_of(GAUGE, name, text, ["namespace"]), Counter[str]()
        for each in figures.namespaces:
            sums[each.name if each.name in shown else OTHERS] += value(each)
        for namespace in sorted(sums):
            family.add_metric([namespace], sums[namespace])
        yield family


def _shards(figures: Figures, own: RouterFigures) -> Iterator[Metric]:
    up = family_of(GAUGE, "shard_up", "The shard takes commands", ["shard"])
    for shard in range(own.shards):
        up.add_metric([str(shard)], shard in own.shards_up)
    yield up
    out = family_of(GAUGE, "shard_damaged", "The shard is out of service: its file is damaged", ["shard"])
    for shard in range(own.shards):
        out.add_metric([str(shard)], shard in own.shards_damaged)
    yield out
    deaths = family_of(
        GAUGE,
        "shard_dies_often",
        "How often the shard has died for one reason in the last hour, from three times on",
        ["shard", "reason"],
    )
    for number, reason, count in own.deaths:
        deaths.add_metric([str(number), reason], count)
    yield deaths
    for name, kind, text, value in _BY_SHARD:
        family = family_of(kind, name, text, ["shard"])
        for each in figures.shards:
            family.add_metric([str(each.shard)], value(each))
        yield family
    yield from _stores([(str(each.shard), each.store) for each in figures.shards if each.store is not None])
    memory = family_of(GAUGE, "process_resident_memory_bytes", "Memory of a process", ["process"])
    cpu = family_of(COUNTER, "process_cpu_seconds", "Processor time of a process", ["process"])
    costs = [(f"shard-{each.shard}", each.memory_bytes, each.cpu_s) for each in figures.shards]
    if own.memory_bytes:  # 0 if the router has no process of its own
        costs.insert(0, ("router", own.memory_bytes, own.cpu_s))
    for number, (resident, used_s, _) in enumerate(own.secondary, 1):
        costs.insert(number, (f"router-{number}", resident, used_s))
    for process, memory_bytes, cpu_s in costs:
        memory.add_metric([process], memory_bytes)
        cpu.add_metric([process], cpu_s)
    yield memory
    yield cpu


def _stores(stores: Sequence[tuple[str, ShardStore]]) -> Iterator[Metric]:
    if not stores:
        return
    for name, kind, text, value in _BY_STORE:
        family = family_of(kind, name, text, ["shard"])
        for shard, store in stores:
            family.add_metric([shard], value(store))
        yield family
    text = "Time until a commit was acknowledged"
    commits = HistogramMetricFamily("bunqueue_store_commit_seconds", text, labels=["shard"])
    edges = [*(str(bound / 1000) for bound in COMMIT_MS), "+Inf"]
    for shard, store in stores:
        counts = list(zip(edges, accumulate(store.commits), strict=True))
        commits.add_metric([shard], counts, store.commits_ms / 1000)
    yield commits


# Name without "bunqueue_cluster_host_", its help, its value.
_OF_HOSTS: tuple[tuple[str, str, Callable[[HostView], float]], ...] = (
    ("alive", "It has given a sign of life lately", lambda host: host.alive),
    ("reached", "This host has a connection to it", lambda host: host.reached),
    ("draining", "Its shards move to others", lambda host: host.draining),
    ("shards", "Shards that it owns", lambda host: host.owns),
    ("copies", "Shards of others that it follows", lambda host: host.follows),
)


def _cluster(view: ClusterView | None) -> Iterator[Metric]:
    """The hosts as this host saw them about a second ago."""
    if view is None:
        return
    for name, text, value in _OF_HOSTS:
        family = family_of(GAUGE, f"cluster_host_{name}", text, ["host"])
        for host in view.hosts:
            family.add_metric([host.name], value(host))
        yield family
    unowned = sum(not place.owner for place in view.shards)
    moving = sum(bool(place.owner) and place.owner != place.home for place in view.shards)
    yield family_of(GAUGE, "cluster_shards_unowned", "Shards that no host owns", value=unowned)
    yield family_of(GAUGE, "cluster_shards_moving", "Shards that are to have another owner", value=moving)
    yield family_of(
        GAUGE, "cluster_store_away", "This host cannot read the store", value=view.error is not None
    )
    copies = family_of(GAUGE, "cluster_shard_copies", "Copies of the shard on other hosts", ["shard"])
    behind = family_of(GAUGE, "cluster_copy_behind", "Records that a copy lacks", ["shard", "host"])
    for place in view.shards:
        copies.add_metric([str(place.shard)], len(place.copies))
        for copy in place.copies:
            behind.add_metric([str(place.shard), copy.host], copy.behind)
    yield from (copies, behind)


def _backup(view: BackupView | None) -> Iterator[Metric]:
    """How far what changes is backed up."""
    if view is None:
        return
    for name, text, value in (
        ("last_success_timestamp_seconds", "All that was committed before is stored", view.until / 1000),
        ("last_base_timestamp_seconds", "When the newest whole backup was made", view.base / 1000),
        ("lag_seconds", "For how long changes have waited to be stored", view.lag / 1000),
        ("lag_bytes", "Changes that are not stored", view.lag_bytes),
        ("failing", "Nothing could be stored just now", view.error is not None),
    ):
        yield family_of(GAUGE, f"backup_{name}", text, value=value)


def _standby(view: StandbyView | None) -> Iterator[Metric]:
    """How far a standby follows its primary."""
    if view is None:
        return
    for name, text, value in (
        ("last_success_timestamp_seconds", "All that the primary had committed is here", view.until / 1000),
        ("shown_timestamp_seconds", "The moment that the standby shows", view.shown / 1000),
        ("lag_seconds", "For how long nothing new has come from the primary", view.lag / 1000),
        ("primary_silent_seconds", "For how long the primary gave no sign of life", view.silent / 1000),
        ("failing", "Nothing could be fetched just now", view.error is not None),
    ):
        yield family_of(GAUGE, f"standby_{name}", text, value=value)


def _router(own: RouterFigures) -> Iterator[Metric]:
    for name, kind, text, value in _OF_WORKERS:
        yield family_of(kind, name, text, value=value(own.workers))
    yield family_of(GAUGE, "uptime_seconds", "Time since the server started", value=own.uptime_s)
    connections = family_of(GAUGE, "connections", "Open connections", ["transport"])
    connections.add_metric(["tcp"], own.connections)
    yield connections
    if own.secondary:
        text = "Open connections of one of several routers"
        by_router = family_of(GAUGE, "router_connections", text, ["router"])
        counts = [count for _, _, count in own.secondary]
        for number, count in enumerate([own.connections - sum(counts), *counts]):
            by_router.add_metric([str(number)], count)
        yield by_router
    wrong = family_of(COUNTER, "wrong_tokens", "Wrong tokens that clients have shown", ["transport"])
    wrong.add_metric(["tcp"], own.wrong_tokens)
    yield wrong
    readable = family_of(GAUGE, "readable_by_others", "Others could read it at the start", ["what"])
    for what in KINDS:
        readable.add_metric([what], what in own.exposed)
    yield readable
    if any(own.identities.values()):
        text = "Identities, by whether they have ended, will within two weeks, or have longer"
        identities = family_of(GAUGE, "identities", text, ["state"])
        for state, count in own.identities.items():
            identities.add_metric([state], count)
        yield identities
    for name, text, end in (
        ("tls_certificate", "When the TLS certificate expires", own.certificate_ends),
        (
            "client_certificate",
            "When the first certificate of an identity seen lately expires",
            own.client_certificate_ends,
        ),
    ):
        if end:
            yield family_of(GAUGE, f"{name}_expires_timestamp_seconds", text, value=end)
    text = "The longest delay of the router's event loop in the last seconds"
    yield family_of(GAUGE, "event_loop_lag_seconds", text, value=own.lag_s)
    build = family_of(GAUGE, "build_info", "What runs", ["version", "python"])
    build.add_metric([own.version, platform.python_version()], 1)
    yield build
