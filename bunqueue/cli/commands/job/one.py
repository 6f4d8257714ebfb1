"""``bunqueue job``: the verbs for one job. First come the verbs that read it, then those that change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from ...framework.session import Session
from ...framework.shared import noun, verb
from ...framework.values import SPAN, JobId, JsonData, Yes, argument, option, span, span_or_moment
from ...output.output import Column, Kind, plain
from ...output.progress import confirm

app = noun("Show a job, wait for it, change it, cancel it.")

TIMES = ("createdAt", "runAt", "startedAt", "completedAt", "lastHeartbeat")
JOB = (
    Column("id", Kind.ID),
    Column("queue"),
    Column("name"),
    Column("state", Kind.STATE),
    Column("data", Kind.DATA),
    Column("returnvalue", Kind.DATA, "result"),
    Column("failedReason", Kind.TEXT, "error"),
    Column("progress", Kind.NUMBER),
    Column("progressMessage"),
    Column("priority", Kind.NUMBER),
    Column("attempts", Kind.NUMBER, "failed attempts"),
    Column("maxAttempts", Kind.NUMBER),
    Column("stallCount", Kind.NUMBER, "stalls"),
    *(Column(name, Kind.TIME) for name in TIMES),
    Column("addedBy", Kind.TEXT, "added by"),
    Column("schedule"),
    Column("scheduledFor", Kind.TIME),
    Column("backoff", Kind.SPAN),
    Column("timeout", Kind.SPAN),
    Column("ttl", Kind.SPAN),
    Column("uniqueKey"),
    Column("groupId", Kind.TEXT, "group"),
    Column("tags", Kind.DATA),
    Column("parentId", Kind.TEXT, "parent"),
    Column("dependsOn", Kind.DATA),
    Column("childrenIds", Kind.DATA, "children"),
)
MOMENT = (
    Column("timestamp", Kind.TIME, "when"),
    Column("state", Kind.STATE),
    Column("attempt", Kind.NUMBER),
    Column("error"),
)
LOG_LINE = (Column("timestamp", Kind.TIME, "when"), Column("level"), Column("message"))
CHILD = (Column("child", Kind.ID), Column("state", Kind.STATE), Column("value", Kind.DATA), Column("error"))

ATTEMPT = (
    Column("number", Kind.NUMBER, "attempt"),
    Column("outcome"),
    Column("startedAt", Kind.TIME, "began"),
    Column("endedAt", Kind.TIME, "ended"),
    Column("delay", Kind.SPAN, "next after"),
    Column("errorType", Kind.TEXT, "type"),
    Column("error"),
    Column("worker"),
)
REASON = (
    Column("kind"),
    Column("text", Kind.PROSE, "why"),
    Column("until", Kind.TIME),
    Column("ids", Kind.DATA, "jobs"),
)

Timeout = Annotated[
    float | None, option("--timeout", about="Wait no longer than this.", metavar=SPAN, parser=span)
]
Start = Annotated[int, option("--start", about="The first line to print, counted from 0.", metavar="N")]
End = Annotated[int, option("--end", about="The last line to print; -1 is the last of all.", metavar="N")]

PROGRESS = (Column("progress", Kind.NUMBER), Column("message"))
NEGATIVE = {"ignore_unknown_options": True}  # a negative number is not a flag

Reason = Annotated[str | None, option("--reason", about="The reason that the worker sees.", metavar="TEXT")]
Grace = Annotated[
    float,
    option(
        "--grace", about="How long a running job may take to stop. Default: 10s.", metavar=SPAN, parser=span
    ),
]
Priority = Annotated[int, argument("PRIORITY", "Higher runs first.")]
Lifo = Annotated[
    bool | None,
    option("--lifo/--fifo", about="Whether it runs before or after other jobs of its priority."),
]
Delay = Annotated[Any, argument("TIME", "How much later to run it, or when.", parser=span_or_moment)]
Percent = Annotated[float | None, argument("[PERCENT]", "0 to 100.")]
ProgressText = Annotated[
    str | None, option("--message", "-m", about="What the job is doing.", metavar="TEXT")
]
LogText = Annotated[str, argument("MESSAGE", "The line.")]
Level = Annotated[str, option("--level", about="Default: info.", metavar="LEVEL")]
Keep = Annotated[int, option("--keep", about="How many of the last lines to keep. Default: 0.", metavar="N")]
Parent = Annotated[str, argument("PARENT", "The id of the job that will wait.")]


@verb(app, "bunqueue job get 01980f2e-...", "bunqueue job get 01980f2e-... --json | jq .data")
def get(session: Session, job_id: JobId) -> None:
    """Print a job: its data, its state and its history."""
    job = session.found(job_id)
    row = plain(job)
    session.out.record(row, JOB)
    if session.out.is_terminal and job.timeline:
        session.out.text("")
        session.out.rows(job.timeline, MOMENT, none="")


@verb(app, "bunqueue job state 01980f2e-...")
def state(session: Session, job_id: JobId) -> None:
    """Print the state of a job: waiting, delayed, active, completed, failed or cancelled."""
    found = session.admin.get_state(job_id)
    if found == "unknown":
        session.found(job_id)  # reports what is known of the job
    session.out.done(found, {"id": job_id, "state": found}, "state")


@verb(app, "bunqueue job result 01980f2e-...")
def result(session: Session, job_id: JobId) -> None:
    """Print the result of a completed job as JSON, without waiting.

    Exit status: 7 when the job has not completed.
    """
    from bunqueue.errors import WrongState

    job = session.found(job_id)
    if job.state != "completed":
        text = f"job {job_id} is {job.state}, so it has no result; bunqueue job wait {job_id}"
        raise WrongState(text, job_id=job_id, bound="completed")
    _print_result(session, job_id, job.result)


def _print_result(session: Session, job_id: str, value: object) -> None:
    from ....protocol.encoded import for_people
    from ...output.output import encoded

    if session.out.as_json:
        session.out.done("", {"id": job_id, "state": "completed", "result": value})
    else:
        session.out.text(encoded(for_people(plain(value))))


@verb(app, "bunqueue job wait 01980f2e-... --timeout 5m", patient=True)
def wait(session: Session, job_id: JobId, timeout: Timeout = None) -> None:
    """Wait until a job has ended, and print its result as JSON.

    Exit status: 5 after --timeout; 8 when the job failed, was cancelled or was dropped.
    """
    from ...output.progress import waiting

    with waiting(f"waiting for job {job_id}"):
        value = session.job(job_id).result(timeout)
    _print_result(session, job_id, value)


@verb(app, "bunqueue job logs 01980f2e-...", "bunqueue job logs 01980f2e-... --start 0 --end 9")
def logs(session: Session, job_id: JobId, start: Start = 0, end: End = -1) -> None:
    """Print the log of a job, the oldest line first. A job keeps its last 100 lines."""
    session.out.rows(session.job(job_id).logs(start, end), LOG_LINE, none="its log is empty")


@verb(
    app, "bunqueue job attempts 01980f2e-...", "bunqueue job attempts 01980f2e-... --json | jq -r '.[].stack'"
)
def attempts(session: Session, job_id: JobId) -> None:
    """List the attempts of a job that are over, the oldest first: when and how each ended, the class of its
    error, and how long the job then waited. JSON has their tracebacks."""
    session.out.rows(session.job(job_id).attempts(), ATTEMPT, none="no attempt is over")


@verb(app, "bunqueue job why 01980f2e-...")
def why(session: Session, job_id: JobId) -> None:
    """Print everything that makes a job wait now; nothing for a job that does not wait."""
    job = session.found(job_id)
    found = session.queue(job.queue).handle(job_id).why_waiting()
    session.out.rows(found, REASON, none=f"it does not wait: it is {job.state}")


@verb(app, "bunqueue job children 01980f2e-...")
def children(session: Session, job_id: JobId) -> None:
    """Print the children of a job, with their states and results."""
    job = session.found(job_id)
    handle = session.job(job_id)
    values: dict[str, Any] = handle.children_values(partial=True)
    errors = handle.failed_children()
    by_id = {key.partition(":")[2]: key for key in (*values, *errors)}
    rows = []
    for child in dict.fromkeys([*job.children_ids, *by_id]):
        key = by_id.get(child, child)
        rows.append(
            {
                "child": child,
                "state": session.admin.get_state(child),
                "value": values.get(key),
                "error": errors.get(key),
            }
        )
    session.out.rows(rows, CHILD, none="it has no children")


@contextmanager
def _of(session: Session, job_id: str) -> Iterator[Any]:
    """Yield the handle of a job. If the server refuses a command because of the job's state, the error names
    that state."""
    from bunqueue.errors import WrongState

    handle = session.job(job_id)
    try:
        yield handle
    except WrongState as error:
        state = session.admin.get_state(job_id)
        text = f"job {job_id} is {state}: {error.reason}"
        raise WrongState(text, job_id=job_id, bound=error.bound) from None


def _report(session: Session, job_id: str, sentence: str, **facts: object) -> None:
    session.out.done(f"job {job_id} {sentence}", {"id": job_id, **facts})


@verb(app, "bunqueue job cancel 01980f2e-... --reason 'the order was withdrawn'")
def cancel(session: Session, job_id: JobId, reason: Reason = None, grace: Grace = 10_000) -> None:
    """Cancel a job. If it is running, its worker is notified, and its result does not count."""
    with _of(session, job_id) as job:
        stopped = job.cancel(reason, grace=grace)
    text = "is cancelled" if stopped else f"is being stopped; bunqueue job wait {job_id} sees the end"
    _report(session, job_id, text, running=not stopped)


@verb(app, "bunqueue job promote 01980f2e-...")
def promote(session: Session, job_id: JobId) -> None:
    """Let a delayed job or a pending retry run now."""
    with _of(session, job_id) as job:
        job.promote()
    _report(session, job_id, "may run now")


@verb(app, "bunqueue job retry 01980f2e-...")
def retry(session: Session, job_id: JobId) -> None:
    """Run a dead letter or a completed job again, with all its attempts."""
    with _of(session, job_id) as job:
        job.retry()
    _report(session, job_id, "runs again")


@verb(app, """bunqueue job update 01980f2e-... '{"to": "grace@example.com"}'""")
def update(session: Session, job_id: JobId, data: JsonData) -> None:
    """Replace the data of a job that has not ended."""
    with _of(session, job_id) as job:
        job.update_data(data)
    _report(session, job_id, "has other data")


@verb(app, "bunqueue job priority 01980f2e-... 10", context_settings=NEGATIVE)
def priority(session: Session, job_id: JobId, priority: Priority, lifo: Lifo = None) -> None:
    """Change the priority of a waiting or delayed job."""
    with _of(session, job_id) as job:
        job.change_priority(priority, lifo=lifo)
    _report(session, job_id, f"has priority {priority}", priority=priority)


@verb(app, "bunqueue job delay 01980f2e-... 1h30m", "bunqueue job delay 01980f2e-... 2026-12-24T18:00+01:00")
def delay(session: Session, job_id: JobId, time: Delay) -> None:
    """Delay a waiting, delayed or active job. An active job is taken from its worker."""
    from bunqueue.client.options.moments import time_left

    delay = time_left(time, "TIME")
    with _of(session, job_id) as job:
        job.change_delay(delay)
    _report(session, job_id, "runs later", delay=delay)


@verb(app, "bunqueue job discard 01980f2e-...")
def discard(session: Session, job_id: JobId) -> None:
    """Make a waiting, delayed or active job a dead letter."""
    with _of(session, job_id) as job:
        job.discard()
    _report(session, job_id, "is a dead letter")


@verb(app, "bunqueue job remove 01980f2e-... --yes")
def remove(session: Session, job_id: JobId, yes: Yes = False) -> None:
    """Remove a job with its result and its log. The job must not be active."""
    with _of(session, job_id) as job:
        confirm(f"Remove job {job_id} of queue {job.queue}?", yes)
        job.remove()
    _report(session, job_id, "is removed", removed=True)


@verb(app, "bunqueue job progress 01980f2e-...", "bunqueue job progress 01980f2e-... 50 --message rendering")
def progress(session: Session, job_id: JobId, percent: Percent = None, message: ProgressText = None) -> None:
    """Print the progress of an active job and its last message; with PERCENT, set them."""
    with _of(session, job_id) as job:
        if percent is None:
            session.out.record(job.progress(), PROGRESS)
            return
        job.update_progress(percent, message)
    _report(session, job_id, f"is at {percent:g} %", progress=percent)


@verb(app, "bunqueue job log 01980f2e-... 'looked at by hand' --level warning")
def log(session: Session, job_id: JobId, message: LogText, level: Level = "info") -> None:
    """Add a line to the log of a job."""
    with _of(session, job_id) as job:
        job.log(message, level)
    _report(session, job_id, "has another line in its log")


@verb(app, "bunqueue job clear-logs 01980f2e-... --keep 10 --yes")
def clear_logs(session: Session, job_id: JobId, keep: Keep = 0, yes: Yes = False) -> None:
    """Clear the log of a job, or all but its last lines."""
    with _of(session, job_id) as job:
        confirm(f"Forget the log of job {job_id}?", yes)
        job.clear_logs(keep=keep)
    _report(session, job_id, "has its log cleared")


@verb(app, "bunqueue job release-key 01980f2e-...")
def release_key(session: Session, job_id: JobId) -> None:
    """Release the unique key of a job, so that another job may use it. The job stays."""
    with _of(session, job_id) as job:
        held = job.remove_unique_key()
    _report(session, job_id, "holds no key any more" if held else "held no key", released=held)


@verb(app, "bunqueue job set-parent 01980f2e-... 01980f30-...")
def set_parent(session: Session, job_id: JobId, parent: Parent) -> None:
    """Make a job the child of another job, which then waits for it."""
    with _of(session, job_id) as job:
        job.set_parent(parent)
    _report(session, job_id, f"is a child of {parent}", parent=parent)


@verb(app, "bunqueue job leave-parent 01980f2e-...")
def leave_parent(session: Session, job_id: JobId) -> None:
    """Detach a job from its parent, which no longer waits for it."""
    with _of(session, job_id) as job:
        job.leave_parent()
    _report(session, job_id, "has no parent any more")


@verb(app, "bunqueue job remove-children 01980f2e-... --yes")
def remove_children(session: Session, job_id: JobId, yes: Yes = False) -> None:
    """Remove the children of a job that have not started."""
    with _of(session, job_id) as job:
        confirm(f"Remove the children of job {job_id} that have not begun?", yes)
        job.remove_children()
    _report(session, job_id, "has lost its children that had not begun")
