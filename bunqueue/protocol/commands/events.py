"""Events: waiting for the end of a job, and the stream of a queue's events."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.marks import EVENTS
from bunqueue.model.rights import ANYBODY, Verb
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Command,
    Content,
    ContentText,
    Data,
    IdOf,
    JobId,
    Merge,
    OfJob,
    OfQueue,
    Ok,
    QueueName,
    Reach,
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
    result: Content | UnsetType = UNSET
    state: str | UnsetType = UNSET


class Ended(Struct, kw_only=True, omit_defaults=True, gc=False):
    """How a job ended.

    ``state`` is completed, failed, cancelled (while waiting or active), expired (its ``ttl`` passed), or
    unknown (the job never existed or was removed).  A job that is kept, or that ended while a WaitJob
    was open, has its ``result``, or its ``error``, ``reason`` and ``cause`` (as for dead letters) and
    number of failed ``attempts``.  Removed jobs that were cancelled or expired are remembered until the
    shard restarts or 10,000 others have followed.
    """

    id: IdOf
    state: str
    result: Content | UnsetType = UNSET
    error: ContentText | None = None
    reason: str | None = None
    attempts: int = 0
    cause: str | None = None


class WaitManyReply(Reply, kw_only=True):
    """The jobs that have ended, as many as fit into one answer; none if the timeout expired."""

    ended: list[Ended]


class Trimmed(Struct, gc=False):
    removed: int


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

    events: Annotated[Raw, EVENTS]  # a list, encoded event by event
    places: list[LogPlace]


@http("POST /jobs/{id}/wait", Tag.JOBS)
@command(Route.ID, Verb.SEE | Verb.READ, parks=True)
class WaitJob(OfJob[WaitReply], tag="WaitJob"):
    """Wait up to ``timeout`` ms for a job to complete."""

    timeout: WaitTimeout = 30_000


@http("POST /queues/{queue}/jobs/wait", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.SEE | Verb.READ, parks=True)
class WaitJobs(OfQueue[WaitManyReply], tag="WaitJobs"):
    """Wait up to ``timeout`` ms until at least one of these jobs of a queue has ended, in any way."""

    ids: Annotated[list[JobId], Meta(max_length=1000)]
    timeout: WaitTimeout = 30_000


@command(Route.QUEUE, Verb.READ, subscribes=True, since=3, of_connection=True)
class SubscribeEvents(OfQueue[Ok], tag="SubscribeEvents"):
    """Receive the events of a queue, as frames ``{type: "event", event}``, until UnsubscribeEvents or the end
    of the connection.  A connection is subscribed to one queue: the last one it named."""


@command(Route.ROUTER, ANYBODY, since=3, of_connection=True)
class UnsubscribeEvents(Command[Ok], tag="UnsubscribeEvents"):
    """Stop receiving events."""


@http("GET /events/log", Tag.SERVER)
@command(Route.ALL, Verb.SEE | Verb.READ, merge=Merge.CONCAT, heavy=True, partial=True, reach=Reach.ALLOWED)
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
@command(Route.QUEUE, Verb.DESTROY, writes=True, repeatable=True, heavy=True, since=3)
class TrimEvents(OfQueue[Data[Trimmed]], tag="TrimEvents"):
    """Delete the oldest events in the log of a queue, so that at most ``maxLength`` are kept."""

    max_length: Annotated[
        int,
        Meta(ge=0, le=2**53 - 1, extra={"problem": "must be a non-negative safe integer"}),
    ]
