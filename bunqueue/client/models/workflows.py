"""A workflow as the server reports it: its steps, and what it waits for."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from bunqueue.client.codecs.envelope import check_opened
from bunqueue.errors import ResultError
from bunqueue.model.workflow import FAILED, RETRYING, UNAMBIGUOUS
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.moments import MaybeMoment, Moment
from bunqueue.protocol.readable import reason

_decode = msgspec.msgpack.Decoder().decode


class Step(Struct, rename="camel", kw_only=True, frozen=True):
    """A recorded step of a workflow. `docs/workflows.md` has its kinds and states."""

    number: int
    """1, 2, ... in the order in which steps were first recorded."""
    name: str
    kind: str
    """step, sleep, signal, child, value or undo."""
    status: str
    """running, retrying, waiting, completed, failed, timed-out, cancelled or skipped."""
    attempts: int = 1
    started_at_ms: float = msgspec.field(name="startedAt")
    ended_at_ms: float | None = msgspec.field(default=None, name="endedAt")
    until_ms: float | None = msgspec.field(default=None, name="until")
    worker: str | None = None
    """The worker that last recorded it."""
    arguments: str | None = None
    """A fingerprint of its arguments."""
    signal: str | None = None
    key: str | None = None
    child: str | None = None
    """The id of the job that it has started."""
    child_queue: str | None = None
    undo: bool = False
    """Whether it can be undone."""
    error: str | None = None
    size: int = 0
    """Bytes of its result."""
    cursor_size: int = 0
    """Bytes of its cursor."""
    raw_result: Raw | UnsetType = msgspec.field(default=UNSET, name="result")
    raw_cursor: Raw | UnsetType = msgspec.field(default=UNSET, name="cursor")
    raw_schema: Raw | UnsetType = msgspec.field(default=UNSET, name="schema")
    outdated: bool = False
    """For the worker: its result is encrypted with an older key."""

    started_at = Moment("started_at_ms")
    """When its first attempt began."""
    ended_at = MaybeMoment("ended_at_ms")
    until = MaybeMoment("until_ms")
    """When its wait ends, or its next attempt begins."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at_ms is None

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, even if the next attempt of its workflow would retry it."""
        return self.status == FAILED or (self.status == RETRYING and not self.attempts)

    @property
    def result(self) -> Any:
        """Its result. Raises ResultError, also if it was left out because of its size: `size` has the size,
        and `history(max_result=...)` returns it.
        """
        return decode(self.raw_result, self.name, self.size)

    @property
    def cursor(self) -> Any:
        """The state it saved in order to continue from there. Raises ResultError, like `result`."""
        return decode(self.raw_cursor, self.name, self.cursor_size)


def decode(raw: Raw | UnsetType, step: str, size: int = 0) -> Any:
    """A stored value of `size` bytes. Raises ResultError, or CodecError for one that is still encoded."""
    if raw is UNSET and size:
        raise ResultError(
            f"what step {step!r} has stored has {size} bytes, and was left out of this answer; ask for it "
            f"with history(max_result={size})",
            field="result",
            value=size,
        )
    if raw is UNSET:
        return None
    try:
        value = _decode(raw)
    except DECODE_ERRORS as error:
        text = f"what step {step!r} has stored cannot be read: {reason(error)}"
        raise ResultError(text, field="result", value=step) from None
    check_opened(value, f"what step {step!r} has stored")
    return value


class RunUndo(Struct, frozen=True):
    """Why a run only undoes its workflow, and how the workflow will have ended."""

    reason: str = ""
    error: str | None = None


class RunInfo(Struct, frozen=True):
    """What a worker has to know about the workflow that it pulls."""

    generation: int = 0
    """How often its steps were started over."""
    steps: bool = False
    """Whether earlier runs have recorded any."""
    undone: bool = False
    undoing: RunUndo | None = None
    suspended: int = 0
    """The number of runs that were suspended to wait."""
    waited: list[int] = []
    """What its last run was suspended for: the first and last number of each range of steps."""
    keys: int = 0
    """How the keys of its steps are made; see `bunqueue.model.workflow.Run`."""


class PulledRun(Struct, rename="camel", frozen=True):
    """A pulled job, as far as it is a workflow."""

    started_at: float | None = None
    workflow: RunInfo = RunInfo(keys=UNAMBIGUOUS)  # without a record: it has not begun


class UndoReason(Struct, frozen=True):
    """Why a workflow is being undone, and how it will have ended."""

    reason: str
    error: str | None
    at_ms: float = msgspec.field(name="at")

    at = Moment("at_ms")


class KeptSignal(Struct, rename="camel", frozen=True):
    """A signal that the workflow has not waited for yet, or one that was rejected as unfit."""

    name: str
    at_ms: float = msgspec.field(name="at")
    size: int = 0
    """Bytes of its data."""
    number: int = 0
    """For `drop_signal`."""
    expires_at_ms: float | None = msgspec.field(default=None, name="expiresAt")
    problem: str | None = None
    """Why it was rejected: its data does not fit what the workflow waits for. None: it was not rejected."""
    raw_data: Raw | UnsetType = msgspec.field(default=UNSET, name="data")

    at = Moment("at_ms")
    expires_at = MaybeMoment("expires_at_ms")

    @property
    def data(self) -> Any:
        """The data sent with it. Raises ResultError if it was left out because of its size."""
        return decode(self.raw_data, f"signal {self.name}", self.size)


class OpenWait(Struct, rename="camel", frozen=True):
    """A signal that a workflow waits for."""

    step: str
    signal: str
    key: str | None = None
    """It can also be resolved by a broadcast with this key."""
    until_ms: float | None = msgspec.field(default=None, name="until")
    schema: dict[str, Any] | None = None
    """The JSON Schema of its data; None: anything is accepted, or the schema is unknown."""

    until = MaybeMoment("until_ms")


class Delivery(Struct, frozen=True):
    """What happened to a signal that was sent."""

    delivered: bool
    """Whether a wait has taken it; otherwise it is kept."""
    kept: int
    """The number of kept signals that no wait has taken."""
    waiting: list[str] = []
    """If it is kept: the names of the signals that the workflow currently waits for."""


class SignalSent(Reply, kw_only=True):
    data: Delivery


class WorkflowInfo(Struct, rename="camel", kw_only=True, frozen=True):
    """A workflow as it is now."""

    id: str
    queue: str
    name: str
    state: str
    """As for any job, and waiting-signal, waiting-children, or stuck."""
    generation: int = 0
    """How often its steps were started over: continued as new, retried from a step, or after an undo."""
    suspended: int = 0
    """The number of runs that were suspended to wait."""
    undoable: bool = False
    undone: bool = False
    undoing: UndoReason | None = None
    signals: list[KeptSignal] = []
    """Signals that it has not waited for yet, or that were rejected as unfit, oldest first."""
    waits: list[OpenWait] = []
    """The signals that it waits for."""
    steps: list[Step] = []
    next: int | None = None
    """The start of the next page of steps."""
    raw_value: Raw | UnsetType = msgspec.field(default=UNSET, name="value")

    @property
    def value(self) -> Any:
        """The value its code set as `flow.state`; None if unset."""
        return decode(self.raw_value, "state")


class Steps(Struct, frozen=True):
    """A page of steps, and the number after which the next page begins."""

    steps: list[Step]
    next: int | None = None


class StepPage(Reply, kw_only=True):
    data: Steps


class OneWorkflow(Reply, kw_only=True):
    data: WorkflowInfo
