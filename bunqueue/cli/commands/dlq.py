"""``bunqueue dlq``: dead letters, the jobs that failed for good."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from bunqueue.model.dead_letters import CAUSES
from bunqueue.text import plural

from ..framework.completing import one_of
from ..framework.session import Session
from ..framework.shared import noun, parameters_of, verb
from ..framework.values import SPAN, WHEN, JobId, QueueName, Yes, begun, option, span, span_or_moment, whole
from ..output.output import Column, Kind, plain
from ..output.progress import confirm, watched
from .dropped_letters import loss_text
from .errors import GROUPS, table_of

if TYPE_CHECKING:
    from bunqueue.client.queue.queue import DlqFilter

F = TypeVar("F", bound=Callable[..., None])

app = noun("Dead letters: list, retry or purge them.")

PAGE = 1_000  # dead letters in one reply
GROUPS_SHOWN = 20  # groups of errors in the statistics
SERVER = "server"  # given instead of a bound: use the one in the server's settings
LETTERS = (
    Column("id", Kind.ID),
    Column("name"),
    Column("enteredAt", Kind.TIME, "since"),
    Column("cause"),
    Column("attempts", Kind.NUMBER),
    Column("expiresAt", Kind.TIME, "until"),
    Column("error"),
)
STATS = (
    Column("total", Kind.NUMBER),
    Column("byCause", Kind.COUNTS),
    Column("pendingRetry", Kind.NUMBER, "retry due"),
    Column("expired", Kind.NUMBER),
    Column("oldestEntry", Kind.TIME, "oldest"),
    Column("newestEntry", Kind.TIME, "newest"),
    Column("dropped", Kind.NUMBER),
    Column("lastDropped", Kind.TIME, "the last one"),
)
CONFIG = (
    Column("autoRetry", Kind.FLAG, "retried by themselves"),
    Column("autoRetryInterval", Kind.SPAN, "every"),
    Column("maxAutoRetries", Kind.NUMBER, "at most so often"),
    Column("maxAge", Kind.SPAN, "kept for"),
    Column("maxEntries", Kind.NUMBER, "kept at most"),
)

Limit = Annotated[int, option("--limit", "-n", about="The maximum number. Default: 100.", metavar="N")]
Offset = Annotated[int, option("--offset", about="Skip this many.", metavar="N")]
Oldest = Annotated[bool, option("--oldest", about="The oldest first.")]
Reason = Annotated[
    str | None,
    option("--reason", about=f"{', '.join(CAUSES)}.", metavar="REASON", complete=one_of(*CAUSES)),
]
Older = Annotated[
    Any, option("--older-than", about="Dead for longer than this.", metavar=WHEN, parser=span_or_moment)
]
Newer = Annotated[
    Any, option("--newer-than", about="Dead for less than this.", metavar=WHEN, parser=span_or_moment)
]
Named = Annotated[str | None, option("--name", about="Jobs of this name.", metavar="NAME")]
Containing = Annotated[
    str | None, option("--error", about="Jobs whose error contains this text, in any case.", metavar="TEXT")
]
OfClass = Annotated[
    str | None, option("--error-type", about="Jobs with an error of this class.", metavar="CLASS")
]
OfGroup = Annotated[
    str | None,
    option("--error-group", about="Jobs of this group of errors: see bunqueue errors.", metavar="GROUP"),
]
FILTERS = {
    "reason": Reason,
    "name": Named,
    "error": Containing,
    "error_type": OfClass,
    "error_group": OfGroup,
    "older_than": Older,
    "newer_than": Newer,
}
"""The filters for dead letters, as flags."""
OneJob = Annotated[str | None, option("--id", about="Only this job.", metavar="ID")]
Count = Annotated[
    int | None, option("--count", "-n", about="At most this many, the oldest first.", metavar="N")
]
AutoRetry = Annotated[
    bool | None, option("--auto-retry/--no-auto-retry", about="Whether they are retried automatically.")
]
Interval = Annotated[
    float | None,
    option("--auto-retry-interval", about="The time between automatic retries.", metavar=SPAN, parser=span),
]
MaxRetries = Annotated[
    int | None, option("--max-auto-retries", about="The maximum of automatic retries.", metavar="N")
]
MaxAge = Annotated[
    str | None,
    option("--max-age", about="Removed after this time; never: kept forever.", metavar=f"{SPAN}|never"),
]
MaxEntries = Annotated[
    Any,
    option(
        "--max-entries",
        about="How many are kept; beyond, the oldest is dropped. 0: no limit; server: as its settings say.",
        metavar="N|server",
        parser=lambda text: text if text == SERVER else whole(text),
    ),
]


def with_filter(function: F) -> F:
    """Replace the ``**filters`` of a verb by the flags that filter dead letters."""
    own = [each for each in parameters_of(function) if each.name != "filters"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in FILTERS.items()
    ]
    vars(function)["__signature__"] = inspect.Signature([*own, *more])
    return function


def _which(filters: Mapping[str, Any]) -> DlqFilter:
    """The filter for the given flags; ages become moments in epoch ms."""
    given = {
        name: begun(value) if name in ("older_than", "newer_than") else value
        for name, value in filters.items()
        if value is not None
    }
    return cast("DlqFilter", given)


@verb(
    app,
    "bunqueue dlq list emails",
    "bunqueue dlq list emails --reason timeout --newer-than 1h --json",
    "bunqueue dlq list emails --limit 100000 --json > dead.json",
    "bunqueue dlq list emails --name welcome --error 'no such mailbox'",
    name="list",
    patient=True,
)
@with_filter
def list_(
    session: Session,
    queue: QueueName,
    limit: Limit = 100,
    offset: Offset = 0,
    oldest: Oldest = False,
    **filters: Any,
) -> None:
    """List dead letters of a queue, the newest first. JSON has their jobs and all their attempts."""
    from bunqueue.client.options import checks

    checks.whole("limit", limit)
    checks.whole("offset", offset, 0)
    of_queue, which = session.queue(queue), _which(filters)
    total = of_queue.count_dlq(**which)
    found: list[Any] = []
    while len(found) < limit:
        size = min(limit - len(found), PAGE, total - offset - len(found))
        if size <= 0:
            break
        start = offset + len(found)
        page = of_queue.dlq_entries(limit=size, offset=start if oldest else total - start - size, **which)
        if not page:  # others have removed some
            break
        found += page if oldest else reversed(page)
    if session.out.as_json:
        session.out.rows(found, LETTERS, none="")
    else:
        rows = []
        for letter in found:
            row = plain(letter)
            more = {"id": letter.job.id, "name": letter.job.name, "attempts": len(letter.attempts)}
            rows.append({**row, **more})
        session.out.rows(rows, LETTERS, none="there are no such dead letters")
    if (rest := total - offset - len(found)) > 0:
        session.out.note(
            f"{plural(rest, 'more dead letter')}: --offset {offset + len(found)} goes on, --limit takes more"
        )
    if text := loss_text(of_queue):
        session.out.note(text)


@verb(
    app,
    "bunqueue dlq retry emails --id 01980f2e-...",
    "bunqueue dlq retry emails --reason timeout --newer-than 1d",
    "bunqueue dlq retry emails --error 'connection refused'",
    "bunqueue dlq retry emails",
    patient=True,
)
@with_filter
def retry(
    session: Session, queue: QueueName, job_id: OneJob = None, count: Count = None, **filters: Any
) -> None:
    """Retry dead letters with all their attempts: one, those that match, or all. Prints how many.

    Cancelled jobs are left out, unless you give their --id or --reason cancelled.
    """
    found = session.queue(queue)
    retried = watched(
        f"retrying dead letters of {queue}",
        lambda: found.retry_dlq(job_id, count=count, **_which(filters)),
        lambda: found.counts().failed,
    )
    _must_be_there(queue, job_id, retried)
    text = f"{plural(retried)} run again"
    record = {"queue": queue, "count": int(retried)}
    if retried.cancelled:
        record["cancelled"] = retried.cancelled
        text += f"; {retried.cancelled} cancelled left out, see --reason cancelled"
    if retried.dropped:
        record["dropped"] = retried.dropped
        text += f"; {retried.dropped:,} more are gone: they had been dropped, see bunqueue dlq stats {queue}"
    session.out.done(text, record, "count")


@verb(app, "bunqueue dlq count emails", "bunqueue dlq count emails --reason timeout", patient=True)
@with_filter
def count(session: Session, queue: QueueName, **filters: Any) -> None:
    """Print how many dead letters a queue has: all, or those that match."""
    number = session.queue(queue).count_dlq(**_which(filters))
    session.out.done(plural(number, "dead letter"), {"queue": queue, "count": number}, "count")


@verb(app, "bunqueue dlq remove emails 01980f2e-... --yes")
def remove(session: Session, queue: QueueName, job_id: JobId, yes: Yes = False) -> None:
    """Remove one dead letter."""
    confirm(f"Remove dead letter {job_id} of queue {queue}?", yes)
    _must_be_there(queue, job_id, session.queue(queue).remove_dlq_job(job_id))
    session.out.done(f"removed dead letter {job_id}", {"queue": queue, "id": job_id, "removed": True})


def _must_be_there(queue: str, job_id: str | None, found: int | bool) -> None:
    from bunqueue.errors import NotFound

    if job_id is not None and not found:
        raise NotFound(f"queue {queue} has no dead letter {job_id}")


@verb(
    app,
    "bunqueue dlq purge emails",
    "bunqueue dlq purge emails --yes",
    "bunqueue dlq purge emails --error-group 5f0c1d2e3a4b",
    patient=True,
)
@with_filter
def purge(session: Session, queue: QueueName, yes: Yes = False, **filters: Any) -> None:
    """Remove dead letters of a queue: those that match, or all. Prints how many."""
    found, which = session.queue(queue), _which(filters)
    if not yes:
        number, every = found.count_dlq(**which), "" if which else "all "
        confirm(f"Remove {every}{plural(number, 'dead letter')} of queue {queue}?", yes)
    count = watched(f"purging {queue}", lambda: found.purge_dlq(**which), lambda: found.counts().failed)
    text = f"removed {plural(count, 'dead letter')} of queue {queue}"
    session.out.done(text, {"queue": queue, "count": count}, "count")


@verb(app, "bunqueue dlq stats emails", patient=True)
def stats(session: Session, queue: QueueName) -> None:
    """Print statistics of the dead letters of a queue, and their errors in groups."""
    found = session.queue(queue)
    stats, groups = found.dlq_stats(), found.error_groups(limit=GROUPS_SHOWN)
    if session.out.as_json:
        session.out.record({**plain(stats), "errors": [plain(group) for group in groups]}, STATS)
        return
    lost = {"dropped": stats.dropped.count, "lastDropped": stats.dropped.last_at_ms}
    session.out.record({**plain(stats), **lost}, STATS)
    if groups:
        session.out.note("")
        session.out.rows(table_of(groups), GROUPS, none="")
    if text := loss_text(found):
        session.out.note(text)


@verb(
    app,
    "bunqueue dlq config emails",
    "bunqueue dlq config emails --auto-retry --auto-retry-interval 1h --max-auto-retries 5",
    "bunqueue dlq config emails --max-age never",
)
def config(
    session: Session,
    queue: QueueName,
    auto_retry: AutoRetry = None,
    auto_retry_interval: Interval = None,
    max_auto_retries: MaxRetries = None,
    max_age: MaxAge = None,
    max_entries: MaxEntries = None,
) -> None:
    """Print how dead letters of a queue are kept and retried. With options, change that first."""
    from msgspec import UNSET

    found = session.queue(queue)
    given = (auto_retry, auto_retry_interval, max_auto_retries, max_age, max_entries)
    if any(each is not None for each in given):
        found.set_dlq_config(
            auto_retry=auto_retry,
            auto_retry_interval=auto_retry_interval,
            max_auto_retries=max_auto_retries,
            max_age=UNSET if max_age is None else None if max_age == "never" else span(max_age),
            max_entries=UNSET if max_entries is None else None if max_entries == SERVER else max_entries,
        )
    session.out.record(found.dlq_config(), CONFIG)
