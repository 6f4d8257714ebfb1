"""Steps that wait: sleeps, signals and children, as they begin and when their worker asks again."""

from __future__ import annotations

from msgspec import Raw
from msgspec.msgpack import Encoder

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import Job
from bunqueue.model.names import queue_name_problem
from bunqueue.model.workflow import CANCELLED, CHILD, COMPLETED, OPEN, SIGNAL, SLEEP, TIMED_OUT, WAITING
from bunqueue.protocol import peers as messages
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.workflows import StepAnswer, StepRecord

from ...lifecycle import run_steps
from ...lookup import being_cancelled
from ...memory.runs import OpenRun
from ...peers import children
from ...run_writes import Op, StepHead
from ...state import State
from .. import push
from . import signals, step_rows
from .runs import with_run

Started = dict[str, tuple[Job, list[tuple[int, messages.NewChild]]]]
"""Children whose steps were recorded by a command, by the ids of their parents."""

_encode = Encoder().encode


def begin(
    state: State, job: Job, run: OpenRun, number: int, record: StepRecord, started: Started
) -> StepAnswer:
    with_run(state, job)
    if record.kind == CHILD:
        return _child(state, job, run, number, record, started)
    until = None if record.delay is None else state.now + int(record.delay)
    taken = None
    if record.kind == SIGNAL:
        taken = signals.take(state, job, number, str(record.signal), record.key)
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
    push.check_data(bytes(fields.data), "child: ")
    push.check_fields(fields, 3, state.now, "child: ")
    own = fields.job_id or fields.custom_id
    if own == job.id:
        text = "a workflow cannot be its own child"
        raise CommandError(text, Code.INVALID_FIELD, field="child.input.jobId", value=own)
    state.next_seq += 1  # the id is not that of a job here, and must not become one
    child_id = own or state.ids.job_id(slot_of_queue(order.queue), state.now, state.next_seq - 1)
    new = messages.NewChild(child_id, order.queue, Raw(_encode(fields)), own is not None, order.detached)
    state.out.runs.append((Op.PUT_STEP, step_rows.row(state, job, number, record, child=new)))
    head = step_rows.head_of(number, record, None, child=child_id)
    run.enter(head)
    step_rows.note(state, job, record, head)
    started.setdefault(job.id, (job, []))[1].append((number, new))
    return step_rows.answer(state, head)


def give_up(state: State, job: Job, head: StepHead, record: StepRecord) -> StepAnswer | None:
    """The worker does not wait any more: the step lost a race."""
    if record.status != CANCELLED:
        text = f"status: step {head.name} ends by itself, it can only be cancelled"
        raise CommandError(text, Code.INVALID_FIELD, field="status", value=record.status)
    if head.kind == CHILD:
        children.cancel_child(state, job, head.number, "its workflow does not need it any more")
    if head.status in OPEN:
        run_steps.end(state, job, head.number, CANCELLED)
    return None


def look(state: State, job: Job, head: StepHead) -> StepAnswer:
    """Whether a wait is over by now."""
    if head.status == WAITING and head.kind != CHILD:
        taken = None
        if head.kind == SIGNAL and not _is_late(state, head):
            taken = signals.take(state, job, head.number, str(head.signal), head.key)
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


def _is_late(state: State, head: StepHead) -> bool:
    return head.until is not None and head.until <= state.now
