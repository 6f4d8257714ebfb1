"""Commands for operators: a job's attempts, why it waits, groups, and the state of the shards."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bunqueue.protocol.commands.base import (
    Command,
    JobId,
    Merge,
    Offset,
    QueueName,
    Reply,
    Route,
    command,
)
from bunqueue.protocol.commands.monitoring import ShardStore
from bunqueue.protocol.moments import MaybeMoment, Moment

GroupsShown = Annotated[int, Meta(ge=0, le=1000)]


class AttemptView(Struct, rename="camel", gc=False):
    """An attempt that is over; times are in epoch ms.

    ``outcome`` is completed, explicit_fail, timeout, stalled, interrupted (not counted) or cancelled.
    ``errorType`` is the class of the error, if the worker named it; ``delay`` is how many ms after its end
    the next attempt was to begin, null if there was to be none.
    """

    number: int
    worker: str | None
    started_at_ms: float | None = msgspec.field(name="startedAt")
    ended_at_ms: float = msgspec.field(name="endedAt")
    outcome: str
    error: str | None
    stack: str | None
    error_type: str | None = None
    delay: float | None = None

    started_at = MaybeMoment("started_at_ms")
    ended_at = Moment("ended_at_ms")


class Attempts(Struct, gc=False):
    attempts: list[AttemptView]


class AttemptsReply(Reply, kw_only=True):
    """The latest attempts, oldest first; the one that completed the job is among them."""

    data: Attempts


class WaitReason(Struct, gc=False):
    """One reason why a job waits.

    ``kind`` is paused, group-paused, concurrency, group-concurrency, rate-limit, group-rate-limit, delay,
    retry, dependencies, batch, superseding, signal, children, breaker, no-worker, unknown-name (registered
    workers say which names they run, and the job's is not among them) or turn; ``until`` (epoch ms) is when
    the reason ends by itself, if known; ``ids`` are the first 100 jobs that it waits for.
    """

    kind: str
    text: str
    until_ms: float | None = msgspec.field(default=None, name="until")
    ids: list[str] = []

    until = MaybeMoment("until_ms")


class Waiting(Struct, gc=False):
    state: str
    reasons: list[WaitReason]


class WaitingReply(Reply, kw_only=True):
    """``reasons`` is empty if the job does not wait, because it is active or finished."""

    data: Waiting


class GroupView(Struct, rename="camel", omit_defaults=True, gc=False):
    """A group as it is shown, with its own limits; ``max`` jobs per ``duration`` ms is its rate."""

    id: str
    waiting: int
    active: int
    paused: bool
    concurrency: int | None
    max: int | None
    duration: int | None
    weight: int | None = None


class GroupViews(Struct, gc=False):
    groups: list[GroupView]
    total: int


class GroupViewsReply(Reply, kw_only=True):
    """The groups by name; ``total`` is how many the queue has."""

    data: GroupViews


class ShardView(Struct, rename="camel", gc=False):
    """A shard; sizes are in MB, ``uptime`` in ms.  ``error`` says why it cannot store everything.  ``store``
    is null for a server without one.
    """

    shard: int
    of: int
    queues: int
    jobs: int
    memory_mb: float
    sqlite_mb: float
    uptime: float
    error: str | None
    store: ShardStore | None = None


class ShardViews(Struct, gc=False):
    shards: list[ShardView]


class ShardViewsReply(Reply, kw_only=True):
    """The shards that answered; ``of`` is the number of shards the server has."""

    data: ShardViews


@command(Route.ID, AttemptsReply)
class GetAttempts(Command, tag="GetAttempts"):
    """Get the attempts of a job that are over: those that failed or were interrupted, with error, stack and
    the delay until the next one, and the one that completed it."""

    id: JobId


@command(Route.ID, WaitingReply)
class WhyWaiting(Command, tag="WhyWaiting"):
    """Get all the reasons why a job is waiting now."""

    id: JobId


@command(Route.QUEUE, GroupViewsReply, heavy=True)
class ListGroups(Command, tag="ListGroups"):
    """List the groups of a queue that have jobs or settings."""

    queue: QueueName
    limit: GroupsShown = 100
    offset: Offset = 0


@command(Route.ALL, ShardViewsReply, merge=Merge.SUM, partial=True, operational=True)
class ListShards(Command, tag="ListShards"):
    """Get the state of each shard."""
