"""How fast the jobs of a queue may be taken, and how many of them at a time."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import YEAR_MS
from bunqueue.protocol.commands.base import MAX_SAFE, Command, QueueName, Reply, Route, Ttl, command

# Not below 0, which lets nothing through.
Limit = Annotated[float, Meta(ge=-MAX_SAFE, le=MAX_SAFE, extra={"problem": "must be a finite number"})]
Window = Annotated[int, Meta(ge=1, le=YEAR_MS)]


class Rate(Struct, gc=False):
    """``max`` jobs in every ``duration`` ms."""

    max: float | int
    duration: float | int


class Limits(Struct, rename="camel", gc=False):
    """``rate_limit_ttl``: ms until the limit ends if it has an end, else until it lets the next job through;
    -2 if it has none.  ``maxed``: as many jobs are active as the limit allows."""

    rate_limit: Rate | None
    rate_limit_ttl: float | int
    concurrency_limit: float | int | None
    maxed: bool


class LimitsOfQueue(Struct, gc=False):
    limits: Limits


class LimitsReply(Reply, kw_only=True):
    data: LimitsOfQueue


@command(Route.QUEUE, writes=True, repeatable=True)
class RateLimit(Command, tag="RateLimit"):
    """Let ``limit`` jobs through in every ``duration`` ms: after a rest as many at once, then one every
    ``duration / limit`` ms.  With a ``ttl`` it ends by itself after so many ms."""

    queue: QueueName
    limit: Limit
    duration: Window = 1000
    ttl: Ttl | None = None


@command(Route.QUEUE, writes=True, repeatable=True)
class RateLimitClear(Command, tag="RateLimitClear"):
    """Take the rate limit of a queue away."""

    queue: QueueName


@command(Route.QUEUE, writes=True, repeatable=True)
class SetConcurrency(Command, tag="SetConcurrency"):
    """Let no more than ``limit`` jobs of a queue be active at a time."""

    queue: QueueName
    limit: Limit


@command(Route.QUEUE, writes=True, repeatable=True)
class ClearConcurrency(Command, tag="ClearConcurrency"):
    """Let any number of jobs of a queue be active at a time."""

    queue: QueueName


@command(Route.QUEUE, LimitsReply)
class GetQueueLimits(Command, tag="GetQueueLimits"):
    """The limits of a queue, and whether they hold jobs back at present."""

    queue: QueueName
