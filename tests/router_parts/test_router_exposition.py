"""The text for Prometheus, read back by the library's own parser."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import to_builtins
from prometheus_client.parser import text_string_to_metric_families

from bunqueue.protocol.commands.cluster import ClusterView, CopyView, HostView, PlaceView
from bunqueue.protocol.commands.monitoring import (
    Figures,
    NamespaceFigures,
    QueueFigures,
    ShardFigures,
    Times,
)
from bunqueue.protocol.commands.workers import WorkerStats
from bunqueue.server.commands.prometheus import MAX_NAMESPACES, exposition
from bunqueue.server.commands.queue_metrics import MAX_QUEUES
from bunqueue.server.commands.router_figures import RouterFigures

Samples = Mapping[tuple[str, tuple[str, ...]], float]


def shard(number: int, *, queues: int = 1, up: bool = True) -> ShardFigures:
    down = not up
    times = 7, Times([0, 2, 1], 1000.0), Times([1, 1, 1], 2000.0), Times([0, 0, 3], 3000.0)
    return ShardFigures(number, queues, 1, 2, 3, 4, 5, 6, 7, 8, 9, *times, 1e6, 2e6, 0.5, down, down)


def samples(figures: Figures, cluster: ClusterView | None = None) -> Samples:
    workers = WorkerStats(2, 1, 10, 3, 4, 8)
    own = RouterFigures("1.2", 60.0, 7, workers, 1000, 1.5, 0.25, 2, [1], cluster=cluster)
    text = exposition(to_builtins(figures), own)
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_totals_are_sums_and_shards_are_told_apart() -> None:
    found = samples(Figures([shard(0), shard(1, up=False)], [], 3, 2))
    assert found["bunqueue_jobs_waiting", ()] == 2
    assert found["bunqueue_jobs_completed", ()] == 10
    assert found["bunqueue_jobs_completed_total", ()] == 16
    assert found["bunqueue_jobs_pushed_total", ()] == 12
    assert found["bunqueue_job_wait_seconds_sum", ()] == 2
    assert found["bunqueue_job_wait_seconds_count", ()] == 6
    assert [found["bunqueue_job_wait_seconds_bucket", (le,)] for le in ("0.001", "0.002", "+Inf")] == [
        0,
        4,
        6,
    ]
    assert found["bunqueue_job_processing_seconds_sum", ()] == 4
    assert found["bunqueue_job_total_seconds_sum", ()] == 6
    assert found["bunqueue_attempts_failed_total", ()] == 14
    assert found["bunqueue_shard_up", ("0",)] == 0
    assert found["bunqueue_shard_up", ("1",)] == 1
    assert found["bunqueue_storage_disk_full", ("0",)] == 0
    assert found["bunqueue_storage_disk_full", ("1",)] == 1
    assert found["bunqueue_sqlite_database_size_bytes", ("1",)] == 2e6
    assert found["bunqueue_process_resident_memory_bytes", ("router",)] == 1000
    assert found["bunqueue_process_cpu_seconds_total", ("shard-1",)] == 0.5
    assert found["bunqueue_workers_processed_total", ()] == 10
    assert found["bunqueue_webhooks_enabled", ()] == 2
    assert found["bunqueue_connections", ("tcp",)] == 7
    assert found["bunqueue_event_loop_lag_seconds", ()] == 0.25


def test_only_the_largest_queues_have_series() -> None:
    """Two shards may each send as many as are allowed in all."""
    queues = [QueueFigures(f"q{size:04}", size, 0, 0, 0, 0.0) for size in range(2 * MAX_QUEUES)]
    found = samples(Figures([shard(0, queues=MAX_QUEUES + 3), shard(1, queues=MAX_QUEUES)], queues, 0, 0))
    named = {labels[0] for name, labels in found if name == "bunqueue_queue_jobs_waiting"}
    assert named == {f"q{size:04}" for size in range(MAX_QUEUES, 2 * MAX_QUEUES)}
    assert found["bunqueue_queue_metrics_exported", ()] == MAX_QUEUES
    assert found["bunqueue_queue_metrics_omitted", ()] == MAX_QUEUES + 3


def test_namespaces_are_added_up_over_the_shards() -> None:
    """Those with the fewest queues together."""
    assert not [name for name, _ in samples(Figures([shard(0)], [], 0, 0)) if "namespace" in name]
    many = [NamespaceFigures(f"n{number}", 1, 1, 0, 0, 2) for number in range(MAX_NAMESPACES)]
    figures = [NamespaceFigures("acme", 2, 10, 1, 3, 0), *many, NamespaceFigures("acme", 1, 5, 0, 0, 1)]
    found = samples(Figures([shard(0), shard(1)], [], 0, 0, namespaces=[*figures, *many[:-1]]))
    named = {
        name.removeprefix("bunqueue_namespace_"): value
        for (name, labels), value in found.items()
        if labels == ("acme",)
    }
    assert named == {"queues": 3, "jobs_waiting": 15, "jobs_delayed": 1, "jobs_active": 3, "jobs_dlq": 1}
    assert found["bunqueue_namespace_queues", ("n0",)] == 2
    assert found["bunqueue_namespace_jobs_dlq", ("_other",)] == 2
    assert len([name for name, _ in found if name == "bunqueue_namespace_queues"]) == MAX_NAMESPACES + 1


def test_hosts_of_a_cluster() -> None:
    hosts = [
        HostView("a", "1", "a:1", "a:2", "1.0", True, True, False, 2, 0),
        HostView("b", "2", "b:1", "b:2", "1.0", False, False, True, 0, 1),
    ]
    places = [
        PlaceView(0, "a", "a", "", 3, 100, 0, [CopyView("b", 90, 10)]),
        PlaceView(1, "a", "b", "", 3, 100, 0, []),
        PlaceView(2, "", "b", "", 3, 100, 0, []),
    ]
    found = samples(Figures([shard(0)], [], 0, 0), ClusterView("c", "a", hosts, places, "away"))
    named = {
        (name.removeprefix("bunqueue_cluster_"), *labels): value for (name, labels), value in found.items()
    }
    assert [named["host_alive", host] for host in "ab"] == [1, 0]
    assert [named["host_reached", host] for host in "ab"] == [1, 0]
    assert [named["host_draining", host] for host in "ab"] == [0, 1]
    assert [named["host_shards", host] for host in "ab"] == [2, 0]
    assert [named["host_copies", host] for host in "ab"] == [0, 1]
    assert [named["shard_copies", shard] for shard in "012"] == [1, 0, 0]
    assert named["copy_behind", "b", "0"] == 10
    assert named["shards_unowned",] == named["shards_moving",] == named["store_away",] == 1
