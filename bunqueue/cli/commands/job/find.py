"""``bunqueue job find``: search for jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from bunqueue.model.states import STATES
from bunqueue.text import plural

from ...framework import completing
from ...framework.completing import one_of
from ...framework.session import Session
from ...framework.shared import parameters_of, verb
from ...framework.values import WHEN, argument, begun, data, option, span_or_moment
from ...output.output import Column, Kind
from ...output.progress import advancing
from .one import app

F = TypeVar("F", bound=Callable[..., None])

FOUND = (
    Column("id", Kind.ID),
    Column("queue"),
    Column("name"),
    Column("state", Kind.STATE),
    Column("createdAt", Kind.TIME, "created"),
    Column("completedAt", Kind.TIME, "completed"),
    Column("failedReason", Kind.TEXT, "error"),
)
PLAN = (Column("jobs", Kind.NUMBER, "jobs to look at, at most"), Column("by", Kind.DATA, "found by"))
MANY = 100_000  # the number of jobs that are searched without notice; it takes about 0.1 s

Where = Annotated[
    str | None,
    argument("[WHERE]", "Conditions, as in 'state = failed and data.order.id = 7'; see docs/find.md."),
]
Queue = Annotated[
    str | None,
    option("--queue", "-q", about="Jobs of this queue.", metavar="QUEUE", complete=completing.queues),
]
States = Annotated[
    list[str] | None,
    option(
        "--state",
        about=f"{', '.join(STATES)}; give it again for more.",
        metavar="STATE",
        complete=one_of(*STATES),
    ),
]
Names = Annotated[
    list[str] | None,
    option("--name", about="Jobs of this name; give it again for more.", metavar="NAME"),
]
Tags = Annotated[
    list[str] | None,
    option("--tag", about="Jobs with this tag; given again, with all of them.", metavar="TAG"),
]
Groups = Annotated[
    list[str] | None, option("--group", about="Jobs of this group; give it again for more.", metavar="GROUP")
]
OfWorker = Annotated[
    str | None, option("--worker", about="Jobs that this worker has or had.", metavar="WORKER")
]
Error = Annotated[
    str | None, option("--error", about="Jobs whose last error contains this text.", metavar="TEXT")
]
ErrorType = Annotated[
    str | None, option("--error-type", about="Jobs whose last error has this class.", metavar="CLASS")
]
Data = Annotated[
    Any,
    option("--data", about="""Fields of the data, as in '{"order.id": 7}'.""", metavar="JSON", parser=data),
]


def _moment(flag: str, about: str) -> Any:
    return Annotated[Any, option(flag, about=about, metavar=WHEN, parser=span_or_moment)]


FILTERS = {
    "queue": Queue,
    "state": States,
    "name": Names,
    "tag": Tags,
    "group": Groups,
    "worker": OfWorker,
    "error": Error,
    "error_type": ErrorType,
    "created_after": _moment("--created-after", "Created from this moment on, or since so long ago."),
    "created_before": _moment("--created-before", "Created before this moment, or longer ago than this."),
    "finished_after": _moment("--finished-after", "Finished from this moment on, or since so long ago."),
    "finished_before": _moment("--finished-before", "Finished before this moment, or longer ago than this."),
    "data": Data,
}
"""The filters for jobs, as flags."""
_TIMES = ("created_after", "created_before", "finished_after", "finished_before")

Limit = Annotated[int, option("--limit", "-n", about="The maximum number. Default: 100.", metavar="N")]
Cursor = Annotated[
    str | None, option("--cursor", about="Go on where an earlier search ended.", metavar="CURSOR")
]
Oldest = Annotated[bool, option("--oldest-first", about="The oldest jobs first, not the newest.")]
Counts = Annotated[bool, option("--count", about="Only print how many there are.")]
Explain = Annotated[
    bool, option("--explain", about="Only print how many jobs would have to be looked at, and why.")
]


def with_filter(function: F) -> F:
    """Replace the ``**filters`` of a verb by the flags that filter jobs."""
    own = [each for each in parameters_of(function) if each.name != "filters"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in FILTERS.items()
    ]
    vars(function)["__signature__"] = inspect.Signature([*own, *more])
    return function


def searched(session: Session, where: str | None, filters: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The place to search, a queue or the whole server, and the filter in the client's format."""
    given = {
        name: begun(value) if name in _TIMES else value
        for name, value in filters.items()
        if value not in (None, [])
    }
    queue = given.pop("queue", None)
    if where is not None:
        given["where"] = where
    return session.admin if queue is None else session.queue(str(queue)), given


@contextmanager
def watching(session: Session, what: str, place: Any, filters: Mapping[str, Any]) -> Iterator[Any]:
    """Say how many jobs are searched, if there are many, and show the progress. Yields the function to
    call."""
    plan = place.explain_find(**filters)
    if plan.jobs > MANY:
        session.out.note(f"{what}: looking at {plural(plan.jobs)}, as no index leads to these")
    with advancing(what, plan.jobs) as advance:
        yield lambda scanned, jobs: advance(min(scanned, plan.jobs))


@verb(
    app,
    "bunqueue job find --state failed --queue emails",
    "bunqueue job find 'name = welcome and created > 2h ago' --tag vip",
    "bunqueue job find 'data.order.id = 7' --json | jq -r '.[].id'",
    "bunqueue job find --state failed --error timeout --count",
    name="find",
    patient=True,
)
@with_filter
def find(
    session: Session,
    where: Where = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    oldest_first: Oldest = False,
    count: Counts = False,
    explain: Explain = False,
    **filters: Any,
) -> None:
    """Find jobs in any state, in all queues or one, the newest first.

    If there are more, the cursor for the next page is printed on standard error.
    """
    place, given = searched(session, where, filters)
    if explain:
        session.out.record(place.explain_find(**given), PLAN)
        return
    with watching(session, "searching", place, given) as on_progress:
        if count:
            number = place.count_found(on_progress=on_progress, **given)
        else:
            page = place.find(
                limit=limit, cursor=cursor, oldest_first=oldest_first, on_progress=on_progress, **given
            )
    if count:
        session.out.done(plural(number), {"count": number}, "count")
        return
    session.out.rows(page.jobs, FOUND, none="there are no such jobs")
    _note_unshown(session, page)


def _note_unshown(session: Session, page: Any) -> None:
    if page.unreadable:
        session.out.note(f"{plural(page.unreadable)} could not be read; see bunqueue doctor")
    if page.cursor is not None:
        session.out.note(f"there may be more: --cursor {page.cursor}")
