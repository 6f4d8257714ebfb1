"""``bunqueue group``: groups of jobs in a queue, each with its own limits and pause."""

from __future__ import annotations

from typing import Annotated, Any

from bunqueue.server.settings import SettingsError

from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import SPAN, QueueName, argument, option, span, span_or_moment
from ...output.output import Column, Kind, plain
from ..queue import JOBS, State

app = noun("Groups of jobs: list, pause or limit them.")

GROUP = (
    Column("queue"),
    Column("group"),
    Column("queued", Kind.NUMBER),
    Column("active", Kind.NUMBER),
    Column("paused", Kind.FLAG),
    Column("concurrency", Kind.NUMBER),
    Column("weight", Kind.NUMBER),
    Column("rateLimit", Kind.DATA),
    Column("rateLimitTtl", Kind.SPAN, "window ends in"),
)

GROUPS = (
    Column("id", Kind.ID, "group"),
    Column("waiting", Kind.NUMBER, "queued"),
    Column("active", Kind.NUMBER),
    Column("paused", Kind.FLAG),
    Column("concurrency", Kind.NUMBER),
    Column("max", Kind.NUMBER, "rate"),
    Column("duration", Kind.SPAN, "within"),
    Column("weight", Kind.NUMBER),
)

DEFAULTS = (
    Column("concurrency", Kind.NUMBER),
    Column("max", Kind.NUMBER, "rate"),
    Column("duration", Kind.SPAN, "within"),
)

GroupId = Annotated[str, argument("GROUP", "The group: the --group of its jobs.")]
Limit = Annotated[int | None, argument("[N]", "The number of jobs.")]
Most = Annotated[int, option("--limit", "-n", about="The maximum number. Default: 100.", metavar="N")]
Offset = Annotated[int, option("--offset", about="Skip this many.", metavar="N")]
Clear = Annotated[bool, option("--clear", about="Remove the limit.")]
Per = Annotated[float, option("--per", about="The time window. Default: 1s.", metavar=SPAN, parser=span)]
Weight = Annotated[int | None, argument("[N]", "Its turns for each one of other groups, from 1 to 1000.")]
Concurrency = Annotated[
    int | None, option("--concurrency", about="How many jobs of a group may run at a time.", metavar="N")
]
Rate = Annotated[
    str | None, option("--rate", about="How many may start in which time, such as 100/min.", metavar="RATE")
]
NoConcurrency = Annotated[bool, option("--no-concurrency", about="Remove that limit.")]
NoRate = Annotated[bool, option("--no-rate", about="Remove the rate.")]
Time = Annotated[Any, argument("TIME", "How long, or until when.", parser=span_or_moment)]


@verb(app, "bunqueue group list emails", "bunqueue group list emails --limit 1000 --json", name="list")
def list_(session: Session, queue: QueueName, limit: Most = 100, offset: Offset = 0) -> None:
    """List the groups of a queue that have jobs or settings, by name."""
    found = session.queue(queue).list_groups(limit=limit, offset=offset)
    session.out.rows(found, GROUPS, none="it has no groups")


@verb(app, "bunqueue group get emails acme")
def get(session: Session, queue: QueueName, group: GroupId) -> None:
    """Print a group: its jobs, its limits, and whether it is paused."""
    found = session.queue(queue).group(group)
    row = {
        "queue": queue,
        "group": group,
        "queued": found.count(),
        "active": found.active_count(),
        "paused": found.is_paused(),
        "concurrency": found.concurrency(),
        "weight": found.weight(),
        "rateLimit": plain(found.rate_limit()),
        "rateLimitTtl": found.rate_limit_ttl(),
    }
    session.out.record(row, GROUP)


@verb(app, "bunqueue group jobs emails acme", "bunqueue group jobs emails acme --state waiting")
def jobs(
    session: Session,
    queue: QueueName,
    group: GroupId,
    state: State = None,
    limit: Most = 100,
    offset: Offset = 0,
) -> None:
    """List the jobs of a group that have not ended, in the order of their arrival."""
    found = session.queue(queue).group(group).jobs(state or None, limit=limit, offset=offset)
    session.out.rows(found, JOBS, none="it has no such jobs")


@verb(
    app,
    "bunqueue group defaults emails",
    "bunqueue group defaults emails --concurrency 5 --rate 100/min",
    "bunqueue group defaults emails --no-rate",
)
def defaults(
    session: Session,
    queue: QueueName,
    concurrency: Concurrency = None,
    rate: Rate = None,
    no_concurrency: NoConcurrency = False,
    no_rate: NoRate = False,
) -> None:
    """Print the limits of a queue's groups without limits of their own. With options, change these first."""
    changes: dict[str, Any] = {}
    for name, value, none in (("concurrency", concurrency, no_concurrency), ("rate", rate, no_rate)):
        if value is not None and none:
            raise SettingsError(f"--no-{name}: give that or --{name}")
        if value is not None or none:
            changes[name] = value
    found = session.queue(queue)
    if changes:
        found.set_group_defaults(**changes)
    usual = plain(found.group_defaults())
    session.out.record({**usual, "duration": None if usual["max"] is None else usual["duration"]}, DEFAULTS)


@verb(app, "bunqueue group weight emails acme 5", "bunqueue group weight emails acme --clear")
def weight(
    session: Session, queue: QueueName, group: GroupId, number: Weight = None, clear: Clear = False
) -> None:
    """Give a group a larger share of the turns than others."""
    _either(number, clear)
    found = session.queue(queue).group(group)
    if number is None:
        found.clear_weight()
    else:
        found.set_weight(number)
    text = "has the weight of all others" if number is None else f"has a weight of {number:,}"
    session.out.done(
        f"group {group} of queue {queue} {text}", {"queue": queue, "group": group, "weight": number}
    )


@verb(app, "bunqueue group pause emails acme")
def pause(session: Session, queue: QueueName, group: GroupId) -> None:
    """Pause a group: workers get none of its jobs until it is resumed."""
    changed = session.queue(queue).group(group).pause()
    facts = {"queue": queue, "group": group, "paused": True, "changed": changed}
    session.out.done(f"group {group} of queue {queue} is paused", facts)


@verb(app, "bunqueue group resume emails acme")
def resume(session: Session, queue: QueueName, group: GroupId) -> None:
    """Resume a paused group."""
    changed = session.queue(queue).group(group).resume()
    facts = {"queue": queue, "group": group, "paused": False, "changed": changed}
    session.out.done(f"group {group} of queue {queue} is not paused", facts)


@verb(app, "bunqueue group hold emails acme 5m")
def hold(session: Session, queue: QueueName, group: GroupId, duration: Time) -> None:
    """Pause a group for some time."""
    from bunqueue.client.options.moments import time_left

    duration = time_left(duration, "TIME")
    session.queue(queue).group(group).hold(duration)
    facts = {"queue": queue, "group": group, "duration": duration}
    session.out.done(f"group {group} of queue {queue} is held", facts)


@verb(app, "bunqueue group concurrency emails acme 3", "bunqueue group concurrency emails acme --clear")
def concurrency(
    session: Session, queue: QueueName, group: GroupId, limit: Limit = None, clear: Clear = False
) -> None:
    """Limit how many jobs of a group run at a time, whatever limit a worker has."""
    _either(limit, clear)
    found = session.queue(queue).group(group)
    if limit is None:
        found.clear_concurrency()
    else:
        found.set_concurrency(limit)
    text = "has no limit" if limit is None else f"runs at most {limit:,} at a time"
    session.out.done(
        f"group {group} of queue {queue} {text}", {"queue": queue, "group": group, "limit": limit}
    )


@verb(
    app, "bunqueue group rate-limit emails acme 100 --per 1m", "bunqueue group rate-limit emails acme --clear"
)
def rate_limit(
    session: Session,
    queue: QueueName,
    group: GroupId,
    limit: Limit = None,
    duration: Per = 1000,
    clear: Clear = False,
) -> None:
    """Limit how many jobs of a group start within a time."""
    _either(limit, clear)
    found = session.queue(queue).group(group)
    if limit is None:
        found.clear_rate_limit()
    else:
        found.set_rate_limit(limit, per=duration)
    text = "has no rate limit" if limit is None else f"has a rate limit of {limit:,}"
    session.out.done(
        f"group {group} of queue {queue} {text}", {"queue": queue, "group": group, "limit": limit}
    )


def _either(limit: int | None, clear: bool) -> None:
    if (limit is None) != clear:
        raise SettingsError("N: give a number of jobs, or --clear")
