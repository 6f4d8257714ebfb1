"""Workflows: the steps that a job has stored, and what it waits for between two runs.

docs/workflows.md describes the states of a step and their theory; `MOVES` has them as data.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from bunqueue.model.durations import DAY_MS

# Kinds of steps.  They are stored and shown as these words.
STEP = "step"  # a function
SLEEP = "sleep"
SIGNAL = "signal"  # a wait for a signal
CHILD = "child"  # a job or a workflow that this one has started
VALUE = "value"  # decided once: a time, a random number, the winner of a race
UNDO = "undo"  # of another step: the name is UNDO_MARK and that step's name
KINDS = (STEP, SLEEP, SIGNAL, CHILD, VALUE, UNDO)
WAITS = frozenset({SLEEP, SIGNAL, CHILD})

UNDO_MARK = "undo:"  # prefix of the names of undo steps, and only of those

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
"""Maps each state to those that may follow; None: the step was not recorded before."""

UNAMBIGUOUS = 1  # in Run.keys: ":" and "%" in the id of the job are written as "%3A" and "%25"

MAX_STEPS = 10_000  # of a run, not counting its children: all of them are read when it runs again
MAX_CHILDREN = 100_000
MAX_SIGNALS = 1_000  # kept for one workflow until it waits for them
MAX_BROADCASTS = 10_000  # kept on each shard
MAX_BYTES = 1 << 20  # of a result, a cursor, or the data of a signal
MAX_STATE_BYTES = 64 << 10
MAX_SCHEMA_BYTES = 16 << 10  # of the schema for a signal's data
MAX_SET_ASIDE = 100  # quarantined signals of one workflow, which no wait could take; older ones are forgotten
MAX_TYPES_BYTES = 256 << 10  # of all schemas that are declared for the workflows of a queue
MAX_STEP_NAME = 256
MAX_ERROR = 4_096  # characters of an error that are kept with a step
KEEP_MS = DAY_MS  # default time for which a broadcast is kept for later waits
REMEMBERED_MS = 5 * 60_000  # how long a broadcast's id is remembered at least, so that it may be sent again;
# also for a signal that was taken before its workflow began again

STEP_ROWS = 16  # a bit of Job.stored: the job may have stored steps, which are removed with it

ENDED_WITH = (
    "its workflow has ended"  # the error of a sleep or a wait that was then open; a retry continues the wait
)

LEFT = "the code does not wait for it any more"  # the error of a wait that was cancelled for this reason

STUCK = "stuck"  # the reason of a dead letter whose undo has failed
UNDONE = "undone"  # the reason of one that was undone by request after it had completed


class DeclaredTypes(Struct, frozen=True, gc=False):
    """Which data the signals of a workflow may have, as declared by a program when it started to work."""

    signals: dict[str, dict[str, Any]]  # JSON Schemas by signal name
    by: str  # the program that declared them
    since: int  # epoch ms; schemas that waits declared earlier are from older code, maybe with other types


class SignalTypes(Struct, frozen=True, gc=False):
    """The declarations for the workflows of a queue, by workflow name."""

    workflows: dict[str, DeclaredTypes] = {}


class WaitSchema(Struct, array_like=True, gc=False):
    """The schema of a wait for the data of its signal; stored with the step."""

    at: int  # epoch ms
    schema: Raw  # JSON Schema as MessagePack


class Undoing(Struct, array_like=True, gc=False):
    """Why a job is being undone: the outcome that it will have."""

    at: int  # epoch ms
    reason: str
    error: str | None = None


class Waits(Struct, array_like=True, gc=False):
    """What a suspended job waits for: that all steps in one of these groups have ended, or one of them has
    failed.

    A group is a list of numbers: the first and last of each range of steps.
    """

    groups: list[list[int]]
    signal: bool  # it also waits for a signal, not only for children and times
    until: int | None = None  # epoch ms; when it resumes in any case


class Run(Struct, array_like=True, gc=False):
    """The data of a workflow apart from its steps.  A job that is not a workflow gets it with its first
    step."""

    generation: int = 0  # how many times its steps began again; part of the keys of its steps and children
    suspended: int = 0  # how many times a run was suspended
    undoable: bool = False  # it has steps that can be undone
    undone: bool = False  # those steps have been undone
    undoing: Undoing | None = None
    waits: Waits | None = None  # only for a suspended job
    declared: bool = False  # it was pushed as a workflow
    waited: list[int] | None = (
        None  # the steps that its suspended last run waited for: first and last number of each range
    )
    keys: int = 0  # how its workers make the keys of its steps: UNAMBIGUOUS, or as its first workers did
