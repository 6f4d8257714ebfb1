"""Keys of encryption, which the server knows by name only: which of them payloads need, and payloads that a
worker has encrypted anew."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job import UNDEFINED
from bunqueue.protocol.commands.base import Command, JobId, Merge, Reply, Route, Token, command
from bunqueue.protocol.commands.workflows import StepName

What = Literal[
    "data",
    "on-dead",
    "result",
    "error",
    "log",
    "workflow",
    "step",
    "signal",
    "broadcast",
    "schedule",
    "other",
]


class KeyUse(Struct, rename="camel", omit_defaults=True, gc=False):
    """Stored values of one kind that need a key.

    ``what`` is data or result of jobs, data of their ``onDead`` jobs (``on-dead``), texts of errors and logs,
    what workflows keep (their state is a step), signals and broadcasts that nobody has taken, schedules, or
    what is on its way between shards (``other``).  ``example`` is the id of a job, or the name of a schedule.
    """

    key: str
    what: What
    count: int
    example: str
    queue: str | None = None


class KeysReply(Reply, kw_only=True):
    """From several shards there may be several entries for one key, kind and queue."""

    keys: list[KeyUse]


@command(Route.ALL, KeysReply, merge=Merge.CONCAT, heavy=True, since=3)
class ListKeys(Command, tag="ListKeys"):
    """List the keys of encryption that stored payloads need, by the names that clients gave them.  It reads
    everything that is stored, a slice at a time."""


class ReencodedStep(Struct, gc=False):
    """The result of a step that has ended."""

    name: StepName
    result: Raw


class ReencodeReply(Reply, kw_only=True, rename="camel"):
    """``onDead``: the data of the job's ``onDead`` job, if it has one and the command brings no other.
    Nothing was stored then, as the command is to be sent again with both."""

    on_dead: Raw | UnsetType = UNSET


@command(Route.ID, ReencodeReply, writes=True, repeatable=True, since=3)
class Reencode(Command, tag="Reencode"):
    """Store payloads of an active job again that its worker has encoded anew, as with another key; what they
    say is the same.

    If the schedule that has added the job still has the same data, it gets the new one, too.  Repetitions of
    the job have what the job has.  What is left out stays.
    """

    id: JobId
    token: Token
    data: Raw = Raw(UNDEFINED)
    on_dead: Raw = Raw(UNDEFINED)
    steps: Annotated[list[ReencodedStep], Meta(max_length=1000)] | None = None
