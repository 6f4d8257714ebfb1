"""The effects requested by the engine: replies to send and rows to write.  A reply is a promise that the rows
are stored.

The server empties the outbox once per batch: the rows in one transaction, then the replies.
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

# Job.dirty: which rows of a job must be written
CLEAN = 0
STATE = 1  # it moved: its lock or its outcome changed
ROW = 2  # its own row changed as well
NEW = 4  # alone: it was pushed without options in this batch, and nothing has happened to it since
NEW_NAMED = 8  # the same, and its identity is known

Finished = tuple[int, str]  # number and id of a finished job

# Job.stored: the rows that a job has on disk
JOB_ROW = 1
LOCK_ROW = 2
COMPLETED_ROW = 4
DEAD_ROW = 8  # the next bit is `bunqueue.model.workflow.STEP_ROWS`


class Attempt(Struct, gc=False):
    """An attempt that is over: it did not complete its job, or the completed job ran again later."""

    seq: int
    number: int
    worker: str | None
    started_at: int | None
    ended_at: int
    outcome: str
    error: str | None
    stack: str | None
    error_type: str | None = None  # the class of the error
    delay: int | None = None  # chosen delay until the next one, ms; None: no next attempt
    version: str | None = None  # of the program that ran it; not stored with the attempt


class LogEntry(Struct, gc=False):
    """One line of a job's log."""

    seq: int
    at: int
    level: str
    message: str
    kept: int = 0  # of a new line: how many lines the job keeps, if fewer than the general limit


class DeadLetter(Struct, gc=False):
    """The part of a dead letter that filters need."""

    entered_at: int
    seq: int
    reason: str
    next_retry_at: int | None


class Outdated(NamedTuple):
    """The result of checking some completed jobs: those to remove because of their queue's age limit, and the
    number of the last one checked; ``spared``: some have a retention time of their own."""

    jobs: list[Finished]
    last: int | None
    spared: bool


class OldLetter(NamedTuple):
    """A dead letter to be removed: its job, and how that failed.  A long error is cut."""

    seq: int
    id: str
    reason: str
    error: str | None
    attempts: int


class Expired(NamedTuple):
    """A finished job whose own retention time is over; ``state`` is COMPLETED or FAILED."""

    seq: int
    queue_id: int
    state: int
    letter: OldLetter


class QueueRow(Struct, gc=False):
    """A queue that is used for the first time."""

    id: int
    name: str
    created_at: int


# An entry of the event log: kind, queue id, job id ("" for events of the queue), and for some kinds a map of
# fields; see `shardproc.engine.lifecycle.events`.
EventEntry = tuple[int, int, str] | tuple[int, int, str, dict[str, Any]]


class Pushed(Struct, array_like=True, gc=False):
    """The reply to a push with an idempotency key: runs ``(first id, how many)`` of ids that increase by 1 in
    their last 12 digits, and the places of jobs that existed before.  For a single new job, its id is stored
    instead of all this, unless the hash of its content is stored too."""

    runs: list[tuple[str, int]]
    existing: list[int]
    hash: str | None = None  # of the pushed content, as given by the client
    conflicts: list[tuple[int, Action, str]] | None = None  # place, action and holder of taken keys


PushedEntry = tuple[str, str | Pushed]  # queue and idempotency key separated by a blank, reply


class Published(Struct, gc=False):
    """The events of this batch for the subscribers of one queue."""

    frames: list[bytes]
    size: int = 0
    lost: int = 0  # events beyond MAX_PUBLISHED


class Outbox:
    """The effects of a batch.  Lists, not an object per effect: this is the hot path."""

    MAX_PUBLISHED = 8 << 20  # bytes of events per batch for the subscribers of one queue

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
        self.lost: list[int] = []  # connections with a request whose outcome is unknown
        self.dirty: list[Job] = []
        self.attempts: list[Attempt] = []
        self.queues: list[QueueRow] = []
        self.records: dict[tuple[str, str], str | None] = {}  # (kind, key) -> JSON; None: delete
        self.kept = Kept()
        self.logs: list[LogEntry] = []
        self.kept_logs: dict[int, int] = {}  # number of a job -> how many earlier entries to keep
        self.dropped_queues: list[int] = []  # ids of queues whose row is deleted, their last one
        self.runs: list[RunWrite] = []  # steps and signals
        self.purges: dict[int, list[int]] = {}  # queue id -> numbers of finished jobs to delete
        self.events: list[EventEntry] = []
        self.published: dict[str, Published] = {}  # by queue
        self.notices: list[tuple[int, bytes]] = []  # unsolicited frames for connections
        self.pushed: list[PushedEntry] = []  # stored with the next events: a push always causes some
        self.size = 0  # approximate bytes of jobs and results in the replies
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
        """Store a record, or delete it with None; `table.RECORDS` names the function that restores it."""
        text = None if value is None else _encode_json(value).decode()
        self.records[kind, key] = text
        self.kept.note(kind, key, None if text is None else len(text))

    def purge(self, queue_id: int, seqs: list[int]) -> None:
        """Delete all rows of these finished jobs.  They were read from the archive in this batch, a few
        hundred at a time because they are deleted at once.  Rules call `removal.purge` instead, which updates
        the counts."""
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
        """Mark the rows of ``job`` to be written, as they are at the end of the batch."""
        if not job.dirty:
            self.dirty.append(job)
        job.dirty |= what


class Trim(NamedTuple):
    """The progress of trimming the event log."""

    removed: int
    keep: int  # the number that may still be kept
    before: int | None  # where to continue; None: done


class LogRow(NamedTuple):
    """One row of the event log."""

    first: int  # number of its first event
    at: int  # epoch ms
    size: int  # number of events
    entries: list[list[Any] | None]  # like EventEntry; null: forgotten on request


class UnreadableJob(NamedTuple):
    """The readable parts of a finished job that cannot be read as a whole."""

    id: str  # empty if that cannot be read either
    name: str
    created_at: int
    state: str
    why: str


class Archive(Protocol):
    """Finished jobs, which live on disk only.  Reads see the outbox's writes as done."""

    @property
    def runs(self) -> RunArchive:
        """Steps and signals, also of live jobs."""

    @property
    def searches(self) -> Searches:
        """Reads for searches."""

    @property
    def keys(self) -> StoredKeys:
        """The encryption keys that payloads need."""

    def find(self, job_id: str) -> Job | None:
        """A finished job by its id.  CommandError if it exists but cannot be read."""

    def known(self, job_id: str) -> Job | None:
        """The same for callers without a client to inform: None also if it cannot be read."""

    def record(self, kind: str, key: str) -> str | None:
        """The JSON value of a record."""

    def own_ids(self, seqs: list[int]) -> dict[int, str]:
        """The ids of these jobs that do not contain their numbers, for example because clients chose them."""

    def children_among(self, seqs: list[int]) -> dict[int, str]:
        """The children among these jobs, with their parents; '' for a node of a flow, which may have
        several."""

    def own_ids_after(self, after: str, limit: int) -> tuple[list[str], str | None]:
        """Up to ``limit`` ids above ``after`` that clients chose, and where to continue; None: at the end."""

    def seqs(
        self, queue_id: int, states: frozenset[int], limit: int, newest: bool, after: int | None
    ) -> list[int]:
        """Numbers of the first ``limit`` finished jobs of a queue in order of creation, or of the first after
        ``after``."""

    def load(self, seqs: list[int]) -> dict[int, Job]:
        """These finished jobs, except unreadable ones."""

    def unreadable(self, seqs: list[int]) -> dict[int, UnreadableJob]:
        """The jobs among these that `load` found to be unreadable."""

    def problem(self) -> str | None:
        """The known damage of the file, and what to do about it; None: no damage."""

    def trim_events(self, queue_id: int, keep: int, before: int | None) -> Trim:
        """Forget the events of a queue except the newest ``keep``, in a few rows of the log, from ``before``
        (None: the newest) towards older ones."""

    def event_bounds(self) -> tuple[int, int]:
        """The number of the oldest kept event, and the number of the next one."""

    def event_since(self, at: int) -> int:
        """The number of the first event at ``at`` or later, or else the number of the next event."""

    def event_rows(self, after: int) -> Iterator[LogRow]:
        """The rows of the log that hold events with numbers above ``after``, in order."""

    def dead_letters(self, queue_id: int, limit: int, after: tuple[int, int]) -> list[DeadLetter]:
        """Dead letters after ``(entered_at, seq)``, oldest first."""

    def old_dead_letters(
        self, queue_id: int, until: int, limit: int, *, spare: bool = False
    ) -> list[OldLetter]:
        """The oldest dead letters that died at ``until`` or earlier; with ``spare``, without those that have
        a retention time of their own.

        At most ``limit``; fewer if their payloads are large, but at least one if there is any."""

    def old_completed(
        self, queue_id: int, until: int, limit: int, after: int
    ) -> tuple[list[Finished], int | None]:
        """The jobs that completed at ``until`` or earlier, among the next ``limit`` completed jobs after
        number ``after`` in order of creation; and the number of the last job checked, None at the end.
        Checks fewer if their payloads are large."""

    def outdated(self, queue_id: int, until: int, limit: int, after: int) -> Outdated:
        """The same as `old_completed`, but without jobs that have a retention time of their own."""

    def expired(self, until: int, limit: int) -> list[Expired]:
        """Finished jobs of all queues whose own retention time ended at ``until`` or earlier.  Fewer than
        ``limit`` if their payloads are large."""

    def matching(self, seqs: list[int], name: str | None, error: str | None) -> set[int]:
        """The dead letters among these with that job name, and with that text in their error."""

    def errors_of(self, seqs: list[int]) -> dict[int, tuple[str | None, str | None]]:
        """The class and the text of the last error of these dead letters."""

    def due_retries(self, queue_id: int, until: int, limit: int) -> list[int]:
        """Numbers of dead letters whose automatic retry is due at ``until`` or earlier."""

    def attempts(self, seqs: list[int], interrupted: bool = False) -> dict[int, list[Attempt]]:
        """The latest failed attempts of these jobs, in order; with ``interrupted``, also interrupted ones."""

    def log(self, seq: int) -> list[LogEntry]:
        """The log of a live or finished job, oldest first."""
