"""The messages between shards, which go through the router.

A message is a request, an answer, or a notification.  A request is repeated if the other shard was restarted,
and an answer to a request that is no longer open is dropped.  So handling a message twice must have the same
effect as handling it once.

``durable``: flush everything that this needs to disk before the answer is sent, because a client was promised
that it survives a power cut.
"""

from typing import Any, Union

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.job import Cause


class Message(Struct, tag=True, array_like=True, gc=False):
    """The base of all messages."""


class Failed(Message):
    """The answer to a read-only request that failed because of a bug in the server."""

    error: str


class Outcome(Message):
    """The outcome of a job.  ``child`` and the fields after it are set only for a job that failed."""

    id: str
    word: int
    child: str = ""  # "queue:id"
    parent: str = ""
    policy: int = 0
    error: str = ""
    obliterated: bool = False  # its queue was: only jobs that already wait for it may see this


UNKNOWN, PENDING, DONE, DEAD, DEAD_REMOVED = range(5)  # the last: a dead letter that was removed
WAIT, FAIL_PARENT, REMOVE_DEPENDENCY, IGNORE, CONTINUE = range(5)  # policies


# The directory of client-chosen ids


class Where(Message):
    """Which shards have these jobs?  The receiver is the shard to which their ids point."""

    ids: list[str]


class Homes(Message):
    """One shard per id: the one that has the job, if it exists."""

    shards: list[int]


class Claim(Message):
    """May the asker become the home of jobs with these ids?

    ``wait``: if a flow that is being pushed has one of these ids, wait until the flow is decided.
    """

    ids: list[str]
    wait: bool
    durable: bool = False


class Claimed(Message):
    """For each id: the asker's number if it is granted, else the shard that has it; -1: try again; -2: an
    undecided flow has it."""

    homes: list[int]


class Verify(Message):
    """Do these jobs exist, unfinished?  A finished job gives up its id.  ``wait`` as in `Claim`."""

    ids: list[str]
    wait: bool
    durable: bool = False


class Verified(Message):
    """One word per id: FREE, TAKEN, BUSY or UNDECIDED."""

    words: list[int]


FREE, TAKEN, BUSY, UNDECIDED = range(4)


class DroppedLetter(Struct, array_like=True, gc=False):
    """A dead letter that was dropped from ``queue`` at ``at`` (epoch ms); ``why`` is the bound, and ``most``
    how many letters the queue kept.  The other fields are those of the job."""

    at: int
    queue: str
    why: str
    most: int
    reason: str
    error: str | None
    attempts: int


class DroppedLetters(Message):
    """Notification: these jobs of the sender were dropped; their ids point to the receiver."""

    ids: list[str]
    letters: list[DroppedLetter]


class Forget(Message):
    """Notification: the sender no longer has these jobs.  ``outcomes``: their outcomes, where they matter."""

    ids: list[str]
    outcomes: list[Outcome | None]


# What shards have, when one of them may have lost something


class Announce(Message):
    """Which of your jobs have ids that point to me?  The answer has some of the ids above ``after``."""

    after: str


class Announced(Message):
    """``live``: per id, whether the job has not ended.  ``after``: where to continue; None at the end."""

    ids: list[str]
    live: list[bool]
    after: str | None


class Have(Message):
    """What do you have of these jobs?"""

    ids: list[str]


class Holding(Struct, array_like=True, gc=False):
    """What a shard has of one job.  HIDDEN: prepared for a flow, or being moved.  ``flow``: the flow that the
    job came with, if that was on several shards."""

    word: int
    flow: str = ""


class Had(Message):
    """``until``: the shard has lost nothing up to this time (epoch ms); None: it has lost nothing at all."""

    jobs: list[Holding]
    until: int | None


ABSENT, ENDED, HIDDEN, LIVE = range(4)


class Reconciled(Message):
    """Notification: the sender has finished reconciling.  It has removed for good what it had of flows that
    other shards have lost."""


class Obliterated(Message):
    """Notification: a queue was obliterated, and the outcomes of its jobs are not kept."""

    queue: str


# Dependencies


class Watch(Message):
    """What are the outcomes of these jobs?  Pending jobs are reported again when they end."""

    ids: list[str]
    durable: bool = False


class Unwatch(Message):
    """Notification: no job of the sender waits for these jobs any more."""

    ids: list[str]


class Outcomes(Message):
    """The answer to Watch, in its order; also a notification when jobs are decided."""

    jobs: list[Outcome]


class Queues(Message):
    """In which queues are these jobs?"""

    ids: list[str]


class QueuesAre(Message):
    """ "" for a job of which nothing is known."""

    queues: list[str]


class Values(Message):
    """What are the queues and results of these jobs?"""

    ids: list[str]


class Value(Struct, array_like=True, gc=False):
    queue: str
    result: Raw


class ValuesAre(Message):
    """None: the job does not exist, or has no result."""

    values: list[Value | None]
    gone: list[str] = []
    """Jobs of which nothing is known, not even that they had no result."""


# Parents and children


class FamilyOperation(Message):
    """Do something to one job (a child or a parent) on behalf of another."""

    operation: int
    id: str
    other: str = ""
    queue: str = ""
    durable: bool = False


FIND, INSPECT, JOIN, LIST, ADOPT, PART, REMOVE = range(7)  # operations


class FamilyChanged(Message):
    """``found``: it was done.  ``queue`` and ``state`` are those of the job; "" if the job does not exist.
    ``full``: it already has the maximum number of children."""

    found: bool
    queue: str = ""
    state: int = 0
    full: bool = False


# Children of workflows


class NewChild(Struct, array_like=True, gc=False):
    """A job to start; ``input`` is its JobFields.  ``own``: the user chose the id.  ``detached``: the
    workflow does not wait for it.  ``scope``: that of the worker, if it is for some queues only.  ``by``: the
    identity that added the workflow."""

    id: str
    queue: str
    input: Raw
    own: bool = False
    detached: bool = False
    scope: bytes = b""
    by: str | None = None


class StartChildren(Message):
    """Push these jobs for a workflow, except those pushed before; watch all that are not detached."""

    parent: str
    children: list[NewChild]


class Started(Struct, array_like=True, gc=False):
    """``id`` is the id of the child's job, ``error`` the reason if there is no job."""

    id: str
    error: str = ""


class ChildrenStarted(Message):
    """One entry per child, in order; ``outcomes`` has the outcomes of their jobs."""

    started: list[Started]
    outcomes: list[Outcome]


class CancelChildren(Message):
    """Cancel those of these jobs that are children of the workflow and have not ended."""

    parent: str
    ids: list[str]
    reason: str


class ChildrenCancelled(Message):
    """The jobs are cancelled, or will be."""


# Flows


class Prepare(Message):
    """Prepare these jobs of a flow, so that they can appear; ``jobs`` is the receiver's part of the flow.

    ``alone``: no other shard has a part of it; if others do, ``others`` has the queue and the id of one job
    of each other part.  With a ``flow_id`` the jobs are nodes of the flow with that id, and the nodes with
    the ids ``gatherers`` gather.  ``by``: the identity that adds them.
    """

    flow: str
    jobs: Raw
    alone: bool
    durable: bool = False
    others: list[tuple[str, str]] = []
    flow_id: str = ""
    gatherers: list[str] = []
    by: str | None = None


class Prepared(Message):
    """``refusal``: the fields of a `Refusal`, if it was refused."""

    refusal: dict[str, Any] = {}
    jobs: list[Raw] = []


class Decide(Message):
    """Let a prepared flow appear, or forget it."""

    flow: str
    commit: bool
    durable: bool = False


class Decided(Message):
    """The decision was carried out."""


class Recall(Message):
    """What was decided about a flow?  ``wait``: do not answer before it is decided."""

    flow: str
    wait: bool


class Recalled(Message):
    """``commit``: None while it is not decided."""

    commit: bool | None


# Nodes of flows with ids


class Members(Message):
    """Which nodes of a flow do you have, with ids above ``after``?  The answer has some of them."""

    flow: str
    after: str = ""


class Member(Struct, array_like=True, gc=False):
    """The current state of a node: everything that its view needs.  ``after`` and ``pending`` are job ids."""

    id: str
    queue: str
    job: str
    state: int
    after: list[str]
    pending: list[str]
    attempts: int
    max_attempts: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    error: str | None
    reason: str | None
    gathering: bool | None


class MembersAre(Message):
    """``more``: where to continue; None at the end."""

    members: list[Member]
    more: str | None


class Flows(Message):
    """Which flows with ids above ``after`` have nodes on your shard?  At most ``limit`` of them."""

    prefix: str
    queue: str | None
    after: str
    limit: int
    scope: bytes = b""  # of who asks: only flows with jobs in queues that exist for it; empty: none


class FlowsAre(Message):
    """``more``: the last id checked; None at the end."""

    flows: list[str]
    more: str | None


class StopMembers(Message):
    """Cancel those of these nodes that have not ended."""

    ids: list[str]
    reason: str | None
    grace: int


class MembersStopped(Message):
    """How many were cancelled, and how many must be ended by their workers."""

    stopped: int
    running: int


class ReviveMembers(Message):
    """Revive these finished nodes; each waits for the jobs listed with it."""

    nodes: list[tuple[str, list[str]]]


class MembersRevived(Message):
    """The ids of the nodes that existed and were revived."""

    ids: list[str]


class Gather(Message):
    """Do these nodes gather, and still accept new jobs?  With ``closing`` they accept no more."""

    ids: list[str]
    closing: bool = False


class Gathering(Message):
    """One word per node: NO_GATHERER, OPEN or CLOSED."""

    words: list[int]


NO_GATHERER, OPEN, CLOSED = range(3)


class CloseGathering(Message):
    """Let this node wait for the others.  The answer is the same as to Gather."""

    id: str
    others: list[str]


class AskForMembers(Message):
    """Query the outcomes of the jobs that these nodes wait for.  The answer is the same message."""

    ids: list[str]


# Jobs that go to another queue


class MoveIn(Message):
    """Take these jobs, encoded by `shardproc.engine.peers.moves`, into a queue."""

    move: str
    queue: str
    jobs: bytes


class MovedIn(Message):
    """The jobs were moved, except those with these ids, for these reasons."""

    ids: list[str]
    reasons: list[str]


class MoveEnded(Message):
    """There will be no more requests about this move.  The answer is the same message."""

    move: str


class Rehome(Message):
    """From now on ``shard`` has these jobs; their ids point to the receiver.  It answers the same message."""

    ids: list[str]
    shard: int


class Settled(Message):
    """Answer with the same message when this job is no longer being moved."""

    id: str


# Names of schedules


class CronClaim(Message):
    """May the asker set a schedule with this name, for this queue and app ("": no app)?"""

    name: str
    queue: str
    app: str


class CronHolder(Message):
    """The queue and app that have the name, or are about to get it; "" for the queue: it is free here."""

    queue: str = ""
    app: str = ""


# Jobs added for dead ones


class Call(Struct, array_like=True, gc=False):
    """A job to add because another one has failed for good.  ``key`` is chosen by the sender and never
    reused; ``job`` is an `OnDead`."""

    key: str
    queue: str
    job: Raw
    cause: Cause


class Calls(Message):
    """Add these jobs, except those that were already added for the same key."""

    calls: list[Call]


class Called(Message):
    """One answer per call: the id of the job, or why it was refused."""

    ids: list[str]
    problems: list[str]


class CallsKnown(Message):
    """Notification: the sender has received the answers, and will not ask for these keys again."""

    keys: list[str]


# Commands


class Forward(Message):
    """Run a client's command for a job that the receiver has."""

    version: int
    command: Raw
    once: bool  # the command is not repeatable, so this message is not sent again
    writes: bool = False
    scope: bytes = b""  # of its client; empty: none


class Forwarded(Message):
    reply: Raw


_Any = Union[  # noqa: UP007
    Failed,
    Where, Homes, Claim, Claimed, Verify, Verified, Forget, Announce, Announced, Have, Had, Reconciled, Watch,
    Unwatch, Outcomes, Values, ValuesAre, FamilyOperation, FamilyChanged, Prepare, Prepared, Decide, Decided,
    Recall, Recalled, Forward, Forwarded, Obliterated, CronClaim, CronHolder, StartChildren, ChildrenStarted,
    CancelChildren, ChildrenCancelled, MoveIn, MovedIn, MoveEnded, Rehome, Settled,
    Calls, Called, CallsKnown, DroppedLetters,
    Flows, FlowsAre,
    Members, MembersAre, StopMembers, MembersStopped, ReviveMembers, MembersRevived, AskForMembers,
    Gather, Gathering, CloseGathering,
    Queues, QueuesAre,
]  # fmt: skip

READING = frozenset({Where, Values, Members, Flows, Queues})
"""Requests that clients with only read access can cause; answering them changes nothing."""

ASKS, ANSWERS, NOTIFIES = range(3)


class PeerMessage(Struct, array_like=True, gc=False):
    """``number`` is chosen by the asker and returned with the answer.  ``turn`` is the connection on whose
    behalf it asks; the answer is made in that connection's turn.  0: no connection."""

    kind: int
    number: int
    message: _Any
    turn: int = 0


encode = Encoder().encode
decode = Decoder(PeerMessage).decode
