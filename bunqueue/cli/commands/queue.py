"""``bunqueue queue``: queues, looked at and stopped. What empties them stands in `queue_emptying`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from ...readable import plural
from ..framework.completing import one_of
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import QueueName, argument, option
from ..output.output import Column, Kind, plain

app = noun("List queues; pause, count, clean, drain, remove one.")

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
Limit = Annotated[int, option("--limit", "-n", about="At most so many. Default: 100.", metavar="N")]
Offset = Annotated[int, option("--offset", about="Leave out so many at the beginning.", metavar="N")]
Newest = Annotated[bool, option("--newest", about="The newest first.")]
UniqueKey = Annotated[str, argument("KEY", "The unique key of a job.")]
Free = Annotated[bool, option("--free", about="Free it, so that another job may have it.")]
KeepEvents = Annotated[int, argument("N", "How many of the newest events to keep.")]


@verb(app, "bunqueue queue list", "bunqueue queue list --json | jq -r '.[].name'", name="list")
def list_(session: Session) -> None:
    """List all queues, with their jobs by state."""
    rows = [plain(each) for each in session.queue("all").dashboard_queues()]
    rows.sort(key=lambda row: row["name"])
    if not session.out.as_json:
        rows = [{**row, "waiting": row["waiting"] + row["prioritized"]} for row in rows]
    session.out.rows(rows, QUEUES, none="there are no queues yet; bunqueue push QUEUE DATA makes one")


@verb(app, "bunqueue queue counts emails", "bunqueue queue counts emails --by-priority")
def counts(
    session: Session,
    queue: QueueName,
    by_priority: Annotated[
        bool, option("--by-priority", about="Only those that wait for their turn or time, by priority.")
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
    """List jobs of a queue in the order in which they were made: of some states, or all."""
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
    """Give out no more jobs of a queue until it is resumed; all else goes on. Outlives a restart."""
    session.queue(queue).pause()
    session.out.done(f"queue {queue} is paused", {"queue": queue, "paused": True})


@verb(app, "bunqueue queue resume emails")
def resume(session: Session, queue: QueueName) -> None:
    """Give out jobs of a queue again."""
    session.queue(queue).resume()
    session.out.done(f"queue {queue} is not paused", {"queue": queue, "paused": False})


@verb(app, "bunqueue queue paused emails && echo paused")
def paused(session: Session, queue: QueueName) -> None:
    """Print whether a queue is paused: true or false."""
    found = session.queue(queue).is_paused()
    said = f"queue {queue} is {'' if found else 'not '}paused"
    session.out.done(said, {"queue": queue, "paused": found}, "paused")


@verb(app, "bunqueue queue unique-key emails order-17", "bunqueue queue unique-key emails order-17 --free")
def unique_key(session: Session, queue: QueueName, key: UniqueKey, free: Free = False) -> None:
    """Print the id of the job that holds a unique key. Exit status: 3 when none does."""
    from bunqueue.errors import NotFound

    holder = session.queue(queue).get_unique_job_id(key)
    if holder is None:
        raise NotFound(f"no job of queue {queue} holds the key {key!r}")
    if free:
        session.queue(queue).remove_unique_key(key)
    said = f"job {holder} {'held' if free else 'holds'} it"
    session.out.done(said, {"queue": queue, "key": key, "jobId": holder, "freed": free}, "jobId")


from . import queue_emptying as queue_emptying  # noqa: E402  # adds its verbs to `app`
