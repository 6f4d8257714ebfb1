"""Steps that wait: sleeps, signals and children, when they begin and when their worker polls them again."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Raw
from msgspec.msgpack import Encoder

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import NIL, Job
from bunqueue.model.names import queue_name_problem
from bunqueue.model.workflow import (
    CANCELLED,
    CHILD,
    COMPLETED,
    LEFT,
    MAX_ERROR,
    OPEN,
    SIGNAL,
    SLEEP,
    TIMED_OUT,
    WAITING,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.workflows import StepAnswer, StepRecord
from bunqueue.server.links import peers as messages

from ...lifecycle import run_steps
from ...lookup import being_cancelled, check_own_id
from ...memory.open_runs import OpenRun
from ...peers import children
from ...run_writes import Op, StepHead
from ...state import State
from .. import push_checks
from . import signals, step_rows, types
from .run_access import with_run


class Started(NamedTuple):
    """Children whose steps one command recorded, by the ids of their parents, and the scope of its client."""

    scope: bytes
    jobs: dict[str, tuple[Job, list[tuple[int, messages.NewChild]]]]


_encode = Encoder().encode


def begin(
    state: State, job: Job, run: OpenRun, number: int, record: StepRecord, started: Started
) -> StepAnswer:
    with_run(state, job)
    if record.kind == CHILD:
        return _child(state, job, run, number, record, started)
    until = None if record.delay is None else state.now + int(record.delay)
    taken = schema = None
    if record.kind == SIGNAL:
        schema = types.stored(state, record.schema)
        taken = signals.take(state, job, number, str(record.signal), record.key, schema)
    if taken is not None:
        status, result, source = COMPLETED, taken.data, taken.source
    elif until is not None and until <= state.now:
        status, result, source = _expired(record.kind), None, None
    else:
        status, result, source = WAITING, None, None
    ended_at = None if status == WAITING else state.now
    row = step_rows.row(
        state,
        job,
        number,
        record,
        ended_at=ended_at,
        until=until,
        result=result,
        source=source,
        status=status,
        schema=schema if status == WAITING else None,
    )
    state.out.runs.append((Op.PUT_STEP, row))
    head = step_rows.head_of(number, record, until, status=status)
    run.enter(head)
    step_rows.note(state, job, record, head)
    return step_rows.answer(state, head, result=result)


def _expired(kind: str) -> str:
    return COMPLETED if kind == SLEEP else TIMED_OUT


def _child(
    state: State, job: Job, run: OpenRun, number: int, record: StepRecord, started: Started
) -> StepAnswer:
    order = record.child
    assert order is not None
    if job.extra is not None and job.extra.cancellation is not None:
        raise being_cancelled(job.id, "it starts no children")
    if problem := queue_name_problem(order.queue):
        raise CommandError(problem, Code.INVALID_QUEUE, field="child.queue", value=order.queue)
    fields = order.input
    push_checks.check_data(bytes(fields.data), "child: ")
    push_checks.check_fields(fields, 3, state.now, "child: ")
    if fields.depends_on and started.scope:
        text = "child: dependsOn is not possible for an identity of some queues"
        raise CommandError(text, Code.INVALID_FIELD, field="child.input.dependsOn")
    own = fields.job_id or fields.custom_id
    if own:
        check_own_id(order.queue, own, "child.input.jobId")
    if own == job.id:
        text = "a workflow cannot be its own child"
        raise CommandError(text, Code.INVALID_FIELD, field="child.input.jobId", value=own)
    state.next_seq += 1  # the id belongs to no job here, and must not be given to one
    child_id = own or state.ids.job_id(slot_of_queue(order.queue), state.now, state.next_seq - 1)
    new = messages.NewChild(
        child_id,
        order.queue,
        Raw(_encode(fields)),
        own is not None,
        order.detached,
        started.scope,
        job.options.added_by,
    )
    state.out.runs.append((Op.PUT_STEP, step_rows.row(state, job, number, record, child=new)))
    head = step_rows.head_of(number, record, None, child=child_id)
    run.enter(head)
    step_rows.note(state, job, record, head)
    started.jobs.setdefault(job.id, (job, []))[1].append((number, new))
    return step_rows.answer(state, head)


def give_up(state: State, job: Job, head: StepHead, record: StepRecord) -> StepAnswer | None:
    """End a wait that the worker has abandoned: the step lost a race."""
    if record.status != CANCELLED:
        text = f"status: step {head.name} ends by itself, it can only be cancelled"
        raise CommandError(text, Code.INVALID_FIELD, field="status", value=record.status)
    if head.kind == CHILD:
        children.cancel_child(state, job, head.number, "its workflow does not need it any more")
    if head.status in OPEN:
        run_steps.end(state, job, head.number, CANCELLED, error=record.error)
    return None


def check(state: State, job: Job, head: StepHead, record: StepRecord) -> StepAnswer:
    """Whether a wait is over by now."""
    if head.status == WAITING and head.kind != CHILD:
        taken = None
        if head.kind == SIGNAL:
            _restate(state, job, head, record)
            taken = _inherited(state, job, head, record)
            if taken is None and not _is_late(state, head):
                schema = state.archive.runs.wait_schema(job.seq, head.number)
                taken = signals.take(state, job, head.number, str(head.signal), head.key, schema)
        if taken is not None:
            run_steps.end(
                state, job, head.number, COMPLETED, result=taken.data, source=taken.source, name=head.name
            )
            head.status = COMPLETED
            return step_rows.answer(state, head, result=taken.data)
        if _is_late(state, head):
            run_steps.end(state, job, head.number, _expired(head.kind), name=head.name)
            head.status = _expired(head.kind)
    return step_rows.answer(state, head)


def _restate(state: State, job: Job, head: StepHead, record: StepRecord) -> None:
    """Store a new schema if the code now gives another one than when the wait was recorded."""
    schema = types.stored(state, record.schema)
    if schema is not None:
        state.out.runs.append((Op.SET_INPUT, (schema, job.seq, head.number)))


def _inherited(state: State, job: Job, head: StepHead, record: StepRecord) -> signals.Taken | None:
    """Take over what a wait for the same signal got that is no longer in the code; that one ends without
    it."""
    run = state.runs.get(job.id)
    other = run.heads.get(record.instead) if run is not None and record.instead is not None else None
    if other is None or (other.kind, other.status, other.signal) != (SIGNAL, COMPLETED, head.signal):
        return None
    result, source = state.archive.runs.ended(job.seq, other.number)
    if result is None or (source is not None and other.key != head.key):
        return None
    state.out.runs.append((Op.LEAVE_STEP, (LEFT, job.seq, other.number)))
    state.out.runs.append((Op.PASS_SIGNAL, (head.number, job.seq, other.number)))
    other.status = CANCELLED
    return signals.Taken(result, source)


def is_about(head: StepHead, record: StepRecord) -> bool:
    """Whether a wait still has the data that a record rejects.  If the record is repeated, the wait may have
    other data by then, which the number of its attempts shows."""
    return head.kind == SIGNAL and head.status == COMPLETED and head.attempts == record.attempts


def set_aside(state: State, job: Job, head: StepHead, record: StepRecord) -> StepAnswer:
    """The code cannot use the data that a wait got: set it aside and continue to wait."""
    result, source = state.archive.runs.ended(job.seq, head.number)
    text = str(record.unfit)[:MAX_ERROR]
    signals.put_aside(state, job, str(head.signal), text, result or NIL, source)
    schema = types.stored(state, record.schema)
    state.out.runs.append((Op.REOPEN_WAIT, (schema, job.seq, head.number)))
    head.status, head.attempts = WAITING, head.attempts + 1
    return check(state, job, head, record)


def _is_late(state: State, head: StepHead) -> bool:
    return head.until is not None and head.until <= state.now
