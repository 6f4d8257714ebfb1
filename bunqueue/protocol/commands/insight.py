"""Commands for operators: a job's attempts, why it waits, groups, and the state of the shards."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    ContentText,
    Data,
    IdOf,
    Merge,
    NameOf,
    Offset,
    OfJob,
    OfQueue,
    Reply,
    Route,
    ServerText,
    Tag,
    command,
    http,
)
from bunqueue.protocol.commands.monitoring import ShardStore
from bunqueue.protocol.moments import MaybeMoment, Moment

GroupsShown = Annotated[int, Meta(ge=0, le=1000)]


class AttemptView(Struct, rename="camel", gc=False):
    """An attempt that has ended; times are in epoch ms.

    ``outcome`` is completed, explicit_fail, timeout, stalled, interrupted (not counted) or cancelled.
    ``errorType`` is the class of the error, if the worker named it.  ``delay`` is the planned time in ms from
    its end until the next attempt, null if there was no next attempt.
    """

    number: int
    worker: NameOf | None
    started_at_ms: float | None = msgspec.field(name="startedAt")
    ended_at_ms: float = msgspec.field(name="endedAt")
    outcome: str
    error: ContentText | None
    stack: ContentText | None
    error_type: str | None = None
    delay: float | None = None

    started_at = MaybeMoment("started_at_ms")
    ended_at = Moment("ended_at_ms")


class Attempts(Struct, gc=False):
    attempts: list[AttemptView]


class AttemptsReply(Reply, kw_only=True):
    """The latest attempts, oldest first, including the one that completed the job."""

    data: Attempts


class WaitReason(Struct, gc=False):
    """One reason why a job waits.

    ``kind`` is paused, group-paused, concurrency, group-concurrency, rate-limit, group-rate-limit, delay,
    retry, dependencies, batch, superseding, signal, children, breaker, no-worker, unknown-name (no registered
    worker runs jobs with this name) or turn.  ``until`` (epoch ms) is when the reason ends automatically, if
    known; ``ids`` has the first 100 jobs that it waits for.
    """

    kind: str
    text: ServerText
    until_ms: float | None = msgspec.field(default=None, name="until")
    ids: list[IdOf] = []

    until = MaybeMoment("until_ms")


class Waiting(Struct, gc=False):
    """``reasons`` is empty if the job is not waiting, because it is active or finished."""

    state: str
    reasons: list[WaitReason]


class GroupView(Struct, rename="camel", omit_defaults=True, gc=False):
    """A group as shown to clients, with its own limits; its rate is ``max`` jobs per ``duration`` ms."""

    id: str
    waiting: int
    active: int
    paused: bool
    concurrency: int | None
    max: int | None
    duration: int | None
    weight: int | None = None


class GroupViews(Struct, gc=False):
    """The groups, sorted by name; ``total`` is the number of groups in the queue."""

    groups: list[GroupView]
    total: int


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


@http("GET /jobs/{id}/attempts", Tag.JOBS)
@command(Route.ID, Verb.SEE | Verb.READ)
class GetAttempts(OfJob[AttemptsReply], tag="GetAttempts"):
    """Get the attempts of a job that have ended: those that failed or were interrupted, with error, stack and
    the delay until the next one, and the one that completed the job."""


@http("GET /jobs/{id}/waiting", Tag.JOBS)
@command(Route.ID, Verb.SEE)
class WhyWaiting(OfJob[Data[Waiting]], tag="WhyWaiting"):
    """Get all reasons why a job is waiting now."""


@http("GET /queues/{queue}/groups", Tag.GROUPS)
@command(Route.QUEUE, Verb.SEE, heavy=True)
class ListGroups(OfQueue[Data[GroupViews]], tag="ListGroups"):
    """List the groups of a queue that have jobs or settings."""

    limit: GroupsShown = 100
    offset: Offset = 0


@http("GET /shards", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.SUM, partial=True, operational=True)
class ListShards(Command[ShardViewsReply], tag="ListShards"):
    """Get the state of each shard."""
