"""GetSteps and GetWorkflow: views of a workflow, live or finished."""

from __future__ import annotations

from msgspec import UNSET, Raw
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.dead_letters import reason_of
from bunqueue.model.job import Job
from bunqueue.model.workflow import STEP_ROWS, WaitSchema
from bunqueue.protocol.commands.workflows import (
    GetSteps,
    GetWorkflow,
    KeptSignal,
    OpenWait,
    Steps,
    StepsReply,
    StepView,
    UndoView,
    WorkflowReply,
    WorkflowView,
)
from bunqueue.protocol.job_view import state_name

from ...lookup import find, known_queue, not_found
from ...registry import handles
from ...run_writes import KeptSignal as StoredSignal
from ...run_writes import OpenWait as StoredWait
from ...run_writes import StoredStep
from ...state import Client, State
from . import types
from .run_access import workflow
from .signals import SHOWN_WAITS

_encode = Encoder().encode
_decode_schema = Decoder(WaitSchema).decode


@handles(GetSteps)
def get_steps(state: State, client: Client, command: GetSteps) -> StepsReply:
    known_queue(state, command.queue)
    job = find(state, command.id)
    if job is None or job.queue != command.queue:
        raise not_found(state, command.id)
    if not job.stored & STEP_ROWS:
        return StepsReply(data=Steps([], None))
    reads = state.archive.runs
    page, after = reads.page(job.seq, command.after, command.limit, command.max_result, command.names)
    return StepsReply(data=Steps([_view(step) for step in page], after))


@handles(GetWorkflow)
def get_workflow(state: State, client: Client, command: GetWorkflow) -> WorkflowReply:
    job = workflow(state, command.id)
    run, reads = job.run, state.archive.runs
    assert run is not None
    page, after = reads.page(job.seq, command.after, command.limit, command.max_result)
    value, _ = reads.result(job.seq, 0)
    undoing = run.undoing
    return WorkflowReply(
        data=WorkflowView(
            id=job.id,
            queue=job.queue,
            name=job.name,
            state=state_name(job, 3),
            generation=run.generation,
            suspended=run.suspended,
            undoable=run.undoable,
            undone=run.undone,
            undoing=None
            if undoing is None
            else UndoView(reason_of(undoing.reason), undoing.error, float(undoing.at)),
            signals=[_signal(kept) for kept in reads.signals(job.seq, state.now, command.max_result)],
            waits=[_wait(state, job, wait) for wait in reads.signal_waits(job.seq, None, SHOWN_WAITS)],
            steps=[_view(step) for step in page],
            next=after,
            value=UNSET if value is None else Raw(value),
        )
    )


def _signal(kept: StoredSignal) -> KeptSignal:
    return KeptSignal(
        kept.name,
        float(kept.at),
        kept.size,
        kept.number,
        _time(kept.expires_at),
        kept.problem,
        UNSET if kept.data is None else Raw(kept.data),
    )


def _wait(state: State, job: Job, wait: StoredWait) -> OpenWait:
    schema = types.schema_of(state, job, wait.signal, wait.schema)
    shown = UNSET if schema is None else Raw(_encode(schema))
    return OpenWait(wait.name, wait.signal, wait.key, _time(wait.until), shown)


def _time(at: int | None) -> float | None:
    return None if at is None else float(at)


def _view(step: StoredStep) -> StepView:
    return StepView(
        number=step.number,
        name=step.name,
        kind=step.kind,
        status=step.status,
        attempts=step.attempts,
        started_at=float(step.started_at),
        ended_at=_time(step.ended_at),
        until=_time(step.until),
        worker=step.worker or None,
        arguments=step.arguments,
        signal=step.signal,
        key=step.key,
        child=step.child,
        child_queue=step.child_queue,
        undo=step.undo,
        error=step.error,
        size=step.size,
        cursor_size=step.cursor_size,
        cursor=UNSET if step.cursor is None else Raw(step.cursor),
        result=UNSET if step.result is None else Raw(step.result),
        schema=UNSET if step.schema is None else _decode_schema(step.schema).schema,
    )
