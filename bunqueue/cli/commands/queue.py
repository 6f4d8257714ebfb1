"""``bunqueue queue``: queues. Verbs that remove or move many jobs ask first, and show their progress."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from bunqueue.text import plural, span_of

from ..framework.completing import one_of
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import WHEN, QueueName, Yes, argument, begun, option, span_or_moment
from ..output.output import Column, Kind, plain
from ..output.progress import confirm, watched

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import Queue

app = noun("List queues; pause, count, clean, drain or remove one.")

STATES = ("waiting", "prioritized", "delayed", "active", "waiting-children", "completed", "failed", "paused")
PAGE = 500
QUEUES = (
    Column("name", Kind.ID, "queue"),
    Column("waiting", Kind.NUMBER),
    Column("delayed", Kind.NUMBER),
    Column("active", Kind.NUMBER),
    Column("dlq", Kind.NUMBER, "dead"),
    Column("paused", Kind.FLAG),
)
COUNTS = tuple(Column(state, Kind.NUMBER) for state in STATES)
JOBS = (
    Column("id", Kind.ID),
    Column("name"),
    Column("state", Kind.STATE),
    Column("priority", Kind.NUMBER),
    Column("attempts", Kind.NUMBER, "failed"),
    Column("createdAt", Kind.TIME, "created"),
    Column("data", Kind.DATA),
)
BY_PRIORITY = (Column("priority", Kind.NUMBER), Column("count", Kind.NUMBER, "jobs"))

State = Annotated[
    list[str] | None,
    option(
        "--state",
        "-s",
        about=f"{', '.join(STATES)}; may be repeated.",
        metavar="STATE",
        complete=one_of(*STATES),
    ),
]
Limit = Annotated[int, option("--limit", "-n", about="The maximum number. Default: 100.", metavar="N")]
Offset = Annotated[int, option("--offset", about="Skip this many.", metavar="N")]
Newest = Annotated[bool, option("--newest", about="Print the newest first.")]
UniqueKey = Annotated[str, argument("KEY", "The unique key of a job.")]
Free = Annotated[bool, option("--free", about="Release it, so that another job may use it.")]
KeepEvents = Annotated[int, argument("N", "How many of the newest events to keep.")]

CLEANABLE = ("waiting", "delayed", "prioritized", "paused", "completed", "failed")

OlderThan = Annotated[
    Any,
    option(
        "--older-than", about="Only jobs older than this. Default: 0.", metavar=WHEN, parser=span_or_moment
    ),
]
OneState = Annotated[
    str | None,
    option(
        "--state",
        "-s",
        about=f"{', '.join(CLEANABLE)}. Default: all jobs that wait.",
        metavar="STATE",
        complete=one_of(*CLEANABLE),
    ),
]
CleanLimit = Annotated[
    int, option("--limit", "-n", about="At most this many, the oldest first. Default: 1000.", metavar="N")
]
Count = Annotated[int | None, option("--count", "-n", about="The maximum number. Default: all.", metavar="N")]
OneJob = Annotated[str | None, option("--id", about="Only this job.", metavar="ID")]
CompletedBefore = Annotated[
    Any,
    option(
        "--older-than", about="Only jobs that completed before this.", metavar=WHEN, parser=span_or_moment
    ),
]


@verb(app, "bunqueue queue list", "bunqueue queue list --json | jq -r '.[].name'", name="list")
def list_(session: Session) -> None:
    """List all queues, with their jobs by state."""
    rows = [plain(each) for each in session.admin.dashboard_queues()]
    rows.sort(key=lambda row: row["name"])
    if not session.out.as_json:
        rows = [{**row, "waiting": row["waiting"] + row["prioritized"]} for row in rows]
    session.out.rows(rows, QUEUES, none="there are no queues yet; bunqueue push QUEUE DATA makes one")


@verb(app, "bunqueue queue counts emails", "bunqueue queue counts emails --by-priority")
def counts(
    session: Session,
    queue: QueueName,
    by_priority: Annotated[
        bool, option("--by-priority", about="Only waiting and delayed jobs, by priority.")
    ] = False,
) -> None:
    """Print how many jobs of a queue are in each state."""
    if by_priority:
        found = session.queue(queue).counts_per_priority()
        rows = [{"priority": each, "count": found[each]} for each in sorted(found, reverse=True)]
        session.out.rows(rows, BY_PRIORITY, none="no job waits")
    else:
        session.out.record(session.queue(queue).counts(), COUNTS)


@verb(app, "bunqueue queue count emails")
def count(session: Session, queue: QueueName) -> None:
    """Print how many jobs a queue has, in all states."""
    number = session.queue(queue).count()
    session.out.done(plural(number), {"queue": queue, "count": number}, "count")


@verb(
    app,
    "bunqueue queue jobs emails --state failed --newest",
    "bunqueue queue jobs emails --limit 5000 --json > jobs.json",
)
def jobs(
    session: Session,
    queue: QueueName,
    state: State = None,
    limit: Limit = 100,
    offset: Offset = 0,
    newest: Newest = False,
) -> None:
    """List jobs of a queue in order of creation, in some states or in all."""
    from bunqueue.client.options import checks

    checks.whole("limit", limit)
    checks.whole("offset", offset, 0)
    wanted = session.queue(queue)
    if offset:
        found = wanted.get_jobs(state, limit=min(limit, 10_000), offset=offset, newest_first=newest)
    else:
        page = min(limit, PAGE)
        found = list(islice(wanted.iter_jobs(state, newest_first=newest, page=page), limit))
    session.out.rows(found, JOBS, none="no such jobs")


@verb(app, "bunqueue queue pause emails")
def pause(session: Session, queue: QueueName) -> None:
    """Pause a queue: workers get no more of its jobs until it is resumed. Survives a restart."""
    session.queue(queue).pause()
    session.out.done(f"queue {queue} is paused", {"queue": queue, "paused": True})


@verb(app, "bunqueue queue resume emails")
def resume(session: Session, queue: QueueName) -> None:
    """Resume a paused queue."""
    session.queue(queue).resume()
    session.out.done(f"queue {queue} is not paused", {"queue": queue, "paused": False})


@verb(app, "bunqueue queue paused emails && echo paused")
def paused(session: Session, queue: QueueName) -> None:
    """Print whether a queue is paused: true or false."""
    found = session.queue(queue).is_paused()
    text = f"queue {queue} is {'' if found else 'not '}paused"
    session.out.done(text, {"queue": queue, "paused": found}, "paused")


@verb(app, "bunqueue queue unique-key emails order-17", "bunqueue queue unique-key emails order-17 --free")
def unique_key(session: Session, queue: QueueName, key: UniqueKey, free: Free = False) -> None:
    """Print the id of the job that holds a unique key. Exit status: 3 when none does."""
    from bunqueue.errors import NotFound

    holder = session.queue(queue).get_unique_job_id(key)
    if holder is None:
        raise NotFound(f"no job of queue {queue} holds the key {key!r}")
    if free:
        session.queue(queue).remove_unique_key(key)
    text = f"job {holder} {'held' if free else 'holds'} it"
    session.out.done(text, {"queue": queue, "key": key, "jobId": holder, "freed": free}, "jobId")


def queued(queue: Queue) -> int:
    """The number of waiting and delayed jobs."""
    counts = queue.counts()
    return counts.waiting + counts.prioritized + counts.delayed + counts.paused


def _older(than: float | datetime) -> str:
    if isinstance(than, datetime):
        return f" from before {than.isoformat(sep=' ')}"
    return f" that are older than {span_of(than)}"


def _in_state(queue: Queue, state: str | None) -> Callable[[], int]:
    return lambda: getattr(queue.counts(), state) if state else queued(queue)


@verb(app, "bunqueue queue drain emails", "bunqueue queue drain emails --yes", patient=True)
def drain(session: Session, queue: QueueName, yes: Yes = False) -> None:
    """Remove all waiting and delayed jobs of a queue, but none that wait for other jobs. Prints how many."""
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
    state: OneState = None,
    older_than: OlderThan = 0,
    limit: CleanLimit = 1000,
    yes: Yes = False,
) -> None:
    """Remove old jobs of a queue, the oldest first. Prints how many.

    The age of a waiting job counts from its creation, of a completed job from its completion, of a failed job
    from its last attempt.
    """
    from bunqueue.client.options import checks

    checks.states(CLEANABLE, [state] if state else [])
    found = session.queue(queue)
    kind = f"{state or 'waiting or delayed'} jobs of queue {queue}"
    age = _older(older_than) if older_than else ""
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
    """Remove a queue with its settings and its jobs in all states, even active ones."""
    found = session.queue(queue)
    if not yes:
        confirm(f"Remove queue {queue} with all its {plural(found.count())}, and its settings?", yes)
    watched(f"removing {queue}", found.obliterate, found.count)
    session.out.done(f"queue {queue} is removed", {"queue": queue, "removed": True})


@verb(app, "bunqueue queue promote emails --count 100", patient=True)
def promote(session: Session, queue: QueueName, count: Count = None) -> None:
    """Let delayed jobs of a queue run now: all, or the first --count that were added. Prints how many."""
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
    """Run completed jobs of a queue again, and forget their results. Prints how many.

    For failed jobs see bunqueue dlq retry.
    """
    found = session.queue(queue)
    if job_id is None:
        confirm(f"Forget the results of completed jobs of queue {queue}, and run these again?", yes)
    again = watched(
        f"retrying jobs of {queue}",
        lambda: found.retry_completed(
            job_id, count=count, before=None if older_than is None else begun(older_than)
        ),
        lambda: found.counts().completed,
    )
    if job_id is not None and not again:
        from bunqueue.errors import NotFound

        raise NotFound(f"queue {queue} has no completed job {job_id}")
    session.out.done(f"{plural(again)} run again", {"queue": queue, "count": again}, "count")


@verb(app, "bunqueue queue trim-events emails 1000 --yes", patient=True)
def trim_events(session: Session, queue: QueueName, max_length: KeepEvents, yes: Yes = False) -> None:
    """Delete the oldest events of a queue from the server's event log. Prints how many."""
    confirm(f"Forget all but the last {max_length:,} events of queue {queue}?", yes)
    count = session.queue(queue).trim_events(max_length)
    session.out.done(f"{plural(count, 'event')} forgotten", {"queue": queue, "count": count}, "count")
