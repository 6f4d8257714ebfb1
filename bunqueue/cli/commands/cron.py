"""``bunqueue cron``: schedules, which push jobs at set times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from bunqueue.model.job_options import RARE_OPTIONS
from bunqueue.server.settings import SettingsError

from ..framework import completing
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import SPAN, Yes, argument, data, option, span
from ..output.output import Column, Kind, plain
from ..output.progress import confirm
from .job_options import given, with_job_options

if TYPE_CHECKING:
    from bunqueue.protocol.commands.cron import CronView

app = noun("Schedules: list, add, run, pause or delete them, and show when they run.")

CRONS = (
    Column("name", Kind.ID),
    Column("queue"),
    Column("schedule", Kind.TEXT),
    Column("repeatEvery", Kind.SPAN, "every"),
    Column("timezone", Kind.TEXT, "time zone"),
    Column("nextRun", Kind.TIME, "next run"),
    Column("executions", Kind.NUMBER, "runs"),
    Column("paused", Kind.FLAG),
    Column("lastRunAt", Kind.TIME, "last run"),
    Column("lastOutcome", Kind.STATE, "outcome"),
    Column("missed", Kind.NUMBER),
    Column("app"),
)
CRON = (
    *CRONS,
    Column("lastJobId", Kind.ID, "last job"),
    Column("lastEndedAt", Kind.TIME, "ended"),
    Column("maxLimit", Kind.NUMBER, "at most"),
    Column("jobName"),
    Column("priority", Kind.NUMBER),
    Column("preventOverlap", Kind.FLAG),
    Column("skipIfNoWorker", Kind.FLAG),
    Column("skipMissedOnRestart", Kind.FLAG),
    Column("overlap"),
    Column("onMissed"),
    Column("maxBacklog", Kind.NUMBER),
    Column("backlog", Kind.NUMBER),
    Column("uniqueKey"),
    Column("dedup", Kind.DATA),
    Column("jobOptions", Kind.DATA),
    Column("data", Kind.DATA),
)
RUNS = (Column("at", Kind.TIME, "here"), Column("local", Kind.TEXT, "there"), Column("in", Kind.SPAN))
# The same as in bunqueue.client.options.cron, which takes too long to load for a help text.
OF_JOBS = (
    "delay",
    "timeout",
    "max_attempts",
    "backoff",
    "retry_on",
    "never_on",
    "ttl",
    "lifo",
    "remove_on_complete",
    "remove_on_fail",
    "durable",
    "tags",
    "headers",
    "stack_trace_limit",
    *RARE_OPTIONS,
)
OF_KEYS = ("unique_key", "unique_for", "on_conflict", "unique_states")
OF_BACKOFFS = ("backoff_type", "backoff_max", "backoff_jitter")
MAX_RUNS = 1000

Name = Annotated[str, argument("NAME", "The name of the schedule.", completing.crons)]
MaybeName = Annotated[str | None, argument("[NAME]", "The name of a schedule.", completing.crons)]
Queue = Annotated[
    str, option("--queue", "-q", about="The queue of its jobs.", metavar="QUEUE", complete=completing.queues)
]
OfQueue = Annotated[
    str | None,
    option(
        "--queue", "-q", about="Only schedules of this queue.", metavar="QUEUE", complete=completing.queues
    ),
]
Data = Annotated[
    Any, option("--data", "-D", about="The data of its jobs: JSON, @FILE or -.", metavar="DATA", parser=data)
]
Expression = Annotated[
    str | None,
    option(
        "--schedule", "-s", about="5 fields, 6 with leading seconds, or @hourly, @daily, ...", metavar="CRON"
    ),
]
Every = Annotated[
    float | None,
    option(
        "--every", "-e", about="The time between two jobs, instead of --schedule.", metavar=SPAN, parser=span
    ),
]
Zone = Annotated[
    str | None, option("--timezone", "-z", about="Such as Europe/Rome. Default: UTC.", metavar="ZONE")
]
JobName = Annotated[str | None, option("--job-name", about="The name of its jobs.", metavar="NAME")]
Priority = Annotated[int | None, option("--priority", "-P", about="The priority of its jobs.", metavar="N")]
MaxRuns = Annotated[int | None, option("--limit", about="End after this many jobs.", metavar="N")]
Immediately = Annotated[bool, option("--immediately", about="Add the first job now, if the schedule is new.")]
Overlap = Annotated[
    bool | None,
    option(
        "--prevent-overlap/--allow-overlap", about="Whether to add no job while the last one waits or runs."
    ),
]
OverlapPolicy = Annotated[
    Any,
    option(
        "--overlap",
        about="A run while the last job has not ended: allow, skip, queue or cancel (the last one).",
        metavar="POLICY",
        parser=str,
    ),
]
OnMissed = Annotated[
    Any,
    option(
        "--on-missed",
        about="How many runs make up for those due while the server was down: none, one or all.",
        metavar="HOW-MANY",
        parser=str,
    ),
]
MaxBacklog = Annotated[
    int | None,
    option(
        "--max-backlog", about="For --overlap queue and --on-missed all: how many. Default: 100.", metavar="N"
    ),
]
NoWorker = Annotated[bool, option("--skip-if-no-worker", about="Add no job while the queue has no worker.")]
Missed = Annotated[
    bool | None,
    option(
        "--skip-missed/--catch-up", about="Whether runs that were due while the server was down are skipped."
    ),
]
OfApp = Annotated[str | None, option("--app", about="Only schedules that this app declares.", metavar="NAME")]
Move = Annotated[bool, option("--move", about="Take the name from a schedule of another queue.")]
Target = Annotated[str, argument("MODULE[:NAME]", "The app, as for bunqueue worker.")]
Folder = Annotated[
    str, option("--app-dir", about="The folder of the module. Default: the current one.", metavar="DIR")
]
DryRun = Annotated[bool, option("--dry-run", about="Only show what would be removed.")]
HowMany = Annotated[int, option("--count", "-n", about="How many. Default: 10.", metavar="N")]


@verb(app, "bunqueue cron list", "bunqueue cron list --queue reports", name="list")
def list_(session: Session, queue: OfQueue = None, app: OfApp = None) -> None:
    """List the schedules of all queues, or of one, by name, with their next run and the last outcome."""
    found = session.admin.list_crons(queue)
    rows = [_row(session, each) for each in found if app is None or each.app == app]
    session.out.rows(rows, CRONS, none="there are no schedules")


@verb(
    app,
    "bunqueue cron add nightly --queue reports --schedule '0 3 * * *' --timezone Europe/Rome",
    """bunqueue cron add pulse --queue checks --every 30s --data '{"deep": false}' --max-attempts 1""",
)
@with_job_options((*OF_JOBS, *OF_BACKOFFS, *OF_KEYS))
def add(
    session: Session,
    name: Name,
    queue: Queue,
    data: Data = None,
    schedule: Expression = None,
    every: Every = None,
    timezone: Zone = None,
    job_name: JobName = None,
    priority: Priority = None,
    limit: MaxRuns = None,
    immediately: Immediately = False,
    prevent_overlap: Overlap = None,
    skip_if_no_worker: NoWorker = False,
    skip_missed: Missed = None,
    overlap: OverlapPolicy = None,
    on_missed: OnMissed = None,
    max_backlog: MaxBacklog = None,
    move: Move = False,
    **options: Any,
) -> None:
    """Add a schedule, or replace the queue's schedule of that name.

    Give --schedule or --every. If that stays the same, so does the time of the next run. A name that belongs
    to another queue is refused without --move.
    """
    _check_rhythm(schedule, every, timezone)
    of_jobs = given(options)
    cron = session.queue(queue).upsert_cron(
        name,
        data,
        schedule=schedule,
        every=every,
        timezone=timezone,
        job_name=job_name,
        priority=priority,
        limit=limit,
        immediately=immediately or None,
        prevent_overlap=prevent_overlap,
        skip_if_no_worker=skip_if_no_worker or None,
        skip_missed_on_restart=skip_missed,
        overlap=overlap,
        on_missed=on_missed,
        max_backlog=max_backlog,
        unique_key=of_jobs.pop("unique_key", None),
        dedup=of_jobs.pop("dedup", None),
        move=move,
        job_options=of_jobs or None,
    )
    session.out.record(_row(session, cron), CRON)


def _check_rhythm(schedule: str | None, every: float | None, timezone: str | None) -> None:
    """Raise SettingsError unless there is exactly one valid rhythm."""
    if (schedule is None) == (every is None):
        raise SettingsError("--schedule: give either that, or --every")
    if schedule is not None:
        _runs(schedule, timezone, 0, 1)


def _row(session: Session, cron: CronView) -> dict[str, Any]:
    """A schedule with all its settings; outside of JSON, the fields of its last run are on the same level."""
    from msgspec.structs import asdict, fields

    values = asdict(cron)
    row = {field.encode_name: plain(values[field.name]) for field in fields(cron)}
    run = cron.last_run
    if run is not None and not session.out.as_json:
        row |= {"lastRunAt": run.at_ms, "lastJobId": run.job_id, "lastOutcome": run.outcome or "not ended"}
        row["lastEndedAt"] = run.ended_at_ms
    return row


def _found(session: Session, name: str) -> CronView:
    from bunqueue.errors import NotFound

    cron = session.admin.get_cron(name)
    if cron is None:
        raise NotFound(f"there is no schedule {name!r}; bunqueue cron list")
    return cron


@verb(app, "bunqueue cron get nightly")
def get(session: Session, name: Name) -> None:
    """Print a schedule."""
    session.out.record(_row(session, _found(session, name)), CRON)


@verb(app, "bunqueue cron pause nightly")
def pause(session: Session, name: Name) -> None:
    """Pause a schedule: it adds no jobs until it is resumed. Runs in between are skipped."""
    _found(session, name)
    session.admin.pause_cron(name)
    session.out.done(f"schedule {name} is paused", {"name": name, "paused": True})


@verb(app, "bunqueue cron resume nightly")
def resume(session: Session, name: Name) -> None:
    """Resume a schedule: it adds jobs again, from its next run on."""
    _found(session, name)
    session.admin.resume_cron(name)
    session.out.done(f"schedule {name} is not paused", {"name": name, "paused": False})


@verb(app, "bunqueue cron run nightly")
def run(session: Session, name: Name) -> None:
    """Add the job of a schedule now, even if it is paused. Its next run stays the same.

    If the schedule prevents overlap and its last job still exists, no job is added, and that id is printed.
    """
    _found(session, name)
    job = session.admin.run_cron(name)
    if not job.created:
        session.out.note(f"bunqueue: the last job of schedule {name} is still there, so none was added")
    facts = {"id": job.id, "queue": job.queue, "existing": not job.created}
    session.out.done(f"job {job.id} of schedule {name} is in queue {job.queue}", facts, "id")


@verb(
    app,
    "bunqueue cron prune tasks:app --dry-run",
    "bunqueue cron prune tasks:app --yes",
)
def prune(
    session: Session, target: Target, app_dir: Folder = ".", dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Remove the schedules that an app declared once, but no longer declares.

    First stop all programs with the old declarations: they declare them again when they start. The app is
    imported; the server is the one that the options here name.
    """
    from bunqueue.app.schedules import stale_of

    from ..framework.target import app_of

    app = app_of(target, app_dir)
    admin = session.admin
    stale = stale_of(app.name, app._schedules, admin.list_crons())
    rows = [_row(session, each) for each in stale]
    if dry_run or not stale:
        session.out.rows(rows, CRONS, none=f"app {app.name} declares all schedules that it has")
        return
    names = ", ".join(each.name for each in stale)
    confirm(f"Remove {len(stale)} of the schedules of app {app.name}: {names}?", yes)
    removed = [
        row for each, row in zip(stale, rows, strict=True) if admin.delete_cron(each.name, app=app.name)
    ]
    session.out.rows(removed, CRONS, none="none was left to remove")


@verb(app, "bunqueue cron delete nightly --yes")
def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Remove a schedule. The jobs that it has added stay."""
    cron = _found(session, name)
    confirm(f"Remove schedule {name} of queue {cron.queue}?", yes)
    session.admin.delete_cron(name)
    session.out.done(f"schedule {name} is removed", {"name": name, "removed": True})


@verb(
    app,
    "bunqueue cron next nightly",
    "bunqueue cron next --schedule '30 2 * * *' --timezone Europe/Rome --count 5",
    name="next",
)
def next_(
    session: Session,
    name: MaybeName = None,
    schedule: Expression = None,
    timezone: Zone = None,
    count: HowMany = 10,
) -> None:
    """Print the next runs of a schedule, or of an expression, which needs no server.

    A pipe gets each run in epoch ms, as local time in the schedule's time zone, and as ms from now.
    """
    from bunqueue.client.options import checks

    checks.whole("count", count)
    if count > MAX_RUNS:
        raise SettingsError(f"--count must be at most {MAX_RUNS}, not {count}")
    if (name is None) == (schedule is None):
        raise SettingsError("NAME: give that of a schedule, or --schedule")
    now = time.time_ns() // 1_000_000
    if name is not None:
        cron = _found(session, name)
        runs, timezone = _runs_of(cron, count), cron.timezone
        if cron.paused is True:
            session.out.note(
                f"bunqueue: schedule {name} is paused: these runs are left out until it is resumed"
            )
    else:
        runs = _runs(str(schedule), timezone, now, count)
    session.out.rows([_run(at, timezone, now) for at in runs], RUNS, none="it never runs again")


def _runs_of(cron: CronView, count: int) -> list[int]:
    if cron.max_limit is not None and cron.max_limit > 0:
        count = min(count, cron.max_limit - cron.executions)
    first = int(cron.next_run_ms)
    if cron.schedule is None:
        every = int(cron.repeat_every or 0)
        return [first + every * number for number in range(count)]
    return [first, *_runs(cron.schedule, cron.timezone, first, count - 1)][: max(0, count)]


def _runs(expression: str, timezone: str | None, after: int, count: int) -> list[int]:
    from bunqueue.model.schedule import ScheduleError, next_run

    runs: list[int] = []
    try:
        while len(runs) < count:
            after = next_run(expression, timezone, after)
            runs.append(after)
    except ScheduleError as error:
        if not runs:
            zone = f" in {timezone}" if timezone else ""
            raise SettingsError(f"--schedule: {expression!r}{zone} is not allowed: {error}") from None
    return runs


def _run(at: int, timezone: str | None, now: int) -> dict[str, Any]:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    local = datetime.fromtimestamp(at / 1000, ZoneInfo(timezone or "UTC"))
    return {"at": at, "local": local.strftime("%a %Y-%m-%d %H:%M:%S %Z"), "in": at - now}
