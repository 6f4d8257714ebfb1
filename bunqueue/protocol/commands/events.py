"""Events: waiting for the end of a job, and the stream of a queue's events."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Command,
    JobId,
    Merge,
    Ok,
    QueueName,
    Reply,
    Route,
    Tag,
    Text,
    WaitTimeout,
    command,
    http,
)
from bunqueue.protocol.commands.times import Time

Place = Annotated[int, Meta(ge=-1, le=MAX_SAFE)]  # -1: the end of the log


class WaitReply(Reply, kw_only=True):
    """``completed`` is false if the timeout expired or the job can no longer complete; ``state`` says which.

    ``result`` is absent if the job has no result, or is removed on completion.
    """

    completed: bool
    result: Raw | UnsetType = UNSET
    state: str | UnsetType = UNSET


class Ended(Struct, kw_only=True, omit_defaults=True, gc=False):
    """How a job ended.

    ``state`` is completed, failed, cancelled (while waiting or active), expired (its ``ttl`` passed), or
    unknown (the job never existed or was removed).  A job that is kept, or that ended while a WaitJob was
    open, has its ``result``, or its ``error``, ``reason`` (as for dead letters) and number of failed
    ``attempts``.  Removed jobs that were cancelled or expired are remembered until the shard restarts or
    10,000 others have followed.
    """

    id: str
    state: str
    result: Raw | UnsetType = UNSET
    error: str | None = None
    reason: str | None = None
    attempts: int = 0


class WaitManyReply(Reply, kw_only=True):
    """The jobs that have ended, as many as fit into one answer; none if the timeout expired."""

    ended: list[Ended]


class Trimmed(Struct, gc=False):
    removed: int


class TrimReply(Reply, kw_only=True):
    data: Trimmed


class LogPlace(Struct, gc=False):
    """How far a shard's log was read: ``after`` is where to continue, ``last`` is the newest event.
    ``missed`` counts the requested events that had already been deleted."""

    shard: int
    after: int
    last: int
    missed: int


class EventsReply(Reply, kw_only=True):
    """``events`` are in order within each shard, one shard after the other.  They are maps as in
    SubscribeEvents, plus ``shard`` and ``seq`` (their number in that shard's log), but without ``data``."""

    events: Raw  # a list, encoded event by event
    places: list[LogPlace]


@http("POST /jobs/{id}/wait", Tag.JOBS)
@command(Route.ID, parks=True)
class WaitJob(Command[WaitReply], tag="WaitJob"):
    """Wait up to ``timeout`` ms for a job to complete."""

    id: JobId
    timeout: WaitTimeout = 30_000


@http("POST /queues/{queue}/jobs/wait", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, parks=True)
class WaitJobs(Command[WaitManyReply], tag="WaitJobs"):
    """Wait up to ``timeout`` ms until at least one of these jobs of a queue has ended, in any way."""

    queue: QueueName
    ids: Annotated[list[JobId], Meta(max_length=1000)]
    timeout: WaitTimeout = 30_000


@command(Route.QUEUE, subscribes=True, since=3, of_connection=True)
class SubscribeEvents(Command[Ok], tag="SubscribeEvents"):
    """Receive the events of a queue, as frames ``{type: "event", event}``, until UnsubscribeEvents or the end
    of the connection.  A connection is subscribed to one queue: the last one it named."""

    queue: QueueName


@command(Route.ROUTER, since=3, of_connection=True)
class UnsubscribeEvents(Command[Ok], tag="UnsubscribeEvents"):
    """Stop receiving events."""


@http("GET /events/log", Tag.SERVER)
@command(Route.ALL, merge=Merge.CONCAT, heavy=True, partial=True)
class GetEvents(Command[EventsReply], tag="GetEvents"):
    """Read the event logs: at most ``limit`` events of every shard, of all types and queues unless the
    command names some.

    ``after`` is a list with the position in each shard's log, as in the last answer; -1 means the end of the
    log.  Without it, reading starts at ``since`` (epoch ms), or at the oldest event.  Events that do not
    match are skipped, some thousands per request, so there is more to read while ``after`` is below ``last``.
    """

    after: Annotated[list[Place], Meta(max_length=64)] | None = None
    since: Time | None = None
    limit: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    queues: Annotated[list[QueueName], Meta(max_length=1000)] | None = None
    types: Annotated[list[Text], Meta(max_length=64)] | None = None
    job_id: JobId | None = None


@http("POST /queues/{queue}/trim-events", Tag.QUEUES)
@command(Route.QUEUE, writes=True, repeatable=True, heavy=True, since=3)
class TrimEvents(Command[TrimReply], tag="TrimEvents"):
    """Delete the oldest events in the log of a queue, so that at most ``maxLength`` are kept."""

    queue: QueueName
    max_length: Annotated[
        int,
        Meta(ge=0, le=2**53 - 1, extra={"problem": "must be a non-negative safe integer"}),
    ]
