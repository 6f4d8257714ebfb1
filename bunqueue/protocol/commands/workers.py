"""Worker registration: which workers exist and what they work on."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bunqueue.model.marks import Mark
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    Data,
    IdOf,
    JobName,
    NameOf,
    QueueName,
    QueueOf,
    Reach,
    Removed,
    Reply,
    Route,
    Tag,
    Text,
    WorkerOf,
    command,
    http,
)
from bunqueue.protocol.commands.times import Time
from bunqueue.protocol.moments import Moment

WorkerId = WorkerOf
Amount = Annotated[int, Meta(ge=0, le=10**15)]
Names = Annotated[list[JobName], Meta(max_length=1000)]
Slots = Annotated[int, Meta(ge=1, le=1_000_000)]
CurrentJob = Annotated[str, Meta(max_length=256), Mark.ID]
Stop = Literal["grace", "drain"]
"""How a worker stops: it takes no more jobs, and those that run have its grace to end, or all the time that
they need."""


class WorkerInfo(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A registered worker.  Times are in ms; the counts are from its last heartbeat."""

    id: NameOf
    name: str
    queues: list[QueueOf]
    concurrency: int
    hostname: str
    pid: int
    status: str  # "active", or "stale" when it has sent no heartbeat for 30 s
    registered_at_ms: float = msgspec.field(name="registeredAt")
    last_seen_ms: float = msgspec.field(name="lastSeen")
    active_jobs: int
    processed_jobs: int
    failed_jobs: int
    current_job: IdOf | None
    uptime: float  # since registered_at
    paused: bool = False  # it takes no jobs, according to its last heartbeat; absent if false
    names: list[str] | None = None  # of the jobs that it runs; absent if it does not declare them
    names_by_queue: dict[QueueOf, list[str]] | None = None  # for these queues, instead of `names`

    registered_at = Moment("registered_at_ms")
    last_seen = Moment("last_seen_ms")


class Registered(WorkerInfo, kw_only=True, rename="camel", gc=False):
    """The answer to a registration."""

    worker_id: NameOf


class RegisterWorkerReply(Reply, kw_only=True):
    data: Registered


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


@http("POST /workers", Tag.WORKERS)
@command(Route.ROUTER, Verb.RUN, writes=True, repeatable=True, reach=Reach.ALLOWED)
class RegisterWorker(Command[RegisterWorkerReply], tag="RegisterWorker"):
    """Register a worker until its connection ends; repeating a ``workerId`` updates its entry.

    ``names`` declares the names of the jobs that it runs; without it, they are unknown.  ``namesByQueue``
    overrides it for single queues.  This does not change which jobs the worker gets; it lets WhyWaiting
    report that no worker runs a job.
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


@http("DELETE /workers/{workerId}", Tag.WORKERS)
@command(Route.ROUTER, Verb.RUN, writes=True, repeatable=True, reach=Reach.ALLOWED)
class UnregisterWorker(Command[Data[Removed]], tag="UnregisterWorker"):
    """Remove a worker from the list."""

    worker_id: WorkerId


@http("GET /workers", Tag.WORKERS)
@command(Route.ROUTER, Verb.SEE, reach=Reach.ALLOWED)
class ListWorkers(Command[Data[WorkerList]], tag="ListWorkers"):
    """List the registered workers."""


class DesiredState(Struct, gc=False):
    """The desired state of the worker, as requested with ControlWorker.  It is sent until a heartbeat
    confirms it with ``wish``, or, without ``wish``, reports that state.  A later request has a higher
    ``number``."""

    ok: bool = True
    paused: bool | UnsetType = UNSET
    concurrency: int | UnsetType = UNSET
    stop: Stop | UnsetType = UNSET
    number: int | UnsetType = UNSET


class WorkerHeartbeatReply(Reply, kw_only=True):
    data: DesiredState


@http("POST /workers/{id}/heartbeat", Tag.WORKERS)
@command(Route.ROUTER, Verb.RUN, writes=True, repeatable=True, reach=Reach.ALLOWED)
class Heartbeat(Command[WorkerHeartbeatReply], tag="Heartbeat"):
    """Report that a worker is alive, and its counts so far; absent fields keep their values."""

    id: WorkerId
    active_jobs: Amount | None = None
    processed: Amount | None = None
    failed: Amount | None = None
    current_job: CurrentJob | None = None
    paused: bool | None = None
    concurrency: Slots | None = None
    wish: Amount | None = None  # the number of the last request that was carried out; 0: no request


@http("PUT /workers/{workerId}", Tag.WORKERS)
@command(Route.ROUTER, Verb.OPERATE, writes=True, repeatable=True, heavy=True, since=3, reach=Reach.ALLOWED)
class ControlWorker(Command[Data[WorkerInfo]], tag="ControlWorker"):
    """Make a worker pause, resume, run another number of jobs at a time, or stop; absent fields change
    nothing.

    The worker gets the request with the answer to its next heartbeat, and reports its new state with later
    heartbeats.  A paused worker takes no new jobs, but finishes those that it has.  A worker that stops takes
    no new jobs either; those that it runs have its own grace to end (``stop`` is "grace"), or all the time
    that they need ("drain"); then it leaves the list.  The answer shows the worker before the change.
    """

    worker_id: WorkerId
    paused: bool | None = None
    concurrency: Slots | None = None
    stop: Stop | None = None
