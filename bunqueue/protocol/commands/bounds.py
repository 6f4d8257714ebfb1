"""The bounds of a queue: how much may wait, and how long completed jobs are kept."""

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.bounds import Bounds, WhenFull
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Number,
    OfQueue,
    Ok,
    Reply,
    Route,
    Tag,
    command,
    http,
)


class BoundSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The changes to a queue's Bounds.  Numbers may be given as text; null removes a bound."""

    max_waiting: Number | UnsetType | None = UNSET
    max_waiting_bytes: Number | UnsetType | None = UNSET
    when_full: WhenFull | UnsetType = UNSET
    keep_age: Number | UnsetType | None = UNSET
    keep_count: Number | UnsetType | None = UNSET


@http("PUT /queues/{queue}/bounds", Tag.LIMITS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetBounds(OfQueue[Ok], tag="SetBounds"):
    """Change the bounds of a queue; absent fields keep their values.

    All jobs that have not started count as waiting: they wait for their turn, their time or other jobs.  A
    push that finds no space is refused as a whole, with the code QUEUE_FULL.  With ``whenFull``
    "drop-oldest", the jobs that have waited longest are removed to make space for it.  Retries, and jobs that
    the server adds itself (for schedules, repeats and workflows), are always accepted.
    """

    config: BoundSettings


class Space(Struct, rename="camel", gc=False):
    """What waits in a queue: jobs, and bytes of their data; the bytes are null unless they are bounded.
    ``refused`` and ``dropped`` count jobs since the shard started or the queue got its bounds."""

    waiting: int
    waiting_bytes: int | None
    refused: int
    dropped: int


class BoundsReply(Reply, kw_only=True):
    config: Bounds
    space: Space


@http("GET /queues/{queue}/bounds", Tag.LIMITS)
@command(Route.QUEUE, Verb.SEE)
class GetBounds(OfQueue[BoundsReply], tag="GetBounds"):
    """Get the bounds of a queue, and how much waits in it."""
