"""Managing single jobs: cancelling, moving, changing and removing them, and their logs."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job import NIL
from bunqueue.model.job_options import Timeout
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    ContentText,
    Data,
    Delay,
    Message,
    Offset,
    OfJob,
    Ok,
    Priority,
    Removed,
    Reply,
    Route,
    Tag,
    Text,
    Token,
    command,
    http,
)
from bunqueue.protocol.moments import Moment

MAX_LOG = 100  # entries kept of a job's log
LogText = Annotated[str, Meta(description="cut after 64 KiB")]


class CancelReply(Reply, kw_only=True):
    """``running`` is true if the job is active; it then ends as cancelled within ``grace`` ms."""

    running: bool | UnsetType = UNSET


@http("POST /jobs/{id}/cancel", Tag.JOBS)
@command(Route.ID, Verb.OPERATE, writes=True)
class Cancel(OfJob[CancelReply], tag="Cancel"):
    """Remove a job that has not started: it is waiting, delayed, or depends on others.

    With ``running``, an active job is stopped as well.  Its worker is notified (see "Stopping a job that
    runs").  When the worker reports any outcome, or after ``grace`` ms, the job reaches the final state
    ``cancelled``: it is a dead letter with that reason, is never retried automatically, and its result is
    refused.  A second Cancel may shorten ``grace``.
    """

    running: bool = False
    reason: Message | None = None
    grace: Timeout = 10_000


@http("DELETE /jobs/{id}", Tag.JOBS)
@command(Route.ID, Verb.DESTROY, writes=True, repeatable=True)
class RemoveJob(OfJob[Data[Removed]], tag="RemoveJob"):
    """Remove a job in any state but active, with all its data; ``removed`` is false if it does not exist."""


@http("PUT /jobs/{id}/data", Tag.JOBS)
@command(Route.ID, Verb.RUN | Verb.OPERATE, writes=True, repeatable=True, grows=True)
class Update(OfJob[Ok], tag="Update"):
    """Replace the data of an unfinished job; if it has finished, that of the job that repeats it."""

    data: Raw = Raw(NIL)


@http("PUT /jobs/{id}/priority", Tag.JOBS)
@command(Route.ID, Verb.OPERATE, writes=True, repeatable=True)
class ChangePriority(OfJob[Ok], tag="ChangePriority"):
    """Change the priority of a waiting or delayed job; ``lifo`` puts it before others of equal priority."""

    priority: Priority
    lifo: bool | None = None


@http("POST /jobs/{id}/promote", Tag.JOBS)
@command(Route.ID, Verb.OPERATE, writes=True)
class Promote(OfJob[Ok], tag="Promote"):
    """Make a delayed job, or one that waits for its retry, ready now."""


@http("POST /jobs/{id}/move-to-delayed", Tag.JOBS)
@command(Route.ID, Verb.RUN | Verb.OPERATE, writes=True)
class MoveToDelayed(OfJob[Ok], tag="MoveToDelayed"):
    """Return an active job to its queue, to run in ``delay`` ms, without counting the attempt.  Waiting and
    delayed jobs can also be moved.

    With ``postponed``, the field of that name in an active job, which counts postponements, grows by one.

    A job that was pulled with an owner needs its token.  Version 2 checks the token only if one is given, and
    so does version 3 with ``force``, which is for people who move a job manually.
    """

    delay: Delay
    token: Token | None = None
    postponed: bool = False
    force: bool = False


@http("POST /jobs/{id}/move-to-wait", Tag.JOBS)
@command(Route.ID, Verb.RUN | Verb.OPERATE, writes=True, since=3)
class MoveToWait(OfJob[Ok], tag="MoveToWait"):
    """Let a job run now: an active, waiting, delayed or failed one.  For the token see MoveToDelayed."""

    token: Token | None = None
    force: bool = False


@http("PUT /jobs/{id}/delay", Tag.JOBS)
@command(Route.ID, Verb.RUN | Verb.OPERATE, writes=True, since=3)
class ChangeDelay(OfJob[Ok], tag="ChangeDelay"):
    """Make a waiting or delayed job run in ``delay`` ms; an active job is moved as by MoveToDelayed."""

    delay: Delay
    token: Token | None = None
    force: bool = False


@http("POST /jobs/{id}/discard", Tag.JOBS)
@command(Route.ID, Verb.RUN | Verb.OPERATE, writes=True)
class Discard(OfJob[Ok], tag="Discard"):
    """Make a waiting, delayed or active job a dead letter.  For the token see MoveToDelayed."""

    token: Token | None = None
    force: bool = False


class Added(Struct, gc=False):
    added: bool = True


class LogLine(Struct, omit_defaults=True, gc=False):
    """``timestamp`` is in ms; ``attempt`` is the number of the attempt during which the line was added, if
    one was running, as in the answer to GetAttempts."""

    message: ContentText
    level: str
    timestamp_ms: float = msgspec.field(name="timestamp")
    attempt: int | None = None

    timestamp = Moment("timestamp_ms")


class Log(Struct, gc=False):
    """The requested lines, oldest first; ``count`` is the number of lines in the log."""

    logs: list[LogLine]
    count: int


class GetLogsReply(Reply, kw_only=True):
    data: Log


@http("POST /jobs/{id}/logs", Tag.JOBS)
@command(Route.ID, Verb.RUN, writes=True, grows=True)
class AddLog(OfJob[Data[Added]], tag="AddLog"):
    """Add a line to the log of a job in any state; the last 100 are kept."""

    message: LogText
    level: Text = "info"


@http("GET /jobs/{id}/logs", Tag.JOBS)
@command(Route.ID, Verb.SEE | Verb.READ)
class GetLogs(OfJob[GetLogsReply], tag="GetLogs"):
    """Get the log of a job, or its lines ``start`` to ``end`` (from 0, both included; -1 is the last)."""

    start: Offset = 0
    end: Annotated[int, Meta(ge=-1, le=1_000_000_000)] | None = None


@http("DELETE /jobs/{id}/logs", Tag.JOBS)
@command(Route.ID, Verb.DESTROY, writes=True, repeatable=True, since=3)
class ClearLogs(OfJob[Ok], tag="ClearLogs"):
    """Delete the log of a job except for its last ``keepLogs`` lines."""

    keep_logs: Offset | None = None
