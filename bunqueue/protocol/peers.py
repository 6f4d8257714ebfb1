"""What shards say to each other, through the router.

A message asks, answers, or informs.  A question is repeated when the other shard was restarted, and an answer
to a question that is no longer open is dropped.  So handling a message twice must have the effect of handling
it once.

``durable``: have all that this needs flushed to the disk before the answer leaves, because a client was
promised that it survives a power cut.
"""

from __future__ import annotations

from typing import Union

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.job import Cause


class Message(Struct, tag=True, array_like=True, gc=False):
    """The base of all messages."""


class Failed(Message):
    """The answer to a question that only reads and could not be answered, because of a mistake of ours."""

    error: str


class Outcome(Message):
    """What became of a job.  The fields from ``child`` on are set only for a job that failed."""

    id: str
    word: int
    child: str = ""  # "queue:id"
    parent: str = ""
    policy: int = 0
    error: str = ""
    obliterated: bool = False  # its queue was: only jobs that wait for it already may know of it


UNKNOWN, PENDING, DONE, DEAD, DEAD_REMOVED = range(5)  # the last: a dead letter that was removed
WAIT, FAIL_PARENT, REMOVE_DEPENDENCY, IGNORE, CONTINUE = range(5)  # policies


# The directory of ids that clients chose.


class Where(Message):
    """Which shards have these jobs?  Asked of the shard to which their ids point."""

    ids: list[str]


class Homes(Message):
    """One shard an id: whoever has the job, if anybody has it."""

    shards: list[int]


class Claim(Message):
    """May the asker become the home of jobs with these ids?

    ``wait``: until flows that are being pushed are decided, if they have such ids.
    """

    ids: list[str]
    wait: bool
    durable: bool = False


class Claimed(Message):
    """For each id: the asker's number if it is granted, else the shard that has it; -1: try again; -2: a flow
    has it that is not decided."""

    homes: list[int]


class Verify(Message):
    """Is the job there and unfinished?  A finished one makes way.  ``wait`` as in `Claim`."""

    ids: list[str]
    wait: bool
    durable: bool = False


class Verified(Message):
    """One word an id: FREE, TAKEN, BUSY or UNDECIDED."""

    words: list[int]


FREE, TAKEN, BUSY, UNDECIDED = range(4)


class DroppedLetter(Struct, array_like=True, gc=False):
    """A dead letter that was dropped, in queue ``queue`` at ``at`` (epoch ms); ``why`` is the bound, and
    ``most`` how many the queue kept.  The others are of the job."""

    at: int
    queue: str
    why: str
    most: int
    reason: str
    error: str | None
    attempts: int


class DroppedLetters(Message):
    """Told: these jobs of the sender, whose ids point to the other shard, were dropped."""

    ids: list[str]
    letters: list[DroppedLetter]


class Forget(Message):
    """Told: these jobs are no longer with the sender; and what became of them, if it is worth knowing."""

    ids: list[str]
    outcomes: list[Outcome | None]


# What shards have, if one of them may have forgotten something


class Announce(Message):
    """Which jobs do you have whose ids point to me?  Those with ids above ``after``, some at a time."""

    after: str


class Announced(Message):
    """``live``: for each id, whether the job has not ended.  ``after``: where to go on; None: that is all."""

    ids: list[str]
    live: list[bool]
    after: str | None


class Have(Message):
    """What do you have of these jobs?"""

    ids: list[str]


class Holding(Struct, array_like=True, gc=False):
    """HIDDEN: prepared for a flow.  ``flow``: the one that it came with, if that was on several shards."""

    word: int
    flow: str = ""


class Had(Message):
    """``until``: up to then, in epoch ms, the shard has forgotten nothing; None: it never has."""

    jobs: list[Holding]
    until: int | None


ABSENT, ENDED, HIDDEN, LIVE = range(4)


class Reconciled(Message):
    """Told: what the sender had of flows that others have lost is gone for good."""


class Obliterated(Message):
    """Information: a queue was obliterated, and the outcomes of its jobs are not kept."""

    queue: str


# Dependencies


class Watch(Message):
    """What became of these jobs?  Those that are pending are reported again when they end."""

    ids: list[str]
    durable: bool = False


class Unwatch(Message):
    """Told: nobody waits for these jobs any more at the sender's."""

    ids: list[str]


class Outcomes(Message):
    """The answer to Watch, in its order; and told by itself when jobs are decided."""

    jobs: list[Outcome]


class Values(Message):
    """The queues and results of these jobs."""

    ids: list[str]


class Value(Struct, array_like=True, gc=False):
    queue: str
    result: Raw


class ValuesAre(Message):
    """None: there is no such job, or it has no result."""

    values: list[Value | None]
    gone: list[str] = []
    """Those of which nothing is known, not even that they had no result."""


# Parents and children


class FamilyOperation(Message):
    """Do something to one job (a child or a parent) that concerns another."""

    operation: int
    id: str
    other: str = ""
    queue: str = ""
    durable: bool = False


FIND, LOOK, JOIN, LIST, ADOPT, PART, REMOVE = range(7)  # operations


class FamilyChanged(Message):
    """``found``: it is done.  ``queue`` and ``state`` are those of the job; "" if there is no such job.
    ``full``: it has as many children as it can."""

    found: bool
    queue: str = ""
    state: int = 0
    full: bool = False


# Children of workflows


class NewChild(Struct, array_like=True, gc=False):
    """A job to be started; ``input`` is its JobFields.  ``own``: the user chose the id.  ``detached``: nobody
    waits for it."""

    id: str
    queue: str
    input: Raw
    own: bool = False
    detached: bool = False


class StartChildren(Message):
    """Push these jobs for a workflow, each unless it has been before; watch them, but for detached ones."""

    parent: str
    children: list[NewChild]


class Started(Struct, array_like=True, gc=False):
    """``id`` is that of the job that stands for the child, ``error`` why there is none."""

    id: str
    error: str = ""


class ChildrenStarted(Message):
    """For each child, in order; ``outcomes`` are those of the jobs that stand for them."""

    started: list[Started]
    outcomes: list[Outcome]


class CancelChildren(Message):
    """Cancel these jobs, as far as they are children of that workflow and have not ended."""

    parent: str
    ids: list[str]
    reason: str


class ChildrenCancelled(Message):
    """They are, or will be."""


# Flows


class Prepare(Message):
    """Make these jobs of a flow ready to appear; ``jobs`` is the part of the request that is the asker's.

    ``alone``: no other shard has a part of it; else ``others`` are the queue and the id of one job of each
    other part.  With a ``flow_id`` they are nodes of the flow of that id, and those
    with the ids ``gatherers`` gather.
    """

    flow: str
    jobs: Raw
    alone: bool
    durable: bool = False
    others: list[tuple[str, str]] = []
    flow_id: str = ""
    gatherers: list[str] = []


class Prepared(Message):
    """``error`` is why not, and ``code`` its code."""

    error: str = ""
    code: str = ""
    jobs: list[Raw] = []


class Decide(Message):
    """Let a prepared flow appear, or forget it."""

    flow: str
    commit: bool
    durable: bool = False


class Decided(Message):
    """It is so."""


class Recall(Message):
    """What was decided about a flow?  ``wait``: answer when that is known."""

    flow: str
    wait: bool


class Recalled(Message):
    """None: it is not decided yet."""

    commit: bool | None


# Nodes of flows with ids


class Members(Message):
    """Which nodes of a flow do you have, with ids above ``after``?  Some at a time."""

    flow: str
    after: str = ""


class Member(Struct, array_like=True, gc=False):
    """A node as it is now: all that its view needs.  ``after`` and ``pending`` are ids of jobs."""

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
    """``more``: where to go on; None: that is all."""

    members: list[Member]
    more: str | None


class Flows(Message):
    """Which flows have nodes here, with ids above ``after``?  At most ``limit`` of them."""

    prefix: str
    queue: str | None
    after: str
    limit: int


class FlowsAre(Message):
    """``more``: the id up to which was looked; None: that is all."""

    flows: list[str]
    more: str | None


class StopMembers(Message):
    """Cancel these nodes, as far as they have not ended."""

    ids: list[str]
    reason: str | None
    grace: int


class MembersStopped(Message):
    """How many were cancelled, and how many have to be ended by their workers."""

    stopped: int
    running: int


class ReviveMembers(Message):
    """Bring these finished nodes back, each to wait for the jobs beside it."""

    nodes: list[tuple[str, list[str]]]


class MembersRevived(Message):
    """The ids of those that were there to be brought back."""

    ids: list[str]


class Gather(Message):
    """Whether these nodes gather, and still take new jobs; with ``closing`` they take none from now on."""

    ids: list[str]
    closing: bool = False


class Gathering(Message):
    """A word for each."""

    words: list[int]


NO_GATHERER, OPEN, CLOSED = range(3)


class CloseGathering(Message):
    """This node is to wait for those others.  The answer is that to Gather."""

    id: str
    others: list[str]


class AskForMembers(Message):
    """Ask what became of the jobs for which these nodes wait.  The answer is the same."""

    ids: list[str]


# Jobs that go to another queue


class MoveIn(Message):
    """Take these jobs, encoded by `shardproc.engine.peers.moves`, into a queue."""

    move: str
    queue: str
    jobs: bytes


class MovedIn(Message):
    """It is done, but for the jobs with these ids, for these reasons."""

    ids: list[str]
    reasons: list[str]


class MoveEnded(Message):
    """Nobody will ask about this move again.  The answer is the same."""

    move: str


class Rehome(Message):
    """Jobs whose ids point to the other shard are with this one from now on.  The answer is the same."""

    ids: list[str]
    shard: int


class Settled(Message):
    """Answer with the same when this job is not on its way any more."""

    id: str


# Names of schedules


class CronClaim(Message):
    """May the asker set a schedule of this name, for this queue and app ("": none)?"""

    name: str
    queue: str
    app: str


class CronHolder(Message):
    """The queue and app that have the name, or are about to; no queue: nobody has it here."""

    queue: str = ""
    app: str = ""


# Jobs for dead ones


class Call(Struct, array_like=True, gc=False):
    """A job to be added because another one has failed for good.  ``key`` is the sender's, and never comes
    again; ``job`` is an `OnDead`."""

    key: str
    queue: str
    job: Raw
    cause: Cause


class Calls(Message):
    """Add these jobs, but for those that have been added for the same key before."""

    calls: list[Call]


class Called(Message):
    """One answer a call: the id of the job, or why it was refused."""

    ids: list[str]
    problems: list[str]


class CallsKnown(Message):
    """Information: the sender has heard the answers, and will not ask for these keys again."""

    keys: list[str]


# Commands


class Forward(Message):
    """Carry out a client's command whose job is with you."""

    version: int
    command: Raw
    once: bool  # doing it twice is something else, so it is not asked again
    writes: bool = False


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
]  # fmt: skip

READING = frozenset({Where, Values, Members, Flows})
"""Questions that clients who may only read can cause; their answers change nothing."""

ASKS, ANSWERS, NOTIFIES = range(3)


class PeerMessage(Struct, array_like=True, gc=False):
    """``number`` is the asker's, and comes back with the answer.  ``turn`` is the connection for which it
    asks, in whose turn the answer is made; 0: for none."""

    kind: int
    number: int
    message: _Any
    turn: int = 0


encode = Encoder().encode
decode = Decoder(PeerMessage).decode
