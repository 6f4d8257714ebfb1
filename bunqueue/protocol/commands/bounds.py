"""What bounds a queue: how much may wait, and how long completed jobs are kept."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.bounds import Bounds, WhenFull
from bunqueue.protocol.commands.base import Command, Number, QueueName, Reply, Route, command


class BoundSettings(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The changes to a queue's Bounds.  Numbers may be given as text; null takes a bound away."""

    max_waiting: Number | UnsetType | None = UNSET
    max_waiting_bytes: Number | UnsetType | None = UNSET
    when_full: WhenFull | UnsetType = UNSET
    keep_age: Number | UnsetType | None = UNSET
    keep_count: Number | UnsetType | None = UNSET


@command(Route.QUEUE, writes=True, repeatable=True)
class SetBounds(Command, tag="SetBounds"):
    """Change what bounds a queue; absent fields keep their values.

    Jobs that have not started count as waiting: those that wait for their turn, their time or other jobs.  A
    push that finds no space is refused with the code QUEUE_FULL, all of it; or with ``whenFull``
    "drop-oldest" the jobs that have waited longest are removed for it.  Jobs that the server adds itself, for
    schedules, repeats and workflows, and retries always find space.
    """

    queue: QueueName
    config: BoundSettings


class Space(Struct, rename="camel", gc=False):
    """What waits in a queue: jobs, and bytes of their data, which are null unless these are bounded.
    ``refused`` and ``dropped`` count jobs since the shard started or the queue got its bounds."""

    waiting: int
    waiting_bytes: int | None
    refused: int
    dropped: int


class BoundsReply(Reply, kw_only=True):
    config: Bounds
    space: Space


@command(Route.QUEUE, BoundsReply)
class GetBounds(Command, tag="GetBounds"):
    """Get what bounds a queue, and how much waits in it."""

    queue: QueueName
