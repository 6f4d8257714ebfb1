"""What people ask who look after queues: attempts, why a job waits, groups, how shards are."""

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
from bunqueue.protocol.moments import MaybeMoment, Moment

GroupsShown = Annotated[int, Meta(ge=0, le=1000)]


class AttemptView(Struct, rename="camel", gc=False):
    """An attempt that did not complete its job; times in epoch ms.

    ``outcome`` is explicit_fail, timeout, stalled, interrupted (it did not count), cancelled and the like.
    """

    number: int
    worker: str | None
    started_at_ms: float | None = msgspec.field(name="startedAt")
    ended_at_ms: float = msgspec.field(name="endedAt")
    outcome: str
    error: str | None
    stack: str | None

    started_at = MaybeMoment("started_at_ms")
    ended_at = Moment("ended_at_ms")


class Attempts(Struct, gc=False):
    attempts: list[AttemptView]


class AttemptsReply(Reply, kw_only=True):
    """The last attempts, the oldest of them first."""

    data: Attempts


class WaitReason(Struct, gc=False):
    """One thing that holds a job back.

    ``kind`` is paused, group-paused, concurrency, group-concurrency, rate-limit, group-rate-limit, delay,
    retry, dependencies, no-worker or turn; ``until`` (epoch ms) is when it ends by itself, where that is
    known; ``ids`` are those of the jobs that it waits for, the first 100.
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
    """No ``reasons`` when the job does not wait: it is active, or has finished."""

    data: Waiting


class GroupView(Struct, rename="camel", gc=False):
    """A group as it is shown; ``max`` jobs in ``duration`` ms is its own rate limit."""

    id: str
    waiting: int
    active: int
    paused: bool
    concurrency: int | None
    max: int | None
    duration: int | None


class GroupViews(Struct, gc=False):
    groups: list[GroupView]
    total: int


class GroupViewsReply(Reply, kw_only=True):
    """By name; ``total`` is how many groups the queue has."""

    data: GroupViews


class ShardView(Struct, rename="camel", gc=False):
    """A shard; sizes in MB, ``uptime`` in ms.  ``error`` says why not everything can be stored."""

    shard: int
    of: int
    queues: int
    jobs: int
    memory_mb: float
    sqlite_mb: float
    uptime: float
    error: str | None


class ShardViews(Struct, gc=False):
    shards: list[ShardView]


class ShardViewsReply(Reply, kw_only=True):
    """Those that answer; each says ``of`` how many it is one."""

    data: ShardViews


@command(Route.ID, AttemptsReply)
class GetAttempts(Command, tag="GetAttempts"):
    """The attempts of a job that failed or were broken off, with error and stack."""

    id: JobId


@command(Route.ID, WaitingReply)
class WhyWaiting(Command, tag="WhyWaiting"):
    """What holds a job back at present: all of it, not only the first thing."""

    id: JobId


@command(Route.QUEUE, GroupViewsReply, heavy=True)
class ListGroups(Command, tag="ListGroups"):
    """The groups of a queue that have jobs or settings."""

    queue: QueueName
    limit: GroupsShown = 100
    offset: Offset = 0


@command(Route.ALL, ShardViewsReply, merge=Merge.SUM, partial=True)
class ListShards(Command, tag="ListShards"):
    """How each shard is."""
