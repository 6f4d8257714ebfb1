"""Steps and signals as the rules use them: writes, in order, and reads.

Steps live on disk only.  For an active job the shard knows the heads of its steps (`memory.runs`), so
recording a step needs no read.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any, Protocol

from msgspec import Struct


class Op(IntEnum):
    """The kind of write; the parameters are those of the statement with the same name in
    `storage.statements`."""

    INSERT_STEP = 0
    PUT_STEP = auto()
    UPDATE_STEP = auto()
    END_STEP = auto()
    SET_CHILD = auto()
    SET_RESULT = auto()
    DELETE_STEPS = auto()
    DELETE_SOME_STEPS = auto()
    PUT_SIGNAL = auto()
    TAKE_SIGNAL = auto()
    DELETE_SIGNALS = auto()
    DELETE_SIGNAL = auto()
    FORGET_TAKEN = auto()
    SET_ASIDE = auto()
    PASS_SIGNAL = auto()
    REOPEN_WAIT = auto()
    SET_INPUT = auto()
    LEAVE_STEP = auto()
    REOPEN_WAITS = auto()
    PUT_BROADCAST = auto()
    DELIVERED = auto()
    DELETE_BROADCAST = auto()


RunWrite = tuple[Op, tuple[Any, ...]]


class StepHead(Struct, gc=False):
    """The part of a step that the rules need.  Times are epoch ms."""

    number: int
    name: str
    kind: str
    status: str
    attempts: int = 1
    until: int | None = None
    arguments: str | None = None
    signal: str | None = None
    key: str | None = None
    child: str | None = None
    undo: bool = False


class StoredStep(Struct, gc=False):
    """A whole row of a step.  If the result or cursor is larger than requested, only its size."""

    number: int
    name: str
    kind: str
    status: str
    attempts: int
    started_at: int
    ended_at: int | None
    until: int | None
    worker: str | None
    arguments: str | None
    signal: str | None
    key: str | None
    child: str | None
    child_queue: str | None
    undo: bool
    error: str | None
    size: int
    cursor_size: int
    cursor: bytes | None
    result: bytes | None
    schema: bytes | None  # a WaitSchema, for an open wait for a signal


class OpenWait(Struct, gc=False):
    """An open wait for a signal."""

    number: int
    name: str
    signal: str
    key: str | None
    until: int | None
    schema: bytes | None  # a WaitSchema


class KeptSignal(Struct, gc=False):
    """A signal that was not taken, without data that is larger than requested; with the ``problem`` if it was
    set aside."""

    number: int
    name: str
    at: int
    expires_at: int | None
    problem: str | None
    size: int
    data: bytes | None


MAX_PROBLEM = 4_096  # bytes


def set_aside(problem: str, data: bytes) -> bytes:
    """The stored data of a signal that was set aside: two bytes with the length of the reason, the reason,
    and the data."""
    reason = problem.encode()[:MAX_PROBLEM].decode(errors="ignore").encode()
    return len(reason).to_bytes(2) + reason + data


def reason_of(stored: bytes) -> str:
    """The reason at the start of a value from `set_aside`."""
    return stored[2 : 2 + int.from_bytes(stored[:2])].decode()


class NextSignal(Struct, gc=False):
    """A signal that can be taken."""

    number: int
    at: int
    data: bytes


class StoredBroadcast(Struct, gc=False):
    id: str
    name: str
    key: str
    at: int
    expires_at: int
    data: bytes


class WaitingRun(Struct, gc=False):
    """A step that waits for a broadcast: the job's number and id, the step's number, its deadline, and its
    schema for the data."""

    seq: int
    job_id: str
    number: int
    until: int | None
    schema: bytes | None


class OpenChild(Struct, gc=False):
    """A child that has not ended, as stored, with the parent's id and the number of its step."""

    job_id: str
    number: int
    child: str
    queue: str
    input: bytes | None  # a NewChild of the peer messages; None: its shard has the child


class RunArchive(Protocol):
    """Reads of steps and signals.  They see the outbox's writes as done."""

    def heads(self, seq: int) -> list[StepHead]:
        """All steps of a job, in order."""

    def page(
        self, seq: int, after: int, limit: int, max_result: int, names: list[str] | None = None
    ) -> tuple[list[StoredStep], int | None]:
        """Up to ``limit`` steps with numbers above ``after``, only those with these names if given, and fewer
        if they are large; and the number after which to continue, None at the end.  Results and cursors above
        ``max_result`` bytes are left out."""

    def result(self, seq: int, number: int) -> tuple[bytes | None, str | None]:
        """The result and the error of a step."""

    def name(self, seq: int, number: int) -> str:
        """The name of a step; "" if the run does not have it."""

    def ended(self, seq: int, number: int) -> tuple[bytes | None, str | None]:
        """The data that a wait for a signal got, and the broadcast that it came from."""

    def open_in(self, seq: int, first: int, last: int) -> int:
        """The number of open steps in this range of numbers."""

    def open_waits(self, seq: int) -> list[StepHead]:
        """Sleeps and waits for signals that have not ended, in order."""

    def undo_left(self, seq: int) -> list[str]:
        """Steps that can be undone and have not been, last one first: completed ones, and those that were cut
        off.  A step that failed together with its workflow has nothing to undo: its attempts start at 0
        again."""

    def signals(self, seq: int, now: int, most: int) -> list[KeptSignal]:
        """Signals that no wait has taken and that have not expired, in order, with at most ``most`` bytes of
        data each."""

    def aside(self, seq: int) -> list[int]:
        """The numbers of signals that were set aside, in order."""

    def is_there(self, seq: int, number: int) -> bool:
        """Whether there is a signal with that number that no wait has taken."""

    def expired_signals(self, seq: int, now: int) -> list[int]:
        """The numbers of signals that expired before a wait took them."""

    def next_signal(self, seq: int, name: str, now: int) -> NextSignal | None:
        """The oldest signal with that name that was not taken and has not expired."""

    def counted(self, seq: int, signal_id: str | None) -> tuple[int, int, bool]:
        """The last number of a signal, the number of signals not taken, and whether one with this id
        exists."""

    def signal_waits(self, seq: int, signal: str | None, limit: int) -> list[OpenWait]:
        """Open waits of a job for a signal, or for any signal, oldest first."""

    def wait_schema(self, seq: int, number: int) -> bytes | None:
        """The schema that a wait has given: a WaitSchema."""

    def waiting_for(self, sent: StoredBroadcast, after: tuple[int, int], limit: int) -> list[WaitingRun]:
        """Open waits, in order of job and step number, of all jobs that have not received this broadcast."""

    def next_broadcast(self, seq: int, name: str, key: str, now: int, passed: int) -> StoredBroadcast | None:
        """The oldest broadcast that this job has not received, after skipping ``passed``."""

    def broadcast(self, broadcast_id: str) -> StoredBroadcast | None:
        """A broadcast by its id, while it is stored."""

    def broadcasts(self) -> int:
        """The number of stored broadcasts."""

    def old_broadcasts(self, now: int, remembered: int, limit: int) -> list[str]:
        """Ids of broadcasts that have expired and are older than ``remembered`` ms."""

    def undelivered(self) -> list[StoredBroadcast]:
        """Broadcasts whose delivery has not been completed."""

    def open_children(self) -> list[OpenChild]:
        """The open children of all live jobs."""
