"""``bunqueue job``: one job, looked at. What changes it stands in `job_changes`."""

from __future__ import annotations

from typing import Annotated, Any

from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import SPAN, JobId, option, span
from ..output.output import Column, Kind, plain

app = noun("Look at a job, wait for it, change it, cancel it.")

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
Start = Annotated[int, option("--start", about="From this line on, the first is 0.", metavar="N")]
End = Annotated[int, option("--end", about="To this line; -1 is the last.", metavar="N")]


@verb(app, "bunqueue job get 01980f2e-...", "bunqueue job get 01980f2e-... --json | jq .data")
def get(session: Session, job_id: JobId) -> None:
    """Print a job: its data, its state, and what has happened to it."""
    job = session.found(job_id)
    row = plain(job)
    session.out.record(row, JOB)
    if session.out.is_terminal and job.timeline:
        session.out.text("")
        session.out.rows(job.timeline, MOMENT, none="")


@verb(app, "bunqueue job state 01980f2e-...")
def state(session: Session, job_id: JobId) -> None:
    """Print the state of a job: waiting, delayed, active, completed, failed or cancelled."""
    from bunqueue.errors import JobNotFound
    from bunqueue.protocol.commands import query

    found = session.call(query.GetState(id=job_id), query.StateReply).state
    if found == "unknown":
        raise JobNotFound(f"there is no job {job_id}; it was removed, or never added to this server")
    session.out.done(found, {"id": job_id, "state": found}, "state")


@verb(app, "bunqueue job result 01980f2e-...")
def result(session: Session, job_id: JobId) -> None:
    """Print, as JSON, what a completed job gave back. It does not wait.

    Exit status: 7 when the job has not completed.
    """
    from bunqueue.errors import WrongState

    job = session.found(job_id)
    if job.state != "completed":
        raise WrongState(f"job {job_id} is {job.state}, so it has no result; bunqueue job wait {job_id}")
    _print_result(session, job_id, job.result)


def _print_result(session: Session, job_id: str, value: object) -> None:
    from ..output.output import encoded

    if session.out.as_json:
        session.out.done("", {"id": job_id, "state": "completed", "result": value})
    else:
        session.out.text(encoded(plain(value)))


@verb(app, "bunqueue job wait 01980f2e-... --timeout 5m", patient=True)
def wait(session: Session, job_id: JobId, timeout: Timeout = None) -> None:
    """Wait until a job has ended, and print what it gave back, as JSON.

    Exit status: 5 when the time is over, 8 when the job has failed, was cancelled or dropped.
    """
    from ..output.progress import waiting

    with waiting(f"waiting for job {job_id}"):
        value = session.job(job_id).result(timeout)
    _print_result(session, job_id, value)


@verb(app, "bunqueue job logs 01980f2e-...", "bunqueue job logs 01980f2e-... --start 0 --end 9")
def logs(session: Session, job_id: JobId, start: Start = 0, end: End = -1) -> None:
    """Print the log of a job, the oldest line first. The last 100 lines are kept."""
    session.out.rows(session.job(job_id).logs(start, end), LOG_LINE, none="its log is empty")


@verb(
    app, "bunqueue job attempts 01980f2e-...", "bunqueue job attempts 01980f2e-... --json | jq -r '.[].stack'"
)
def attempts(session: Session, job_id: JobId) -> None:
    """List the attempts of a job that came to nothing, the oldest first. JSON has their tracebacks."""
    from bunqueue.protocol.commands.insight import AttemptsReply, GetAttempts

    session.found(job_id)
    found = session.call(GetAttempts(id=job_id), AttemptsReply).data.attempts
    session.out.rows(found, ATTEMPT, none="no attempt has failed")


@verb(app, "bunqueue job why 01980f2e-...")
def why(session: Session, job_id: JobId) -> None:
    """Say why a job waits: everything that holds it back at present. Nothing for one that does not wait."""
    from bunqueue.protocol.commands.insight import WaitingReply, WhyWaiting

    job = session.found(job_id)
    found = session.call(WhyWaiting(id=job_id), WaitingReply).data.reasons
    session.out.rows(found, REASON, none=f"it does not wait: it is {job.state}")


@verb(app, "bunqueue job children 01980f2e-...")
def children(session: Session, job_id: JobId) -> None:
    """Print the children of a job, their states, and what they gave back."""
    job = session.found(job_id)
    handle = session.job(job_id)
    values: dict[str, Any] = handle.children_values()
    errors = handle.failed_children()
    by_id = {key.partition(":")[2]: key for key in (*values, *errors)}
    rows = []
    for child in dict.fromkeys([*job.children_ids, *by_id]):
        key = by_id.get(child, child)
        rows.append(
            {
                "child": child,
                "state": session.state(child),
                "value": values.get(key),
                "error": errors.get(key),
            }
        )
    session.out.rows(rows, CHILD, none="it has no children")


from . import job_changes as job_changes  # noqa: E402  # adds its verbs to `app`
