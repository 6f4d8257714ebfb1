"""Worker registration: which workers exist and what they work on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bunqueue.protocol.commands.base import Command, JobName, QueueName, Reply, Route, Text, command
from bunqueue.protocol.commands.times import Time
from bunqueue.protocol.moments import Moment

WorkerId = Annotated[str, Meta(max_length=256)]
Amount = Annotated[int, Meta(ge=0, le=10**15)]
Names = Annotated[list[JobName], Meta(max_length=1000)]
Slots = Annotated[int, Meta(ge=1, le=1_000_000)]


class WorkerInfo(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
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
    paused: bool = False  # it takes no jobs, as it said with its last heartbeat; absent while it does
    names: list[str] | None = None  # of the jobs that it runs; absent when it does not say
    names_by_queue: dict[str, list[str]] | None = None  # of these queues instead of `names`

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
    """Register a worker until its connection ends; repeating a ``workerId`` updates its entry.

    ``names`` are those of the jobs that it runs; without them it does not say.  ``namesByQueue`` has them for
    queues of which it runs other ones.  They change nothing in what it gets; they let WhyWaiting say that
    nobody runs a job.
    """

    name: Text
    queues: Annotated[list[QueueName], Meta(max_length=1000)] | None = None
    worker_id: WorkerId | None = None
    concurrency: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    hostname: Text = "unknown"
    pid: Amount = 0
    started_at: Time | None = None
    names: Names | None = None
    names_by_queue: Annotated[dict[QueueName, Names], Meta(max_length=1000)] | None = None


@command(Route.ROUTER, RemovedReply, writes=True, repeatable=True)
class UnregisterWorker(Command, tag="UnregisterWorker"):
    """Remove a worker from the list."""

    worker_id: WorkerId


@command(Route.ROUTER, ListWorkersReply)
class ListWorkers(Command, tag="ListWorkers"):
    """List the registered workers."""


class Wishes(Struct, gc=False):
    """What somebody has asked of the worker with ControlWorker, until a heartbeat says with ``wish`` that it
    was done, or, without that, that it is so.  A later request has a higher ``number``."""

    ok: bool = True
    paused: bool | UnsetType = UNSET
    concurrency: int | UnsetType = UNSET
    number: int | UnsetType = UNSET


class WorkerHeartbeatReply(Reply, kw_only=True):
    data: Wishes


@command(Route.ROUTER, WorkerHeartbeatReply, writes=True, repeatable=True)
class Heartbeat(Command, tag="Heartbeat"):
    """Report that a worker is alive, and its counts so far; what is absent keeps its value."""

    id: WorkerId
    active_jobs: Amount | None = None
    processed: Amount | None = None
    failed: Amount | None = None
    current_job: Text | None = None
    paused: bool | None = None
    concurrency: Slots | None = None
    wish: Amount | None = None  # the number of the last request that was carried out; 0: none was


class WorkerInfoReply(Reply, kw_only=True):
    data: WorkerInfo


@command(Route.ROUTER, WorkerInfoReply, writes=True, repeatable=True, heavy=True, since=3)
class ControlWorker(Command, tag="ControlWorker"):
    """Have a worker pause, resume, or run another number of jobs at a time; what is absent stays as it is.

    The worker learns it from the answer to its next heartbeat, and says with the following ones what holds.
    A paused worker takes no jobs, and goes on with those that it has.  The answer shows the worker as it was.
    """

    worker_id: WorkerId
    paused: bool | None = None
    concurrency: Slots | None = None
