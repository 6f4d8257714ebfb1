"""What the engine asks for: replies to send and rows to write, in that order of promise.

The server empties it once a batch: the rows in one transaction, then the replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

from bunqueue.model.job import Job
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.core import Action

from .criteria import Searches
from .memory.kept import Kept
from .run_writes import RunArchive, RunWrite
from .stored_keys import StoredKeys

_encode_json = msgspec.json.Encoder().encode

# Job.dirty: what of a job must be written
CLEAN = 0
STATE = 1  # it moved: its lock or its outcome
ROW = 2  # its own row changed, too

Finished = tuple[int, str]  # number and id of a finished job

# Job.stored: which rows a job has on disk
JOB_ROW = 1
LOCK_ROW = 2
COMPLETED_ROW = 4
DEAD_ROW = 8  # the next bit is `bunqueue.model.workflow.STEP_ROWS`


class Attempt(Struct, gc=False):
    """One attempt that is over: it did not complete its job, or it did and the job was run again later."""

    seq: int
    number: int
    worker: str | None
    started_at: int | None
    ended_at: int
    outcome: str
    error: str | None
    stack: str | None
    error_type: str | None = None  # the class of the error
    delay: int | None = None  # ms until the next one, as they were chosen; None: there is none


class LogEntry(Struct, gc=False):
    """One line of a job's log."""

    seq: int
    at: int
    level: str
    message: str
    kept: int = 0  # of a new line: how many the job then keeps, if that is not more than all may


class DeadLetter(Struct, gc=False):
    """What one needs to know of a dead letter to choose it."""

    entered_at: int
    seq: int
    reason: str
    next_retry_at: int | None


class Outdated(NamedTuple):
    """Of completed jobs that were looked at, those that go by the age that their queue allows, and the number
    of the last one looked at; ``spared``: some of them say themselves how long they are kept."""

    jobs: list[Finished]
    last: int | None
    spared: bool


class OldLetter(NamedTuple):
    """A dead letter that goes: its job, and how that failed; of a long error only the beginning."""

    seq: int
    id: str
    reason: str
    error: str | None
    attempts: int


class Expired(NamedTuple):
    """A finished job whose own time to be kept is over; ``state`` is COMPLETED or FAILED."""

    seq: int
    queue_id: int
    state: int
    letter: OldLetter


class QueueRow(Struct, gc=False):
    """A queue that was met for the first time."""

    id: int
    name: str
    created_at: int


# An entry of the event log: kind, queue id, job id ("" when it is about the queue), and for some kinds a map
# of fields; see `shardproc.engine.lifecycle.events`.
EventEntry = tuple[int, int, str] | tuple[int, int, str, dict[str, Any]]


class Pushed(Struct, array_like=True, gc=False):
    """What a push with an idempotency key was answered: runs ``(first id, how many)`` of ids that differ by
    1 in their last 12 digits, and the places of those jobs that were there before.  Of one new job its id
    stands instead of all this, unless what it was is to be known, too."""

    runs: list[tuple[str, int]]
    existing: list[int]
    hash: str | None = None  # of what was pushed, as its client gave it
    conflicts: list[tuple[int, Action, str]] | None = None  # place, action and holder of keys that were taken


PushedEntry = tuple[str, str | Pushed]  # queue and idempotency key with a blank between, answer


class Published(Struct, gc=False):
    """What the subscribers of one queue get with this batch."""

    frames: list[bytes]
    size: int = 0
    lost: int = 0  # events beyond MAX_PUBLISHED


class Outbox:
    """Lists, not an object per effect: this is the hot path."""

    MAX_PUBLISHED = 8 << 20  # bytes of events in one batch for the subscribers of one queue

    __slots__ = (
        "attempts",
        "dirty",
        "dropped_queues",
        "durable",
        "events",
        "kept",
        "kept_logs",
        "logs",
        "lost",
        "notices",
        "peer_messages",
        "published",
        "purges",
        "pushed",
        "queues",
        "records",
        "replies",
        "runs",
        "size",
    )

    def __init__(self) -> None:
        self.replies: list[tuple[int, Reply | Raw]] = []
        self.peer_messages: list[tuple[int, bytes]] = []  # to other shards
        self.lost: list[int] = []  # connections that asked for what may have been done or not
        self.dirty: list[Job] = []
        self.attempts: list[Attempt] = []
        self.queues: list[QueueRow] = []
        self.records: dict[tuple[str, str], str | None] = {}  # (kind, key) -> JSON; None: delete
        self.kept = Kept()
        self.logs: list[LogEntry] = []
        self.kept_logs: dict[int, int] = {}  # number of a job -> how many entries are kept, before these
        self.dropped_queues: list[int] = []  # ids of queues whose row goes; they have no other rows any more
        self.runs: list[RunWrite] = []  # steps and signals
        self.purges: dict[int, list[int]] = {}  # queue id -> numbers of finished jobs that go
        self.events: list[EventEntry] = []
        self.published: dict[str, Published] = {}  # by queue
        self.notices: list[tuple[int, bytes]] = []  # frames for connections that did not ask
        self.pushed: list[PushedEntry] = []  # stored with the next events, as a push causes some
        self.size = 0  # bytes of jobs and results in the replies, about
        self.durable = False  # something in this batch must survive a power loss

    @property
    def writes(self) -> bool:
        return bool(
            self.dirty
            or self.events
            or self.attempts
            or self.queues
            or self.records
            or self.logs
            or self.kept_logs
            or self.runs
            or self.purges
            or self.dropped_queues
        )

    def keep(self, kind: str, key: str, value: Struct | None) -> None:
        """Store a record, or with None delete it; `table.RECORDS` says what recovers it after a restart."""
        text = None if value is None else _encode_json(value).decode()
        self.records[kind, key] = text
        self.kept.note(kind, key, None if text is None else len(text))

    def purge(self, queue_id: int, seqs: list[int]) -> None:
        """Have all rows of these finished jobs deleted.  They were read from the archive in this batch;
        a few hundred at a time, as this is done in one go.  Rules call `removal.purge`, which counts."""
        if seqs:
            self.purges.setdefault(queue_id, []).extend(seqs)

    def publish(self, queue: str, frame: bytes) -> None:
        """Send an event to the subscribers of a queue."""
        published = self.published.get(queue)
        if published is None:
            published = self.published[queue] = Published([])
        if published.size > self.MAX_PUBLISHED:
            published.lost += 1
            return
        published.frames.append(frame)
        published.size += len(frame)

    def touch(self, job: Job, what: int = STATE) -> None:
        """Have the rows of ``job`` written as they are when the batch ends."""
        if not job.dirty:
            self.dirty.append(job)
        job.dirty |= what


class Trim(NamedTuple):
    """How far a trimming of the event log has come."""

    removed: int
    keep: int  # how many may still be kept
    before: int | None  # where to go on; None: done


class LogRow(NamedTuple):
    """One row of the event log."""

    first: int  # number of its first event
    at: int  # epoch ms
    size: int  # how many events it holds
    entries: list[list[Any] | None]  # like EventEntry; null: was forgotten on request


class Remains(NamedTuple):
    """What is left of a finished job that cannot be read."""

    id: str  # empty where that cannot be read, either
    name: str
    created_at: int
    state: str
    why: str


class Archive(Protocol):
    """Finished jobs, which live on disk alone.  Reads see the outbox's writes as done."""

    @property
    def runs(self) -> RunArchive:
        """Steps and signals, of live jobs, too."""

    @property
    def searches(self) -> Searches:
        """Its part in searches."""

    @property
    def keys(self) -> StoredKeys:
        """Which keys of encryption payloads need."""

    def find(self, job_id: str) -> Job | None:
        """A finished job by its id.  CommandError when it is there, but cannot be read."""

    def known(self, job_id: str) -> Job | None:
        """The same for those who have no client to tell: None, too, when it cannot be read."""

    def record(self, kind: str, key: str) -> str | None:
        """The JSON value of a record."""

    def own_ids(self, seqs: list[int]) -> dict[int, str]:
        """Of jobs by their numbers: the ids that do not tell these, because clients chose them, say."""

    def children_among(self, seqs: list[int]) -> dict[int, str]:
        """Of jobs by their numbers: those that are children, with their parents; '' for a node of a flow,
        which may have several."""

    def own_ids_after(self, after: str, limit: int) -> tuple[list[str], str | None]:
        """Ids above ``after`` that clients chose, at most so many, and where to go on; None: at the end."""

    def seqs(
        self, queue_id: int, states: frozenset[int], limit: int, newest: bool, after: int | None
    ) -> list[int]:
        """Numbers of the first ``limit`` finished jobs of a queue by order of creation, or of those
        that follow ``after``."""

    def load(self, seqs: list[int]) -> dict[int, Job]:
        """These finished jobs, as far as they can be read."""

    def remains(self, seqs: list[int]) -> dict[int, Remains]:
        """Those of these jobs that `load` has found to be unreadable."""

    def problem(self) -> str | None:
        """What is known to be damaged in the file, and what to do about it; None: nothing."""

    def trim_events(self, queue_id: int, keep: int, before: int | None) -> Trim:
        """Forget the events of a queue but for the newest ``keep``: in a few rows of the log, from ``before``
        (None: the newest) to older ones."""

    def event_bounds(self) -> tuple[int, int]:
        """The number of the oldest event that is kept, and the number that the next one will have."""

    def event_since(self, at: int) -> int:
        """The number of the first event that happened at ``at`` or later, or that the next one will have."""

    def event_rows(self, after: int) -> Iterator[LogRow]:
        """The rows of the log that hold events with numbers above ``after``, in order."""

    def dead_letters(self, queue_id: int, limit: int, after: tuple[int, int]) -> list[DeadLetter]:
        """Dead letters after ``(entered_at, seq)``, oldest first."""

    def old_dead_letters(
        self, queue_id: int, until: int, limit: int, *, spare: bool = False
    ) -> list[OldLetter]:
        """The oldest dead letters, those that died at ``until`` at the latest; with ``spare`` but for those
        that say themselves how long they are kept.

        At most ``limit``; fewer when their payloads are large, at least one if there is any."""

    def old_completed(
        self, queue_id: int, until: int, limit: int, after: int
    ) -> tuple[list[Finished], int | None]:
        """Of the next ``limit`` completed jobs after number ``after``, by order of creation, those that
        completed at ``until`` at the latest; and the number of the last job looked at, None at the end.

        Looks at fewer when their payloads are large."""

    def outdated(self, queue_id: int, until: int, limit: int, after: int) -> Outdated:
        """As `old_completed`, but for jobs that say themselves how long they are kept."""

    def expired(self, until: int, limit: int) -> list[Expired]:
        """Finished jobs of all queues that were to be kept until ``until`` at the latest, as they say
        themselves.  Fewer than ``limit`` when their payloads are large."""

    def matching(self, seqs: list[int], name: str | None, error: str | None) -> set[int]:
        """Those of these dead letters whose job has that name, and whose error has that text in it."""

    def due_retries(self, queue_id: int, until: int, limit: int) -> list[int]:
        """Numbers of dead letters that are to be tried again by themselves at ``until`` at the latest."""

    def attempts(self, seqs: list[int], interrupted: bool = False) -> dict[int, list[Attempt]]:
        """The failed attempts of these jobs, the last ones of each, in order; also those that were
        ``interrupted``, if they are wanted."""

    def log(self, seq: int) -> list[LogEntry]:
        """The log of a live or finished job, oldest first."""
