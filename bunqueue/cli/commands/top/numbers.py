"""What `top` shows, from the server's Prometheus metrics. Pure: two samples make a rate."""

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
    """A queue; ``oldest`` is how many ms its job that is ready longest has been so."""

    name: str
    waiting: int = 0
    delayed: int = 0
    active: int = 0
    dlq: int = 0
    oldest: float = 0


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """The router or a shard; speeds in jobs a second, ``cpu`` in cores, sizes in bytes."""

    name: str
    up: bool = True
    waiting: int | None = None
    active: int | None = None
    pushed: float | None = None
    completed: float | None = None
    cpu: float | None = None
    memory: float = 0
    disk: float | None = None


@dataclass(frozen=True, slots=True)
class ServerNow:
    """The whole server; times in ms."""

    version: str
    uptime: float
    connections: int
    jobs: Mapping[str, int]
    rates: Mapping[str, float]
    waited: float | None
    """How long jobs that completed since the last look had waited, on average."""
    worked: float | None
    trouble: bool
    queues: list[QueueNow] = field(default_factory=list)
    omitted: int = 0
    processes: list[ProcessNow] = field(default_factory=list)


def samples_of(text: str) -> Samples:
    """The numbers of the text exposition format."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name.removeprefix("bunqueue_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def server_now(now: Samples, before: Samples | None, seconds: float) -> ServerNow:
    """The server at a look, and the ``seconds`` between that and the one before."""
    look = _Look(now, before or {}, seconds if before else 0.0)
    build = next((dict(labels) for name, labels in now if name == "build_info"), {})
    return ServerNow(
        version=build.get("version", ""),
        uptime=look.value("uptime_seconds") * 1000,
        connections=int(look.value("connections", transport="tcp")),
        jobs={state: int(look.value(f"jobs_{state}")) for state in STATES},
        rates={name: look.rate(f"jobs_{name}_total") or 0.0 for name in RATES},
        waited=look.average("job_wait_seconds"),
        worked=look.average("job_processing_seconds"),
        trouble=any(value for (name, _), value in now.items() if name == "storage_degraded"),
        queues=list(_queues(look)),
        omitted=int(look.value("queue_metrics_omitted")),
        processes=list(_processes(look)),
    )


class _Look:
    """Numbers, and how they have changed."""

    def __init__(self, now: Samples, before: Samples, seconds: float) -> None:
        self.now = now
        self._before = before
        self._seconds = seconds

    def value(self, name: str, **labels: str) -> float:
        return self.now.get((name, frozenset(labels.items())), 0.0)

    def rate(self, name: str, **labels: str) -> float | None:
        """How much more a second; None when that is not known, as after a restart."""
        key = (name, frozenset(labels.items()))
        if not self._seconds or key not in self._before or key not in self.now:
            return None
        return max(0.0, self.now[key] - self._before[key]) / self._seconds

    def average(self, name: str) -> float | None:
        """The mean of what was observed since the last look, in ms."""
        count, total = self.rate(f"{name}_count"), self.rate(f"{name}_sum")
        return total / count * 1000 if count and total is not None else None

    def labelled(self, name: str, label: str) -> Iterable[str]:
        return [dict(labels)[label] for each, labels in self.now if each == name]


def _queues(look: _Look) -> Iterable[QueueNow]:
    for name in look.labelled("queue_jobs_waiting", "queue"):
        counts: Any = {
            state: int(look.value(f"queue_jobs_{state}", queue=name))
            for state in ("waiting", "delayed", "active", "dlq")
        }
        oldest = look.value("queue_oldest_waiting_seconds", queue=name) * 1000
        yield QueueNow(name, **counts, oldest=oldest)


def _processes(look: _Look) -> Iterable[ProcessNow]:
    names = list(look.labelled("process_resident_memory_bytes", "process"))
    if "router" in names:
        yield ProcessNow(
            "router",
            cpu=look.rate("process_cpu_seconds_total", process="router"),
            memory=look.value("process_resident_memory_bytes", process="router"),
        )
    for shard in look.labelled("shard_up", "shard"):
        name = f"shard-{shard}"
        yield ProcessNow(
            name,
            up=bool(look.value("shard_up", shard=shard)),
            waiting=int(look.value("shard_jobs_waiting", shard=shard)),
            active=int(look.value("shard_jobs_active", shard=shard)),
            pushed=look.rate("shard_jobs_pushed_total", shard=shard),
            completed=look.rate("shard_jobs_completed_total", shard=shard),
            cpu=look.rate("process_cpu_seconds_total", process=name),
            memory=look.value("process_resident_memory_bytes", process=name),
            disk=look.value("sqlite_database_size_bytes", shard=shard),
        )
