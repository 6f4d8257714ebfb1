"""``bunqueue breaker``: circuit breakers of a queue, or of its jobs of one name."""

from __future__ import annotations

from typing import Annotated

from ...framework import completing
from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import SPAN, QueueName, argument, option, span
from ...output.output import Column, Kind, plain

app = noun("Circuit breakers: jobs rest when too many of them fail.")

BREAKERS = (
    Column("queue"),
    Column("name", title="job"),
    Column("state", Kind.STATE),
    Column("until", Kind.TIME),
    Column("failures", Kind.NUMBER),
    Column("opened", Kind.NUMBER, "times opened"),
    Column("error"),
)
BREAKER = (*BREAKERS, Column("held", Kind.NUMBER, "held back"), Column("config", Kind.DATA))

AnyQueue = Annotated[
    str | None, argument("[QUEUE]", "The name of a queue. Default: all queues.", completing.queues)
]
Job = Annotated[
    str | None,
    option("--job", about="The name of the jobs that it is for. Default: all of the queue.", metavar="NAME"),
]
Failures = Annotated[
    int, option("--failures", about="It opens after so many failures in a row. Default: 5.", metavar="N")
]
Rate = Annotated[
    float | None,
    option("--rate", about="Or when this part of the attempts within --window has failed.", metavar="0-1"),
]
Window = Annotated[
    float, option("--window", about="The time for --rate. Default: 1m.", metavar=SPAN, parser=span)
]
Pause = Annotated[
    float,
    option(
        "--pause",
        about="How long jobs rest; twice as long after each failed trial. Default: 30s.",
        metavar=SPAN,
        parser=span,
    ),
]
MaxPause = Annotated[
    float, option("--max-pause", about="At most so long. Default: 10m.", metavar=SPAN, parser=span)
]
Trials = Annotated[
    int, option("--trials", about="How many jobs are let through to try. Default: 1.", metavar="N")
]
Errors = Annotated[
    list[str],
    option("--error", about="Only errors of this class count; may be repeated.", metavar="CLASS"),
]
For = Annotated[
    float | None,
    option(
        "--for",
        about="How long jobs rest. Default: as the breaker says.",
        metavar=SPAN,
        parser=span,
    ),
]
Reason = Annotated[str | None, option("--reason", about="What is shown as the reason.", metavar="TEXT")]


@verb(app, "bunqueue breaker list", "bunqueue breaker list emails --json", name="list")
def list_(session: Session, queue: AnyQueue = None) -> None:
    """List the breakers of a queue, or of all queues."""
    found = session.admin.list_breakers() if queue is None else session.queue(queue).breakers()
    session.out.rows(found, BREAKERS, none="there are no breakers")


@verb(
    app,
    "bunqueue breaker set emails --failures 10 --pause 1m",
    "bunqueue breaker set emails --job welcome --rate 0.5 --error ConnectionError",
    name="set",
)
def set_(
    session: Session,
    queue: QueueName,
    job: Job = None,
    failures: Failures = 5,
    rate: Rate = None,
    window: Window = 60_000,
    pause: Pause = 30_000,
    max_pause: MaxPause = 600_000,
    trials: Trials = 1,
    errors: Errors = [],  # noqa: B006
) -> None:
    """Have jobs of a queue rest when too many of them fail. Options that are left out get their default."""
    from bunqueue.client.options.breaker import Breaker

    wanted = Breaker(
        failures=failures,
        rate=rate,
        window=window,
        pause=pause,
        max_pause=max_pause,
        trials=trials,
        errors=errors,
    )
    session.out.record(plain(session.queue(queue).set_breaker(wanted, job=job)), BREAKER)


@verb(app, "bunqueue breaker clear emails", "bunqueue breaker clear emails --job welcome")
def clear(session: Session, queue: QueueName, job: Job = None) -> None:
    """Remove a breaker; what it held back runs."""
    session.queue(queue).clear_breaker(job=job)
    session.out.done(f"{_what(queue, job)} have no breaker", {"queue": queue, "name": job})


@verb(app, "bunqueue breaker trip emails --for 10m --reason 'their API is down'")
def trip(
    session: Session, queue: QueueName, job: Job = None, pause: For = None, reason: Reason = None
) -> None:
    """Open a breaker by hand: no job starts for some time. Exit status: 3 without such a breaker."""
    found = session.queue(queue).trip_breaker(job=job, pause=pause, reason=reason)
    session.out.record(plain(found), BREAKER)


@verb(app, "bunqueue breaker reset emails", "bunqueue breaker reset emails --job welcome")
def reset(session: Session, queue: QueueName, job: Job = None) -> None:
    """Close a breaker by hand: jobs run again. Exit status: 3 without such a breaker."""
    session.out.record(plain(session.queue(queue).reset_breaker(job=job)), BREAKER)


def _what(queue: str, job: str | None) -> str:
    return f"jobs of queue {queue}" if job is None else f"jobs {job} of queue {queue}"
