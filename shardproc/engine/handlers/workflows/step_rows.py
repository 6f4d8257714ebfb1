"""A step as a row, as a head, and as an answer; shared by the recording of all kinds."""

from __future__ import annotations

from msgspec import UNSET, Raw
from msgspec.msgpack import Encoder

from bunqueue.model.job import UNDEFINED, Job
from bunqueue.model.workflow import MAX_ERROR, OPEN
from bunqueue.protocol.commands.workflows import StepAnswer, StepRecord
from bunqueue.server.links import peers as messages

from ...lifecycle import events
from ...outbox import ROW
from ...run_writes import StepHead
from ...state import State

_encode = Encoder().encode


def cursor_of(record: StepRecord) -> bytes | None:
    cursor = bytes(record.cursor)
    return None if cursor == UNDEFINED else cursor


def row(
    state: State,
    job: Job,
    number: int,
    record: StepRecord,
    *,
    ended_at: int | None = None,
    until: int | None = None,
    result: bytes | None = None,
    child: messages.NewChild | None = None,
    source: str | None = None,
    status: str | None = None,
    schema: bytes | None = None,
) -> tuple[object, ...]:
    """The parameters of PUT_STEP."""
    return (
        job.seq,
        number,
        record.name,
        record.kind,
        status or record.status,
        record.attempts,
        state.now - int(record.took),
        ended_at,
        until,
        job.lock.owner if job.lock is not None else None,
        record.arguments,
        record.signal,
        record.key,
        source,
        None if child is None else child.id,
        None if child is None else child.queue,
        int(record.undo),
        None if record.error is None else record.error[:MAX_ERROR],
        cursor_of(record),
        schema if child is None else _encode(child),
        result,
    )


def head_of(
    number: int,
    record: StepRecord,
    until: int | None,
    *,
    status: str | None = None,
    child: str | None = None,
) -> StepHead:
    return StepHead(
        number,
        record.name,
        record.kind,
        status or record.status,
        record.attempts,
        until,
        record.arguments,
        record.signal,
        record.key,
        child,
        record.undo,
    )


def note(state: State, job: Job, record: StepRecord, head: StepHead) -> None:
    """Update flags, totals and events for a step that can be undone or has ended."""
    if record.undo and job.run is not None and not job.run.undoable:
        job.run.undoable = True
        state.out.touch(job, ROW)
    state.totals.steps += 1
    if head.status not in OPEN:
        events.emit(state, events.STEP, job, step=head.name, status=head.status)


def answer(
    state: State, head: StepHead, *, result: bytes | None = None, error: str | None = None
) -> StepAnswer:
    answer = StepAnswer(status=head.status, number=head.number)
    if head.status in OPEN and head.until is not None:
        answer.until, answer.wait = float(head.until), float(max(0, head.until - state.now))
    if head.attempts != 1:
        answer.attempts = head.attempts
    if head.child is not None:
        answer.child = head.child
    answer.result = UNSET if result is None else Raw(result)
    answer.error = UNSET if error is None else error
    return answer
