"""The numbers of `top`, from the server's Prometheus metrics. Pure: a rate is computed from two sets of
samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]

RATES = ("pushed", "pulled", "completed", "failed")
STATES = ("waiting", "delayed", "active", "dlq", "completed")


@dataclass(frozen=True, slots=True)
class QueueNow:
    """A queue. ``oldest`` is how long its oldest ready job has been ready, in ms."""

    name: str
    waiting: int = 0
    delayed: int = 0
    active: int = 0
    dlq: int = 0
    oldest: float = 0


@dataclass(frozen=True, slots=True)
class StoreNow:
    """A shard's store. ``round_trip`` is the mean commit time in ms; ``held`` is in bytes."""

    unavailable: bool
    round_trip: float
    held: float
    protected: bool


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """The router or a shard. Rates are in jobs per second, ``cpu`` in cores, sizes in bytes."""

    name: str
    up: bool = True
    waiting: int | None = None
    active: int | None = None
    pushed: float | None = None
    completed: float | None = None
    cpu: float | None = None
    memory: float = 0
    disk: float | None = None
    store: StoreNow | None = None


@dataclass(frozen=True, slots=True)
class ServerNow:
    """The whole server; times in ms."""

    version: str
    uptime: float
    connections: int
    jobs: Mapping[str, int]
    rates: Mapping[str, float]
    waited: float | None
    """How long the jobs that completed since the last poll had waited, on average."""
    worked: float | None
    degraded: bool
    queues: list[QueueNow] = field(default_factory=list)
    omitted: int = 0
    processes: list[ProcessNow] = field(default_factory=list)


def samples_of(text: str) -> Samples:
    """The samples of a text in the Prometheus exposition format."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name.removeprefix("bunqueue_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def server_now(now: Samples, before: Samples | None, seconds: float) -> ServerNow:
    """The state of the server, from its samples, the previous ones, and the ``seconds`` between them."""
    changes = _Changes(now, before or {}, seconds if before else 0.0)
    build = next((dict(labels) for name, labels in now if name == "build_info"), {})
    return ServerNow(
        version=build.get("version", ""),
        uptime=changes.value("uptime_seconds") * 1000,
        connections=int(changes.value("connections", transport="tcp")),
        jobs={state: int(changes.value(f"jobs_{state}")) for state in STATES},
        rates={name: changes.rate(f"jobs_{name}_total") or 0.0 for name in RATES},
        waited=changes.average("job_wait_seconds"),
        worked=changes.average("job_processing_seconds"),
        degraded=any(value for (name, _), value in now.items() if name == "storage_degraded"),
        queues=list(_queues(changes)),
        omitted=int(changes.value("queue_metrics_omitted")),
        processes=list(_processes(changes)),
    )


class _Changes:
    """Samples, and their changes since the previous ones."""

    def __init__(self, now: Samples, before: Samples, seconds: float) -> None:
        self.now = now
        self._before = before
        self._seconds = seconds

    def value(self, name: str, **labels: str) -> float:
        return self.now.get((name, frozenset(labels.items())), 0.0)

    def rate(self, name: str, **labels: str) -> float | None:
        """The increase per second; None if unknown, for example after a restart."""
        key = (name, frozenset(labels.items()))
        if not self._seconds or key not in self._before or key not in self.now:
            return None
        return max(0.0, self.now[key] - self._before[key]) / self._seconds

    def average(self, name: str) -> float | None:
        """The mean of a histogram's observations since the last samples, in ms."""
        count, total = self.rate(f"{name}_count"), self.rate(f"{name}_sum")
        return total / count * 1000 if count and total is not None else None

    def labelled(self, name: str, label: str) -> Iterable[str]:
        return [dict(labels)[label] for each, labels in self.now if each == name]


def _queues(changes: _Changes) -> Iterable[QueueNow]:
    for name in changes.labelled("queue_jobs_waiting", "queue"):
        counts: Any = {
            state: int(changes.value(f"queue_jobs_{state}", queue=name))
            for state in ("waiting", "delayed", "active", "dlq")
        }
        oldest = changes.value("queue_oldest_waiting_seconds", queue=name) * 1000
        yield QueueNow(name, **counts, oldest=oldest)


def _processes(changes: _Changes) -> Iterable[ProcessNow]:
    names = list(changes.labelled("process_resident_memory_bytes", "process"))
    if "router" in names:
        yield ProcessNow(
            "router",
            cpu=changes.rate("process_cpu_seconds_total", process="router"),
            memory=changes.value("process_resident_memory_bytes", process="router"),
        )
    for shard in changes.labelled("shard_up", "shard"):
        name = f"shard-{shard}"
        yield ProcessNow(
            name,
            up=bool(changes.value("shard_up", shard=shard)),
            waiting=int(changes.value("shard_jobs_waiting", shard=shard)),
            active=int(changes.value("shard_jobs_active", shard=shard)),
            pushed=changes.rate("shard_jobs_pushed_total", shard=shard),
            completed=changes.rate("shard_jobs_completed_total", shard=shard),
            cpu=changes.rate("process_cpu_seconds_total", process=name),
            memory=changes.value("process_resident_memory_bytes", process=name),
            disk=changes.value("sqlite_database_size_bytes", shard=shard),
            store=_store(changes, shard),
        )


def _store(changes: _Changes, shard: str) -> StoreNow | None:
    if ("store_away", frozenset({("shard", shard)})) not in changes.now:
        return None
    return StoreNow(
        unavailable=bool(changes.value("store_away", shard=shard)),
        round_trip=changes.value("store_round_trip_seconds", shard=shard) * 1000,
        held=changes.value("store_held_bytes", shard=shard),
        protected=not changes.value("store_unprotected", shard=shard),
    )
