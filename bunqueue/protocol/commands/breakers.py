"""Circuit breakers: of a queue, or of its jobs of one name."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.job_options import Timeout
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    ContentText,
    ErrorTypes,
    JobName,
    Merge,
    Number,
    OfQueue,
    Ok,
    QueueName,
    QueueOf,
    Reach,
    Reply,
    Route,
    Tag,
    command,
    http,
)
from bunqueue.protocol.moments import MaybeMoment


class BreakerSettings(Struct, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """When a breaker opens, and for how long; times are in ms.  Absent fields keep their values.

    It opens after ``failures`` failed attempts in a row, by default 5.  With a ``rate`` (above 0, at most 1),
    it opens instead when that fraction of the attempts within ``window`` ms has failed, and at least
    ``failures`` attempts.  It stays open for ``pause`` ms, twice as long after each failed trial, at most
    ``maxPause`` ms.  Then ``trials`` jobs may run, by default 1.  With ``errors``, only failures with errors
    of these classes count (see ``errorTypes`` of FAIL).
    """

    failures: Number | UnsetType = UNSET
    rate: float | UnsetType | None = UNSET
    window: Number | UnsetType = UNSET
    pause: Number | UnsetType = UNSET
    max_pause: Number | UnsetType = UNSET
    trials: Number | UnsetType = UNSET
    errors: ErrorTypes | UnsetType = UNSET


class BreakerView(Struct, rename="camel", gc=False):
    """A breaker; times are in ms.

    ``state`` is closed, open or half-open.  ``name`` is the job name that it applies to, null for all jobs of
    the queue.  ``failures`` counts the failures in a row, or within the window.  ``opened`` is how many times
    it has opened since it was set, ``until`` (epoch ms) the time of the next trial, ``error`` the error that
    opened it last, and ``held`` the number of jobs that it has held back from pulls.
    """

    queue: QueueOf
    name: str | None
    state: str
    failures: int
    opened: int
    until_ms: float | None = msgspec.field(name="until")
    error: ContentText | None
    held: int
    config: dict[str, float | int | str | list[str] | None]

    until = MaybeMoment("until_ms")


class BreakerReply(Reply, kw_only=True):
    breaker: BreakerView


class BreakersReply(Reply, kw_only=True):
    breakers: list[BreakerView]


class BreakerFigures(Struct, gc=False):
    """One circuit breaker for Prometheus."""

    queue: QueueOf
    name: str  # the job name that it applies to; "": all jobs of the queue
    is_open: bool
    opened: int  # how many times it has opened


@http("PUT /queues/{queue}/breaker", Tag.CIRCUIT_BREAKERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetBreaker(OfQueue[BreakerReply], tag="SetBreaker"):
    """Set or change the circuit breaker of a queue, or of its jobs called ``name``.  Its state stays."""

    name: JobName | None = None
    config: BreakerSettings | None = None


@http("DELETE /queues/{queue}/breaker", Tag.CIRCUIT_BREAKERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class ClearBreaker(OfQueue[Ok], tag="ClearBreaker"):
    """Remove a circuit breaker; the jobs that it held back run."""

    name: JobName | None = None


@http("POST /queues/{queue}/breaker/trip", Tag.CIRCUIT_BREAKERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True)
class TripBreaker(OfQueue[BreakerReply], tag="TripBreaker"):
    """Open a breaker manually, for ``pause`` ms or for the time in its configuration."""

    name: JobName | None = None
    pause: Timeout | None = None
    reason: str | None = None


@http("POST /queues/{queue}/breaker/reset", Tag.CIRCUIT_BREAKERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class ResetBreaker(OfQueue[BreakerReply], tag="ResetBreaker"):
    """Close a breaker manually."""

    name: JobName | None = None


@http("GET /breakers", Tag.CIRCUIT_BREAKERS)
@command(Route.ALL, Verb.SEE, merge=Merge.CONCAT, heavy=True, reach=Reach.ALLOWED)
class ListBreakers(Command[BreakersReply], tag="ListBreakers"):
    """List the breakers of a queue, or of all queues."""

    queue: QueueName | None = None
