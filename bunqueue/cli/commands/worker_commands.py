"""``bunqueue pull``, ``ack``, ``fail`` and ``heartbeat``: a worker by hand, or in a shell script."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bunqueue.settings import SettingsError

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import SPAN, JobId, QueueName, data, option, span
from ..output.output import Column, Kind, encoded, field, plain

if TYPE_CHECKING:
    from bunqueue.protocol.commands import Reply

R = TypeVar("R", bound="Reply")

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

LOCK_MS = 30_000

Timeout = Annotated[
    float,
    option("--timeout", about="Wait so long for a job, at most 1m. Default: 0.", metavar=SPAN, parser=span),
]
LockTime = Annotated[
    float | None,
    option(
        "--lock", about="Lock the job for so long; it needs its lock token then.", metavar=SPAN, parser=span
    ),
]
Owner = Annotated[
    str | None, option("--owner", about="Who holds the lock. Default: this host.", metavar="NAME")
]
LockToken = Annotated[
    str | None, option("--lock-token", about="The lock token of the pull.", metavar="TOKEN")
]
Result = Annotated[
    Any,
    option(
        "--result", "-r", about="JSON, @FILE, or -: what the job gives back.", metavar="DATA", parser=data
    ),
]
Error = Annotated[str | None, option("--error", "-e", about="What went wrong.", metavar="TEXT")]
Final = Annotated[bool, option("--unrecoverable", about="Trying again would not help.")]
Interrupted = Annotated[bool, option("--give-back", about="The attempt does not count: the job runs again.")]
Duration = Annotated[
    float | None, option("--duration", about="The new time of the lock.", metavar=SPAN, parser=span)
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
    """Take the next job of a queue. Tell its end with ack or fail.

    Into a pipe goes one line: id, data and, with --lock, the lock token, separated by tabs. The job stays
    active when this program ends. One that is neither locked nor heard of for the queue's stall time, 30 s
    unless set, returns to the queue; a locked one does so when the time of the lock is over: see heartbeat.

    Exit status: 3 when there is no job.
    """
    from bunqueue.client.models.jobs import PulledJob
    from bunqueue.errors import CommandFailed
    from bunqueue.protocol.commands.core import AckReply, Fail, Pull

    if lock_ttl is not None and owner is None:
        owner = f"{socket.gethostname()}:{os.getppid()}"
    command = Pull(queue=queue, timeout=timeout, owner=owner, lock_ttl=int(lock_ttl or LOCK_MS), detach=True)
    reply = session.call(command, PulledJob)
    if reply.job is not None and reply.job.unreadable:
        text = f"the job's {reply.job.unreadable}"
        _call(session, Fail(id=reply.job.id, token=reply.token, error=text, unrecoverable=True), AckReply)
        raise CommandFailed(f"job {reply.job.id} of queue {queue} is a dead letter now: {text}")
    if reply.job is None:
        session.out.note(f"bunqueue: queue {queue} has no job to take")
        raise typer.Exit(exits.NOT_FOUND)
    row = {**plain(reply.job), "lockToken": reply.token}
    if session.out.as_json or session.out.is_terminal:
        session.out.record(row, PULLED)
    else:
        cells = (row["id"], encoded(row["data"]), *([reply.token] if reply.token else ()))
        session.out.text("\t".join(field(cell) for cell in cells))


@verb(
    app,
    """bunqueue ack 01980f2e-... --result '{"sent": true}'""",
    "bunqueue ack 01980f2e-... --lock-token 0198...",
)
def ack(session: Session, job_id: JobId, result: Result = None, lock_token: LockToken = None) -> None:
    """Complete a job that was pulled."""
    import msgspec

    from bunqueue.protocol.commands.core import Ack, AckReply

    fields: dict[str, Any] = {} if result is None else {"result": msgspec.Raw(msgspec.msgpack.encode(result))}
    reply = _call(session, Ack(id=job_id, token=lock_token, **fields), AckReply)
    _applied(reply.data)
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
    """Report that a job that was pulled has failed: it is retried, or becomes a dead letter.

    With --give-back it has not failed: it takes its old place in the queue, and the attempt does not count.
    """
    from bunqueue.protocol.commands.core import AckReply, Fail

    if unrecoverable and give_back:
        raise SettingsError("--unrecoverable and --give-back: it is one or the other")
    command = Fail(
        id=job_id, error=error, token=lock_token, unrecoverable=unrecoverable, interrupted=give_back
    )
    _applied(_call(session, command, AckReply).data)
    said = "gave back" if give_back else "failed"
    session.out.done(f"{said} job {job_id}", {"id": job_id, "interrupted": give_back})


@verb(app, "bunqueue heartbeat 01980f2e-... --lock-token 0198... --duration 5m")
def heartbeat(
    session: Session, job_id: JobId, lock_token: LockToken = None, duration: Duration = None
) -> None:
    """Say that a job that was pulled is still worked on; with its lock token, renew the lock.

    Exit status: 8 when somebody has cancelled the job, whose work may stop.
    """
    from msgspec import UNSET

    from bunqueue.protocol.commands.core import HeartbeatReply, JobHeartbeat

    lasting = None if duration is None else int(duration)
    reply = _call(session, JobHeartbeat(id=job_id, token=lock_token, duration=lasting), HeartbeatReply)
    if reply.data.cancelled is not UNSET:
        session.out.note(f"bunqueue: job {job_id} is cancelled: stop working on it")
        raise typer.Exit(exits.NOT_COMPLETED)
    session.out.done(f"job {job_id} is kept", {"id": job_id, "ok": True})


def _call(session: Session, command: Any, reply: type[R]) -> R:
    """The reply to a command about a pulled job. Raises JobNotFound where the server's word for a job that is
    not there is that for one in another state."""
    from bunqueue.errors import JobNotFound, LockLost, WrongState
    from bunqueue.protocol.commands.query import GetState, StateReply

    try:
        return session.call(command, reply)
    except (LockLost, WrongState):
        if session.call(GetState(id=command.id), StateReply).state != "unknown":
            raise
    raise JobNotFound(f"there is no job {command.id}; it was removed, or never added to this server")


def _applied(answer: Any) -> None:
    """Whether the end of a job counted."""
    from msgspec import UNSET

    from bunqueue.errors import LockLost

    if answer is not UNSET and not answer.applied:
        raise LockLost(f"it came too late to count: {answer.reason}")
