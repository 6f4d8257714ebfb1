"""``bunqueue concurrency``: how many jobs of a queue may run at a time."""

from __future__ import annotations

from typing import Annotated

from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import QueueName, argument
from ...output.output import Column, Kind

app = noun("How many jobs of a queue may run at a time.")

CONCURRENCY = (Column("limit", Kind.NUMBER), Column("maxed", Kind.FLAG, "reached"))

Limit = Annotated[int, argument("N", "The number of jobs, from 1.")]


@verb(app, "bunqueue concurrency set emails 20", name="set")
def set_(session: Session, queue: QueueName, limit: Limit) -> None:
    """Limit how many jobs of a queue run at a time, over all workers."""
    session.queue(queue).set_concurrency(limit)
    text = f"of queue {queue} at most {limit:,} run at a time"
    session.out.done(text, {"queue": queue, "limit": limit})


@verb(app, "bunqueue concurrency get emails")
def get(session: Session, queue: QueueName) -> None:
    """Print the limit of a queue, and whether it is reached. Exit status: 3 when it has none."""
    from bunqueue.errors import NotFound

    limits = session.queue(queue).limits()
    if limits.concurrency_limit is None:
        raise NotFound(f"queue {queue} has no such limit; bunqueue concurrency set {queue} N")
    session.out.record({"limit": limits.concurrency_limit, "maxed": limits.maxed}, CONCURRENCY)


@verb(app, "bunqueue concurrency clear emails")
def clear(session: Session, queue: QueueName) -> None:
    """Remove the concurrency limit of a queue."""
    session.queue(queue).clear_concurrency()
    session.out.done(f"queue {queue} has no such limit", {"queue": queue, "limit": None})
