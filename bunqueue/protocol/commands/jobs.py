"""Ruling over single jobs: taking them out of their course, and their logs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job import NIL
from bunqueue.protocol.commands.base import (
    Command,
    Delay,
    JobId,
    Message,
    Offset,
    Priority,
    Reply,
    Route,
    Text,
    Timeout,
    Token,
    command,
)
from bunqueue.protocol.moments import Moment

MAX_LOG = 100  # entries kept of a job's log
LogText = Annotated[str, Meta(description="cut after 64 KiB")]


class CancelReply(Reply, kw_only=True):
    """``running`` true: the job is active, and ends as cancelled within ``grace``."""

    running: bool | UnsetType = UNSET


@command(Route.ID, CancelReply, writes=True)
class Cancel(Command, tag="Cancel"):
    """Remove a job that has not begun: a waiting or delayed one, or one that waits for others.

    With ``running`` an active one is stopped, too.  Its worker is notified (see "Stopping a job that runs").
    When the worker reports any outcome, or ``grace`` ms are over, the job reaches the final state
    ``cancelled``: a dead letter with that reason, never retried by itself, its result refused.  A second
    Cancel may shorten the time.
    """

    id: JobId
    running: bool = False
    reason: Message | None = None
    grace: Timeout = 10_000


class Removed(Struct, gc=False):
    removed: bool


class RemovedReply(Reply, kw_only=True):
    data: Removed


@command(Route.ID, RemovedReply, writes=True, repeatable=True)
class RemoveJob(Command, tag="RemoveJob"):
    """Remove a job in any state but active, and all that is known of it; false when it is not there."""

    id: JobId


@command(Route.ID, writes=True, repeatable=True, grows=True)
class Update(Command, tag="Update"):
    """Give a job that has not finished other data; or, when it has, the job that repeats it."""

    id: JobId
    data: Raw = Raw(NIL)


@command(Route.ID, writes=True, repeatable=True)
class ChangePriority(Command, tag="ChangePriority"):
    """Give a waiting or delayed job another priority, and say whether it goes before its equals."""

    id: JobId
    priority: Priority
    lifo: bool | None = None


@command(Route.ID, writes=True)
class Promote(Command, tag="Promote"):
    """Let a delayed job, or a retry that waits, run now."""

    id: JobId


@command(Route.ID, writes=True)
class MoveToDelayed(Command, tag="MoveToDelayed"):
    """Put an active job back, to run in ``delay`` ms; no attempt is counted.  Also a waiting or delayed one.

    With ``postponed`` an active job's field of that name is one more afterwards: how often it was put back.

    A job that was pulled with an owner needs its token, on a connection of version 2 only if one is given.
    """

    id: JobId
    delay: Delay
    token: Token | None = None
    postponed: bool = False


@command(Route.ID, writes=True, since=3)
class MoveToWait(Command, tag="MoveToWait"):
    """Let a job run now: an active, waiting, delayed or failed one.  About its token see MoveToDelayed."""

    id: JobId
    token: Token | None = None


@command(Route.ID, writes=True, since=3)
class ChangeDelay(Command, tag="ChangeDelay"):
    """Let a waiting or delayed job run in ``delay`` ms; an active one as MoveToDelayed does."""

    id: JobId
    delay: Delay
    token: Token | None = None


@command(Route.ID, writes=True)
class Discard(Command, tag="Discard"):
    """Make a waiting, delayed or active job a dead letter.  About its token see MoveToDelayed."""

    id: JobId
    token: Token | None = None


class Added(Struct, gc=False):
    added: bool = True


class AddLogReply(Reply, kw_only=True):
    data: Added


class LogLine(Struct, gc=False):
    """``timestamp`` is in ms."""

    message: str
    level: str
    timestamp_ms: float = msgspec.field(name="timestamp")

    timestamp = Moment("timestamp_ms")


class Log(Struct, gc=False):
    """The lines asked for, oldest first; ``count`` says how many there are."""

    logs: list[LogLine]
    count: int


class GetLogsReply(Reply, kw_only=True):
    data: Log


@command(Route.ID, AddLogReply, writes=True, grows=True)
class AddLog(Command, tag="AddLog"):
    """Add a line to the log of a job in any state; the last 100 are kept."""

    id: JobId
    message: LogText
    level: Text = "info"


@command(Route.ID, GetLogsReply)
class GetLogs(Command, tag="GetLogs"):
    """The log of a job, or its lines ``start`` to ``end`` (from 0, both included; -1: the last)."""

    id: JobId
    start: Offset = 0
    end: Annotated[int, Meta(ge=-1, le=1_000_000_000)] | None = None


@command(Route.ID, writes=True, repeatable=True, since=3)
class ClearLogs(Command, tag="ClearLogs"):
    """Forget the log of a job but for its last ``keepLogs`` lines."""

    id: JobId
    keep_logs: Offset | None = None
