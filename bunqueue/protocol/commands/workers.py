"""Worker registration: which workers exist and what they work on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bunqueue.protocol.commands.base import Command, QueueName, Reply, Route, Text, command
from bunqueue.protocol.commands.core import HeartbeatReply
from bunqueue.protocol.commands.times import Time
from bunqueue.protocol.moments import Moment

WorkerId = Annotated[str, Meta(max_length=256)]
Amount = Annotated[int, Meta(ge=0, le=10**15)]


class WorkerInfo(Struct, kw_only=True, rename="camel", gc=False):
    """A registered worker.  Times are in ms; the counts are from its last heartbeat."""

    id: str
    name: str
    queues: list[str]
    concurrency: int
    hostname: str
    pid: int
    status: str  # "active", or "stale" when it has sent no heartbeat for 30 s
    registered_at_ms: float = msgspec.field(name="registeredAt")
    last_seen_ms: float = msgspec.field(name="lastSeen")
    active_jobs: int
    processed_jobs: int
    failed_jobs: int
    current_job: str | None
    uptime: float  # since registered_at

    registered_at = Moment("registered_at_ms")
    last_seen = Moment("last_seen_ms")


class Registered(WorkerInfo, kw_only=True, rename="camel", gc=False):
    """The answer to a registration."""

    worker_id: str


class RegisterWorkerReply(Reply, kw_only=True):
    data: Registered


class Removed(Struct, gc=False):
    removed: bool = True


class RemovedReply(Reply, kw_only=True):
    data: Removed


class WorkerStats(Struct, rename="camel", gc=False):
    """Sums over all workers; the totals include workers that are no longer registered."""

    total: int
    active: int
    total_processed: int
    total_failed: int
    active_jobs: int
    concurrency_slots: int


class WorkerList(Struct, gc=False):
    workers: list[WorkerInfo]
    stats: WorkerStats


class ListWorkersReply(Reply, kw_only=True):
    data: WorkerList


@command(Route.ROUTER, RegisterWorkerReply, writes=True, repeatable=True)
class RegisterWorker(Command, tag="RegisterWorker"):
    """Register a worker until its connection ends; repeating a ``workerId`` updates its entry."""

    name: Text
    queues: Annotated[list[QueueName], Meta(max_length=1000)] | None = None
    worker_id: WorkerId | None = None
    concurrency: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    hostname: Text = "unknown"
    pid: Amount = 0
    started_at: Time | None = None


@command(Route.ROUTER, RemovedReply, writes=True, repeatable=True)
class UnregisterWorker(Command, tag="UnregisterWorker"):
    """Remove a worker from the list."""

    worker_id: WorkerId


@command(Route.ROUTER, ListWorkersReply)
class ListWorkers(Command, tag="ListWorkers"):
    """List the registered workers."""


@command(Route.ROUTER, HeartbeatReply, writes=True, repeatable=True)
class Heartbeat(Command, tag="Heartbeat"):
    """Report that a worker is alive, and its counts so far; absent counts keep their values."""

    id: WorkerId
    active_jobs: Amount | None = None
    processed: Amount | None = None
    failed: Amount | None = None
    current_job: Text | None = None
