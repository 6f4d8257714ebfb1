"""``bunqueue bulk``: change all jobs that a search finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from bunqueue.text import plural

from ..framework import completing
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import SPAN, Yes, argument, option, span
from ..output.progress import confirm
from .job.find import Where, searched, watching, with_filter

app = noun("Retry, cancel, remove, prioritise or move all jobs that a search finds.")

Limit = Annotated[
    int, option("--limit", "-n", about="Change at most this many. Default: 10,000.", metavar="N")
]
DryRun = Annotated[bool, option("--dry-run", about="Only print how many jobs would be changed.")]
Reason = Annotated[str | None, option("--reason", about="The reason that workers see.", metavar="TEXT")]
Grace = Annotated[
    float | None,
    option(
        "--grace", about="How long running jobs may take to stop. Default: 10s.", metavar=SPAN, parser=span
    ),
]
Priority = Annotated[int, argument("PRIORITY", "Higher runs first.")]
Target = Annotated[str, argument("TO", "The queue that they go to; it may be new.", completing.queues)]
NEGATIVE = {"ignore_unknown_options": True}  # a negative number is not a flag


@verb(
    app,
    "bunqueue bulk retry --queue emails --error 'connection refused' --dry-run",
    "bunqueue bulk retry 'state = failed and finished > 1h ago' --yes",
    patient=True,
)
@with_filter
def retry(
    session: Session,
    where: Where = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    **filters: Any,
) -> None:
    """Run dead letters again, with all their attempts.

    Cancelled and completed jobs are left alone unless --state names them.
    """
    _change(session, "retry", "retried", where, limit, dry_run, yes, filters)


@verb(app, "bunqueue bulk cancel 'data.customer = 17' --reason 'the account is closed'", patient=True)
@with_filter
def cancel(
    session: Session,
    where: Where = None,
    reason: Reason = None,
    grace: Grace = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    **filters: Any,
) -> None:
    """Cancel jobs that have not ended, also those that run."""
    more = {"reason": reason, "grace": grace}
    _change(session, "cancel", "cancelled", where, limit, dry_run, yes, filters, **more)


@verb(app, "bunqueue bulk remove --queue emails --state completed --finished-before 30d --yes", patient=True)
@with_filter
def remove(
    session: Session,
    where: Where = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    **filters: Any,
) -> None:
    """Remove jobs with all they have. Jobs that run are left alone."""
    _change(session, "remove", "removed", where, limit, dry_run, yes, filters)


@verb(
    app,
    "bunqueue bulk priority 10 --queue emails --tag vip --yes",
    patient=True,
    context_settings=NEGATIVE,
)
@with_filter
def priority(
    session: Session,
    priority: Priority,
    where: Where = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    **filters: Any,
) -> None:
    """Give waiting and delayed jobs another priority."""
    _change(session, "prioritize", "reprioritised", where, limit, dry_run, yes, filters, priority=priority)


@verb(app, "bunqueue bulk move slow-emails --queue emails 'data.size > 1000000' --dry-run", patient=True)
@with_filter
def move(
    session: Session,
    to: Target,
    where: Where = None,
    limit: Limit = 10_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    **filters: Any,
) -> None:
    """Move waiting and delayed jobs, and dead letters, to another queue. They keep their ids.

    Dead letters wait there, with all their attempts. Jobs of flows, and workflows, are left alone.
    """
    _change(session, "move", f"moved to {to}", where, limit, dry_run, yes, filters, to=to)


def _change(
    session: Session,
    action: str,
    done: str,
    where: str | None,
    limit: int,
    dry_run: bool,
    yes: bool,
    filters: Mapping[str, Any],
    **more: Any,
) -> None:
    """Count the jobs first, ask, and then change them."""
    place, given = searched(session, where, filters)
    act = getattr(place, f"{action}_found")
    if not dry_run and not yes:
        with watching(session, "counting", place, given) as on_progress:
            counted = act(**more, **given, dry_run=True, on_progress=on_progress)
        if counted.changed:
            confirm(f"{plural(min(counted.changed, limit))} will be {done}. Go on?", yes)
    with watching(session, "counting" if dry_run else "changing", place, given) as on_progress:
        found = act(**more, **given, limit=limit, dry_run=dry_run, on_progress=on_progress)
    text = f"{plural(found.changed)} {'would be' if dry_run else 'were'} {done}"
    facts = {
        "changed": found.changed,
        "skipped": found.skipped,
        "examples": found.examples,
        "more": found.more,
        "dryRun": dry_run,
    }
    session.out.done(text, facts, "changed")
    if found.skipped:
        left = ", ".join(f"{reason} {count:,}" for reason, count in found.skipped.items())
        session.out.note(f"left alone: {left}")
    if found.more:
        session.out.note(f"there may be more, as --limit {limit} was reached; run it again for these")
