"""``bunqueue queue``: what removes or moves many jobs at once. It asks first, and shows how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from ...readable import plural, span_of
from ..framework.completing import one_of
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import SPAN, QueueName, Yes, option, span
from ..output.progress import confirm, watched
from .queue import KeepEvents, app

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import Queue

CLEANABLE = ("waiting", "delayed", "prioritized", "paused", "completed", "failed")

OlderThan = Annotated[
    float, option("--older-than", about="Only those older than this. Default: 0.", metavar=SPAN, parser=span)
]
State = Annotated[
    str | None,
    option(
        "--state",
        "-s",
        about=f"{', '.join(CLEANABLE)}. Default: those that wait.",
        metavar="STATE",
        complete=one_of(*CLEANABLE),
    ),
]
Limit = Annotated[
    int, option("--limit", "-n", about="At most so many, the oldest. Default: 1000.", metavar="N")
]
Count = Annotated[int | None, option("--count", "-n", about="At most so many. Default: all.", metavar="N")]
OneJob = Annotated[str | None, option("--id", about="Only this job.", metavar="ID")]
CompletedBefore = Annotated[
    float | None,
    option("--older-than", about="Only those that completed so long ago.", metavar=SPAN, parser=span),
]


def queued(queue: Queue) -> int:
    """How many jobs wait for their turn or their time."""
    counts = queue.counts()
    return counts.waiting + counts.prioritized + counts.delayed + counts.paused


def _in_state(queue: Queue, state: str | None) -> Callable[[], int]:
    return lambda: getattr(queue.counts(), state) if state else queued(queue)


@verb(app, "bunqueue queue drain emails", "bunqueue queue drain emails --yes", patient=True)
def drain(session: Session, queue: QueueName, yes: Yes = False) -> None:
    """Remove all waiting and delayed jobs of a queue; not those that wait for others. Prints how many."""
    found = session.queue(queue)
    if not yes:
        confirm(f"Remove {plural(queued(found))}, waiting or delayed, of queue {queue}?", yes)
    count = watched(f"draining {queue}", found.drain, lambda: queued(found))
    session.out.done(f"removed {plural(count)} of queue {queue}", {"queue": queue, "count": count}, "count")


@verb(
    app,
    "bunqueue queue clean emails --state completed --older-than 7d --limit 100000",
    "bunqueue queue clean emails --older-than 1h --yes",
    patient=True,
)
def clean(
    session: Session,
    queue: QueueName,
    state: State = None,
    older_than: OlderThan = 0,
    limit: Limit = 1000,
    yes: Yes = False,
) -> None:
    """Remove old jobs of a queue, the oldest first. Prints how many.

    Those that wait age from when they were added, completed ones from their completion, failed ones from
    their last attempt.
    """
    from bunqueue.client.options import checks

    checks.states(CLEANABLE, [state] if state else [])
    found = session.queue(queue)
    kind = f"{state or 'waiting or delayed'} jobs of queue {queue}"
    age = f" that are older than {span_of(older_than)}" if older_than else ""
    confirm(f"Remove at most {limit:,} {kind}{age}?", yes)
    removed = watched(
        f"cleaning {queue}",
        lambda: found.clean(older_than, state=state, limit=limit),  # type: ignore[arg-type]
        _in_state(found, state),
    )
    facts = {"queue": queue, "count": len(removed), "ids": removed}
    session.out.done(f"removed {plural(len(removed))} of queue {queue}", facts, "count")


@verb(app, "bunqueue queue obliterate emails", "bunqueue queue obliterate emails --yes", patient=True)
def obliterate(session: Session, queue: QueueName, yes: Yes = False) -> None:
    """Remove a queue: its jobs in all states, active ones too, and all that was set for it."""
    found = session.queue(queue)
    if not yes:
        confirm(f"Remove queue {queue} with all its {plural(found.count())}, and its settings?", yes)
    watched(f"removing {queue}", found.obliterate, found.count)
    session.out.done(f"queue {queue} is removed", {"queue": queue, "removed": True})


@verb(app, "bunqueue queue promote emails --count 100", patient=True)
def promote(session: Session, queue: QueueName, count: Count = None) -> None:
    """Let delayed jobs of a queue run now: all, or those that were added first. Prints how many."""
    found = session.queue(queue)
    moved = watched(
        f"promoting jobs of {queue}", lambda: found.promote_jobs(count), lambda: found.counts().delayed
    )
    session.out.done(f"{plural(moved)} may run now", {"queue": queue, "count": moved}, "count")


@verb(
    app,
    "bunqueue queue retry emails --id 01980f2e-...",
    "bunqueue queue retry emails --count 100 --yes",
    patient=True,
)
def retry(
    session: Session,
    queue: QueueName,
    job_id: OneJob = None,
    count: Count = None,
    older_than: CompletedBefore = None,
    yes: Yes = False,
) -> None:
    """Run completed jobs of a queue again, their results forgotten. Prints how many.

    For those that failed see bunqueue dlq retry.
    """
    from ..framework.values import ago

    found = session.queue(queue)
    if job_id is None:
        confirm(f"Forget the results of completed jobs of queue {queue}, and run these again?", yes)
    again = watched(
        f"retrying jobs of {queue}",
        lambda: found.retry_completed(job_id, count=count, before=ago(older_than)),
        lambda: found.counts().completed,
    )
    if job_id is not None and not again:
        from bunqueue.errors import NotFound

        raise NotFound(f"queue {queue} has no completed job {job_id}")
    session.out.done(f"{plural(again)} run again", {"queue": queue, "count": again}, "count")


@verb(app, "bunqueue queue trim-events emails 1000 --yes", patient=True)
def trim_events(session: Session, queue: QueueName, max_length: KeepEvents, yes: Yes = False) -> None:
    """Forget the oldest events of a queue in the server's log. Prints how many."""
    confirm(f"Forget all but the last {max_length:,} events of queue {queue}?", yes)
    count = session.queue(queue).trim_events(max_length)
    session.out.done(f"{plural(count, 'event')} forgotten", {"queue": queue, "count": count}, "count")
