"""Errors in groups of those that are alike: how many, since when, how fast, where, with an example."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    Command,
    ContentText,
    Data,
    IdOf,
    Merge,
    NameOf,
    OfQueue,
    QueueName,
    QueueOf,
    Reach,
    Route,
    Tag,
    command,
    http,
)
from bunqueue.protocol.commands.dlq import ErrorGroupId
from bunqueue.protocol.moments import MaybeMoment, Moment

GroupsShown = Annotated[int, Meta(ge=1, le=1000)]


class ErrorExample(Struct, rename="camel", gc=False):
    """One failed attempt; ``at`` in epoch ms.  The error and the stack are cut if they are long."""

    job_id: IdOf
    name: str
    at_ms: float = msgspec.field(name="at")
    attempt: int
    error: ContentText
    worker: NameOf | None
    version: str | None
    stack: ContentText | None

    at = Moment("at_ms")


class ErrorGroupView(Struct, rename="camel", gc=False):
    """A group of errors in a queue; times are in epoch ms.

    ``id`` is the same in all queues.  ``errorType`` is the class of the errors, if the workers named it, and
    ``pattern`` the first line of their text with # for numbers, ids and quoted parts.  The group ``other``
    has what does not fit into the groups that a queue may have.  ``failures`` is the number of failed
    attempts, ``perMinute`` how many in a minute lately (over five minutes), ``minutes`` how many in each of
    the last 60 minutes, the current one last.  ``dead`` is how many jobs failed for good, ``kept`` how many
    of these are dead letters now. ``outcomes``, ``names``, ``workers`` and ``versions`` count the failures;
    above 20 names they are counted as ``other``.  A ``muted`` group raises no alert.  The return of a
    ``watched`` one is an event ``error-returned``: a failure in it after it was ``resolved``, or after ten
    minutes without any.
    """

    queue: QueueOf
    id: str
    error_type: str | None
    pattern: ContentText
    failures: int
    dead: int
    kept: int
    first_ms: float = msgspec.field(name="first")
    last_ms: float = msgspec.field(name="last")
    per_minute: float
    minutes: list[int]
    outcomes: dict[str, int]
    names: dict[str, int]
    workers: dict[NameOf, int]
    versions: dict[str, int]
    example: ErrorExample | None
    muted_ms: float | None = msgspec.field(name="muted")
    watched_ms: float | None = msgspec.field(name="watched")
    resolved_ms: float | None = msgspec.field(name="resolved")
    returned_ms: float | None = msgspec.field(name="returned")

    first = Moment("first_ms")
    last = Moment("last_ms")
    muted = MaybeMoment("muted_ms")
    watched = MaybeMoment("watched_ms")
    resolved = MaybeMoment("resolved_ms")
    returned = MaybeMoment("returned_ms")


class ErrorGroups(Struct, gc=False):
    """The groups with the most dead letters first, then those with the most failures."""

    groups: list[ErrorGroupView]
    total: int  # groups, of which `limit` are shown


@http("GET /queues/{queue}/errors", Tag.DEAD_LETTERS)
@http("GET /errors", Tag.DEAD_LETTERS)
@command(Route.ALL, Verb.SEE | Verb.READ, merge=Merge.SUM, heavy=True, reach=Reach.ALLOWED)
class ListErrors(Command[Data[ErrorGroups]], tag="ListErrors"):
    """List the errors of a queue, or of all queues, in groups of those that are alike.

    Groups are counted as attempts fail, and stay known over restarts; one without dead letters is forgotten
    seven days after its last failure.  A queue has at most 200 groups, a shard 5,000.
    """

    queue: QueueName | None = None
    limit: GroupsShown = 100


@http("GET /queues/{queue}/errors/{group}", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.SEE | Verb.READ, heavy=True)
class GetErrorGroup(OfQueue[Data[ErrorGroupView]], tag="GetErrorGroup"):
    """Get one group of errors of a queue."""

    group: ErrorGroupId


@http("PUT /queues/{queue}/errors/{group}", Tag.DEAD_LETTERS)
@command(Route.QUEUE, Verb.OPERATE, writes=True, repeatable=True, heavy=True)
class SetErrorGroup(OfQueue[Data[ErrorGroupView]], tag="SetErrorGroup"):
    """Mute a group of errors, watch it, or say that it is resolved; absent fields keep their values.

    To retry or remove the dead letters of a group, use RetryDlq or PurgeDlq with ``errorGroup`` in the
    filter: the group then counts as resolved.
    """

    group: ErrorGroupId
    muted: bool | UnsetType = UNSET
    watched: bool | UnsetType = UNSET
    resolved: bool | UnsetType = UNSET
