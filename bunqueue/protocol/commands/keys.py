"""Encryption keys, which the server knows only by name: which keys the payloads need, and storing payloads
that a worker has encrypted again."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job import UNDEFINED
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    Merge,
    OfJob,
    Reply,
    Route,
    Tag,
    Token,
    command,
    http,
)
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
    stored data of workflows (their state is a step), signals and broadcasts that no wait has taken,
    schedules, or data in transit between shards (``other``).  ``example`` is the id of a job, or the name of
    a schedule.
    """

    key: str
    what: What
    count: int
    example: str
    queue: str | None = None


class KeysReply(Reply, kw_only=True):
    """With several shards, one key, kind and queue may have several entries."""

    keys: list[KeyUse]


@http("GET /encryption-keys", Tag.SERVER)
@command(Route.ALL, Verb.SEE, merge=Merge.CONCAT, heavy=True, since=3)
class ListKeys(Command[KeysReply], tag="ListKeys"):
    """List the encryption keys that stored payloads need, by the names that clients gave them.  This reads
    all stored data, a slice at a time."""


class ReencodedStep(Struct, gc=False):
    """The result of a step that has ended."""

    name: StepName
    result: Raw


class ReencodeReply(Reply, kw_only=True, rename="camel"):
    """``onDead``: the data of the job's ``onDead`` job, if it has one and the command does not replace it.
    In this case nothing was stored, and the command must be sent again with both."""

    on_dead: Raw | UnsetType = UNSET


@http("POST /jobs/{id}/reencode", Tag.JOBS)
@command(Route.ID, Verb.RUN | Verb.OPERATE, writes=True, repeatable=True, since=3)
class Reencode(OfJob[ReencodeReply], tag="Reencode"):
    """Replace payloads of an active job with the same content, encoded again by its worker, for example with
    another key.

    If the schedule that added the job still has the same data, its data is replaced as well.  Repetitions of
    the job use the job's payloads.  Absent fields stay unchanged.
    """

    token: Token
    data: Raw = Raw(UNDEFINED)
    on_dead: Raw = Raw(UNDEFINED)
    steps: Annotated[list[ReencodedStep], Meta(max_length=1000)] | None = None
