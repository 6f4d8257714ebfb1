"""Managing queues: pausing, emptying and deleting them."""

from typing import Annotated

from msgspec import Meta

from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import IdOf, OfQueue, Ok, QueueOf, Reply, Route, Tag, command, http
from bunqueue.protocol.commands.query import CountReply

Age = Annotated[float, Meta(ge=0, le=10**15)]  # ms
CleanLimit = Annotated[int, Meta(ge=0, le=1_000_000)]


class PausedReply(Reply, kw_only=True):
    paused: bool


class CleanReply(Reply, kw_only=True):
    """The jobs that were removed."""

    count: int
    ids: list[IdOf]


class PriorityCountsReply(Reply, kw_only=True):
    """``counts`` has the number of waiting and delayed jobs by priority."""

    queue: QueueOf
    counts: dict[str, int]


@http("POST /queues/{queue}/pause", Tag.QUEUES)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class Pause(OfQueue[Ok], tag="Pause"):
    """Deliver no more jobs of a queue until Resume; everything else continues.  A pause survives a
    restart."""


@http("POST /queues/{queue}/resume", Tag.QUEUES)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class Resume(OfQueue[Ok], tag="Resume"):
    """Deliver jobs of a paused queue again; waiting pulls get them at once."""


@http("GET /queues/{queue}/paused", Tag.QUEUES)
@command(Route.QUEUE, Verb.SEE)
class IsPaused(OfQueue[PausedReply], tag="IsPaused"):
    """Get whether a queue is paused."""


@http("POST /queues/{queue}/drain", Tag.QUEUES)
@command(Route.QUEUE, Verb.DESTROY, writes=True, repeatable=True, heavy=True)
class Drain(OfQueue[CountReply], tag="Drain"):
    """Remove the waiting and delayed jobs of a queue."""


@http("DELETE /queues/{queue}", Tag.QUEUES)
@command(Route.QUEUE, Verb.DESTROY, writes=True, repeatable=True, heavy=True)
class Obliterate(OfQueue[Ok], tag="Obliterate"):
    """Remove a queue, with its jobs in all states and all its settings."""


@http("POST /queues/{queue}/clean", Tag.QUEUES)
@command(Route.QUEUE, Verb.DESTROY, writes=True, repeatable=True, heavy=True)
class Clean(OfQueue[CleanReply], tag="Clean"):
    """Remove jobs older than ``grace`` ms, oldest first, at most ``limit``.

    Without a ``state`` it removes waiting and delayed jobs.  Their age counts from the push, that of
    completed jobs from their completion, and that of failed jobs from their last attempt.  Active jobs are
    never removed.
    """

    grace: Age = 0
    state: str | None = None
    limit: CleanLimit = 1000


@http("POST /queues/{queue}/promote", Tag.QUEUES)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True, heavy=True, since=3)
class PromoteJobs(OfQueue[CountReply], tag="PromoteJobs"):
    """Make delayed jobs of a queue ready now: all of them, or the first ``count`` that were pushed."""

    count: Annotated[int, Meta(ge=0, le=10**15)] | None = None


@http("GET /queues/{queue}/priorities", Tag.QUEUES)
@command(Route.QUEUE, Verb.SEE, heavy=True)
class GetCountsPerPriority(OfQueue[PriorityCountsReply], tag="GetCountsPerPriority"):
    """Count the waiting and delayed jobs of a queue by priority."""
