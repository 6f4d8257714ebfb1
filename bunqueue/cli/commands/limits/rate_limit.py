"""``bunqueue rate-limit``: how fast the jobs of a queue may start."""

from __future__ import annotations

from typing import Annotated, Any

from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import SPAN, WHEN, QueueName, argument, option, span, span_or_moment
from ...output.output import Column, Kind, plain

app = noun("How fast jobs of a queue may start.")

RATE = (
    Column("max", Kind.NUMBER, "jobs"),
    Column("duration", Kind.SPAN, "within"),
    Column("ttl", Kind.SPAN, "window ends in"),
)

Limit = Annotated[int, argument("N", "The number of jobs, from 1.")]
Per = Annotated[float, option("--per", about="The time window. Default: 1s.", metavar=SPAN, parser=span)]
Lasting = Annotated[
    Any,
    option(
        "--ttl",
        about="The limit ends after this time, or at this moment.",
        metavar=WHEN,
        parser=span_or_moment,
    ),
]


@verb(
    app,
    "bunqueue rate-limit set emails 100 --per 1m",
    "bunqueue rate-limit set emails 5 --ttl 10m",
    name="set",
)
def set_(session: Session, queue: QueueName, limit: Limit, duration: Per = 1000, ttl: Lasting = None) -> None:
    """Limit how many jobs of a queue start within a time, over all workers."""
    session.queue(queue).set_rate_limit(limit, per=duration, ttl=ttl)
    facts = {"queue": queue, "max": limit, "duration": duration}
    session.out.done(f"queue {queue} has a rate limit of {limit:,}", facts)


@verb(app, "bunqueue rate-limit get emails")
def get(session: Session, queue: QueueName) -> None:
    """Print the rate limit of a queue. Exit status: 3 when it has none."""
    from bunqueue.errors import NotFound

    limits = session.queue(queue).limits()
    if limits.rate_limit is None:
        raise NotFound(f"queue {queue} has no rate limit; bunqueue rate-limit set {queue} N")
    session.out.record({**plain(limits.rate_limit), "ttl": limits.rate_limit_ttl}, RATE)


@verb(app, "bunqueue rate-limit clear emails")
def clear(session: Session, queue: QueueName) -> None:
    """Remove the rate limit of a queue."""
    session.queue(queue).clear_rate_limit()
    session.out.done(f"queue {queue} has no rate limit", {"queue": queue, "max": None})
