"""Rate and concurrency limits of a queue."""

from typing import Annotated

from msgspec import Meta, Struct

from bunqueue.model.durations import YEAR_MS
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Data,
    OfQueue,
    Ok,
    Route,
    Tag,
    Ttl,
    command,
    http,
)

# The shard refuses values below 0; 0 delivers nothing.
Limit = Annotated[float, Meta(ge=-MAX_SAFE, le=MAX_SAFE, extra={"problem": "must be a finite number"})]
Window = Annotated[int, Meta(ge=1, le=YEAR_MS)]


class Rate(Struct, gc=False):
    """``max`` jobs per ``duration`` ms."""

    max: float | int
    duration: float | int


class Limits(Struct, rename="camel", gc=False):
    """``rate_limit_ttl`` is the ms until a temporary rate limit ends; for a permanent one, the ms until the
    next job may start; -2 without a rate limit.  ``maxed`` is true while as many jobs are active as the
    concurrency limit allows.
    """

    rate_limit: Rate | None
    rate_limit_ttl: float | int
    concurrency_limit: float | int | None
    maxed: bool


class LimitsOfQueue(Struct, gc=False):
    limits: Limits


@http("PUT /queues/{queue}/rate-limit", Tag.LIMITS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RateLimit(OfQueue[Ok], tag="RateLimit"):
    """Deliver at most ``limit`` jobs of a queue per ``duration`` ms: after a pause that many at once, then
    one every ``duration / limit`` ms.  With a ``ttl`` the limit expires after that many ms.
    """

    limit: Limit
    duration: Window = 1000
    ttl: Ttl | None = None


@http("DELETE /queues/{queue}/rate-limit", Tag.LIMITS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class RateLimitClear(OfQueue[Ok], tag="RateLimitClear"):
    """Remove the rate limit of a queue."""


@http("PUT /queues/{queue}/concurrency", Tag.LIMITS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class SetConcurrency(OfQueue[Ok], tag="SetConcurrency"):
    """Let at most ``limit`` jobs of a queue be active at a time."""

    limit: Limit


@http("DELETE /queues/{queue}/concurrency", Tag.LIMITS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True)
class ClearConcurrency(OfQueue[Ok], tag="ClearConcurrency"):
    """Remove the concurrency limit of a queue."""


@http("GET /queues/{queue}/limits", Tag.LIMITS)
@command(Route.QUEUE, Verb.SEE)
class GetQueueLimits(OfQueue[Data[LimitsOfQueue]], tag="GetQueueLimits"):
    """Get the limits of a queue, and whether they hold jobs back now."""
