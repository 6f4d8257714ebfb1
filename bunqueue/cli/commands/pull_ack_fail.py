"""``bunqueue pull``, ``ack``, ``fail`` and ``heartbeat``: a worker by hand or in a shell script."""

from __future__ import annotations

import os
import socket
from typing import Annotated, Any

import typer

from bunqueue.protocol.encoded import for_people
from bunqueue.server.settings import SettingsError

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import SPAN, JobId, QueueName, data, option, span
from ..output.output import Column, Kind, encoded, field, plain

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

LOCK_MS = 30_000

Timeout = Annotated[
    float,
    option(
        "--timeout", about="How long to wait for a job, at most 1m. Default: 0.", metavar=SPAN, parser=span
    ),
]
LockTime = Annotated[
    float | None,
    option(
        "--lock",
        about="Lock the job for this time; ending it then takes the lock token.",
        metavar=SPAN,
        parser=span,
    ),
]
Owner = Annotated[
    str | None, option("--owner", about="The owner of the lock. Default: this host.", metavar="NAME")
]
LockToken = Annotated[
    str | None, option("--lock-token", about="The lock token that pull printed.", metavar="TOKEN")
]
Result = Annotated[
    Any,
    option("--result", "-r", about="The result of the job: JSON, @FILE, or -.", metavar="DATA", parser=data),
]
Error = Annotated[str | None, option("--error", "-e", about="What went wrong.", metavar="TEXT")]
Final = Annotated[bool, option("--unrecoverable", about="Do not retry the job.")]
Interrupted = Annotated[
    bool, option("--give-back", about="Return the job to the queue; the attempt does not count.")
]
Duration = Annotated[
    float | None, option("--duration", about="How long the lock lasts from now.", metavar=SPAN, parser=span)
]

PULLED = (
    Column("id", Kind.ID),
    Column("name"),
    Column("data", Kind.DATA),
    Column("attempts", Kind.NUMBER),
    Column("lockToken", Kind.ID, "lock token"),
)


@verb(
    app,
    "bunqueue pull emails",
    "bunqueue pull emails --timeout 30s --lock 5m --json",
)
def pull(
    session: Session, queue: QueueName, timeout: Timeout = 0, lock_ttl: LockTime = None, owner: Owner = None
) -> None:
    """Take the next job of a queue. Report its outcome with ack or fail.

    A pipe gets one line: id, data and, with --lock, the lock token, separated by tabs. The job stays active
    when this command ends. Without a lock, it returns to the queue after the queue's stall interval (default
    30 s) without a heartbeat; with a lock, when the lock expires: see bunqueue heartbeat.

    Exit status: 3 when there is no job.
    """
    if lock_ttl is not None and owner is None:
        owner = f"{socket.gethostname()}:{os.getppid()}"
    taken = session.queue(queue).pull(timeout, owner=owner, lock=int(lock_ttl or LOCK_MS))
    if taken is None:
        session.out.note(f"bunqueue: queue {queue} has no job to take")
        raise typer.Exit(exits.NOT_FOUND)
    row = {**plain(taken.job), "lockToken": taken.lock_token}
    if session.out.as_json or session.out.is_terminal:
        session.out.record(row, PULLED)
    else:
        data = for_people(row["data"])
        cells = (row["id"], encoded(data), *([taken.lock_token] if taken.lock_token else ()))
        session.out.text("\t".join(field(cell) for cell in cells))


@verb(
    app,
    """bunqueue ack 01980f2e-... --result '{"sent": true}'""",
    "bunqueue ack 01980f2e-... --lock-token 0198...",
)
def ack(session: Session, job_id: JobId, result: Result = None, lock_token: LockToken = None) -> None:
    """Complete a pulled job."""
    session.job(job_id).complete(result, lock_token=lock_token)
    session.out.done(f"completed job {job_id}", {"id": job_id, "state": "completed"})


@verb(
    app,
    """bunqueue fail 01980f2e-... --error 'no such mailbox'""",
    """bunqueue fail 01980f2e-... --error 'malformed address' --unrecoverable""",
)
def fail(
    session: Session,
    job_id: JobId,
    error: Error = None,
    lock_token: LockToken = None,
    unrecoverable: Final = False,
    give_back: Interrupted = False,
) -> None:
    """Report that a pulled job has failed: it is retried, or becomes a dead letter.

    With --give-back it has not failed: it returns to its place in the queue, and the attempt does not count.
    """
    if unrecoverable and give_back:
        raise SettingsError("--unrecoverable and --give-back: it is one or the other")
    job = session.job(job_id)
    job.fail(error, lock_token=lock_token, unrecoverable=unrecoverable, give_back=give_back)
    text = "gave back" if give_back else "failed"
    session.out.done(f"{text} job {job_id}", {"id": job_id, "interrupted": give_back})


@verb(app, "bunqueue heartbeat 01980f2e-... --lock-token 0198... --duration 5m")
def heartbeat(
    session: Session, job_id: JobId, lock_token: LockToken = None, duration: Duration = None
) -> None:
    """Report that a pulled job is still in progress; with its lock token, renew the lock.

    Exit status: 8 when the job was cancelled, so that its work may stop.
    """
    lasting = None if duration is None else int(duration)
    if not session.job(job_id).heartbeat(lock_token=lock_token, duration=lasting):
        session.out.note(f"bunqueue: job {job_id} is cancelled: stop working on it")
        raise typer.Exit(exits.NOT_COMPLETED)
    session.out.done(f"job {job_id} is kept", {"id": job_id, "ok": True})
