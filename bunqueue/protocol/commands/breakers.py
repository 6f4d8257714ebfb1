"""Circuit breakers: of a queue, or of its jobs of one name."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from bunqueue.protocol.commands.base import (
    Command,
    ErrorTypes,
    JobName,
    Merge,
    Number,
    QueueName,
    Reply,
    Route,
    Timeout,
    command,
)
from bunqueue.protocol.moments import MaybeMoment


class BreakerSettings(Struct, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """When a breaker opens, and for how long; times are in ms.  What is left out stays as it is.

    It opens after ``failures`` failed attempts in a row, by default 5.  With a ``rate`` above 0 and up to 1
    it opens instead when that part of the attempts within ``window`` ms has failed, and at least ``failures``
    of them.  It stays open for ``pause`` ms, twice as long each time that a trial fails, and at most for
    ``maxPause`` ms.  Then ``trials`` jobs are let through, by default 1.  With ``errors`` only failures with
    errors of these classes count (see ``errorTypes`` of FAIL).
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

    ``state`` is closed, open or half-open; ``name`` is that of the jobs that it is for, null for all of the
    queue.  ``failures`` have come in a row, or within the window; ``opened`` is how often it has opened since
    it was set, ``until`` (epoch ms) when it is tried again, ``error`` what opened it last, and ``held`` how
    many jobs pulls have met that it holds back.
    """

    queue: str
    name: str | None
    state: str
    failures: int
    opened: int
    until_ms: float | None = msgspec.field(name="until")
    error: str | None
    held: int
    config: dict[str, float | int | str | list[str] | None]

    until = MaybeMoment("until_ms")


class BreakerReply(Reply, kw_only=True):
    breaker: BreakerView


class BreakersReply(Reply, kw_only=True):
    breakers: list[BreakerView]


class BreakerFigures(Struct, gc=False):
    """One circuit breaker for Prometheus."""

    queue: str
    name: str  # of the jobs that it is for; "": all of the queue
    is_open: bool
    opened: int  # how often it has opened


@command(Route.QUEUE, BreakerReply, writes=True, repeatable=True)
class SetBreaker(Command, tag="SetBreaker"):
    """Give a queue, or its jobs called ``name``, a circuit breaker, or change it.  Its state stays."""

    queue: QueueName
    name: JobName | None = None
    config: BreakerSettings | None = None


@command(Route.QUEUE, writes=True, repeatable=True)
class ClearBreaker(Command, tag="ClearBreaker"):
    """Take the breaker away again; what it held back runs."""

    queue: QueueName
    name: JobName | None = None


@command(Route.QUEUE, BreakerReply, writes=True)
class TripBreaker(Command, tag="TripBreaker"):
    """Open a breaker by hand, for ``pause`` ms or as its configuration says."""

    queue: QueueName
    name: JobName | None = None
    pause: Timeout | None = None
    reason: str | None = None


@command(Route.QUEUE, BreakerReply, writes=True, repeatable=True)
class ResetBreaker(Command, tag="ResetBreaker"):
    """Close a breaker by hand."""

    queue: QueueName
    name: JobName | None = None


@command(Route.ALL, BreakersReply, merge=Merge.CONCAT, heavy=True)
class ListBreakers(Command, tag="ListBreakers"):
    """List the breakers of a queue, or of all queues."""

    queue: QueueName | None = None
