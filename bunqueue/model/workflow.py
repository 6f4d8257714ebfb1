"""Workflows: the steps that a job has stored, and what it waits for between two runs.

The states of a step, with the theory beside them, are in docs/workflows.md; `MOVES` has them as data.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from bunqueue.model.durations import DAY_MS

# Kinds of steps.  They are stored, and shown, as these words.
STEP = "step"  # a function
SLEEP = "sleep"
SIGNAL = "signal"  # a wait for one
CHILD = "child"  # a job or a workflow that this one has started
VALUE = "value"  # decided once: a time, a random number, the winner of a race
UNDO = "undo"  # of the step whose name follows UNDO_MARK in its own
KINDS = (STEP, SLEEP, SIGNAL, CHILD, VALUE, UNDO)
WAITS = frozenset({SLEEP, SIGNAL, CHILD})

UNDO_MARK = "undo:"  # at the beginning of the names of undo steps, and of no others

# States of steps
RUNNING = "running"
RETRYING = "retrying"
WAITING = "waiting"
COMPLETED = "completed"
FAILED = "failed"
TIMED_OUT = "timed-out"
CANCELLED = "cancelled"
SKIPPED = "skipped"
STATUSES = (RUNNING, RETRYING, WAITING, COMPLETED, FAILED, TIMED_OUT, CANCELLED, SKIPPED)
OPEN = frozenset({RUNNING, RETRYING, WAITING})

_ENDS = frozenset({COMPLETED, FAILED, CANCELLED})
MOVES: dict[str | None, frozenset[str]] = {
    None: frozenset({RUNNING, RETRYING, WAITING, COMPLETED, FAILED}),
    RUNNING: frozenset({RUNNING, RETRYING, SKIPPED}) | _ENDS,
    RETRYING: frozenset({RUNNING, RETRYING, SKIPPED}) | _ENDS,
    WAITING: frozenset({WAITING, TIMED_OUT}) | _ENDS,
    COMPLETED: frozenset(),
    FAILED: frozenset({RETRYING, SKIPPED}),
    TIMED_OUT: frozenset(),
    CANCELLED: frozenset(),
    SKIPPED: frozenset(),
}
"""From each state to those that may follow; None: the step was not recorded before."""

UNAMBIGUOUS = 1  # of Run.keys: ":" and "%" in the id of the job are written as "%3A" and "%25"

MAX_STEPS = 10_000  # of a run, beside its children: they are all read when it runs again
MAX_CHILDREN = 100_000
MAX_SIGNALS = 1_000  # kept for one workflow, until it waits for them
MAX_BROADCASTS = 10_000  # kept on each shard
MAX_BYTES = 1 << 20  # of a result, a cursor, or the data of a signal
MAX_STATE_BYTES = 64 << 10
MAX_SCHEMA_BYTES = 16 << 10  # of what says which data a signal may have
MAX_SET_ASIDE = 100  # signals of one workflow that no wait could take; of more the oldest are forgotten
MAX_TYPES_BYTES = 256 << 10  # of all schemas that are declared for the workflows of a queue
MAX_STEP_NAME = 256
MAX_ERROR = 4_096  # characters of an error that are kept with a step
KEEP_MS = DAY_MS  # for which a broadcast waits for those who come later, unless it says otherwise
REMEMBERED_MS = 5 * 60_000  # for which a broadcast is known by its id at least, so that it may be sent again;
# also a signal that was taken before its workflow began again

STEP_ROWS = 16  # a bit of Job.stored: it may have steps, which go with it

ENDED_WITH = (
    "its workflow has ended"  # the error of a sleep or a wait that was open then; a retry lets it go on
)

LEFT = "the code does not wait for it any more"  # the error of a wait that was cancelled for that

STUCK = "stuck"  # the reason of a dead letter whose undo has failed
UNDONE = "undone"  # of one that somebody had undone after it had completed


class DeclaredTypes(Struct, frozen=True, gc=False):
    """Which data the signals of a workflow may have, as a program said when it began to work."""

    signals: dict[str, dict[str, Any]]  # JSON Schemas by the names of signals
    by: str  # which program that was
    since: int  # epoch ms; what waits said before was said by other code, which may have had other types


class SignalTypes(Struct, frozen=True, gc=False):
    """What is declared for the workflows of a queue, by their names."""

    workflows: dict[str, DeclaredTypes] = {}


class WaitSchema(Struct, array_like=True, gc=False):
    """What a wait says of the data of its signal, stored with its step."""

    at: int  # epoch ms
    schema: Raw  # JSON Schema as MessagePack


class Undoing(Struct, array_like=True, gc=False):
    """Why a job is being undone: what it will have ended with."""

    at: int  # epoch ms
    reason: str
    error: str | None = None


class Waits(Struct, array_like=True, gc=False):
    """What a suspended job waits for: that all steps of one of these groups have ended, or that one of them
    has failed.

    A group is a list of numbers, first and last of each run of steps.
    """

    groups: list[list[int]]
    signal: bool  # a signal is among it; else only children and times are
    until: int | None = None  # epoch ms; when it goes on in any case


class Run(Struct, array_like=True, gc=False):
    """What a workflow has beside its steps.  A job that is no workflow gets one with its first step."""

    generation: int = 0  # how often its steps began again; part of the keys of its steps and of its children
    suspended: int = 0  # how often it has ended a run to wait
    undoable: bool = False  # it has steps that can be undone
    undone: bool = False  # they have been
    undoing: Undoing | None = None
    waits: Waits | None = None  # of a suspended job alone
    declared: bool = False  # it was pushed as a workflow
    waited: list[int] | None = (
        None  # what its last run ended to wait for: first and last number of each run of steps
    )
    keys: int = 0  # how its workers make the keys of its steps: UNAMBIGUOUS, or as those did that began it
