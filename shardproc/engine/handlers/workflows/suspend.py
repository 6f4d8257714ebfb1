"""SuspendJob and ContinueAsNew: a run ends, and the job continues later."""

from __future__ import annotations

from bunqueue.model.job import NIL, UNDEFINED, Job
from bunqueue.model.names import outside
from bunqueue.model.workflow import CHILD, FAILED, REMEMBERED_MS, SIGNAL, Waits
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.workflows import ContinueAsNew, SuspendJob, WaitGroup

from ...lifecycle import events, run_steps, transitions, undo
from ...lookup import known_queue
from ...memory.open_runs import OpenRun
from ...outbox import ROW
from ...peers import children
from ...ready import space
from ...registry import handles
from ...run_writes import Op, StepHead
from ...state import Client, State
from ..push_checks import check_arguments, check_data
from .run_access import locked_job, open_run, with_run


@handles(SuspendJob)
def suspend_job(state: State, client: Client, command: SuspendJob) -> Ok:
    known_queue(state, command.queue)
    job = locked_job(state, command.id, command.token)
    if transitions.is_cancelled(job):  # its worker has stopped
        transitions.cancel(state, job)
        return Ok()
    with_run(state, job)
    run = open_run(state, job)
    groups = [_heads(run, job, group) for group in command.groups]
    waited_for = [head for group in groups for head in group if run_steps.is_open(head)]
    waited = run_steps.spans([head.number for group in groups for head in group])
    if any(map(_is_ready, groups)):
        transitions.suspend(state, job, None, None, waited)
        return Ok()
    times = [head.until for head in waited_for if head.until is not None]
    until = min(times) if times else None
    kinds = {head.kind for head in waited_for}
    if (until is not None and until <= state.now) or not kinds & {SIGNAL, CHILD}:
        transitions.suspend(state, job, None, until, waited)
        return Ok()
    spans = [run_steps.spans([head.number for head in group]) for group in groups]
    transitions.suspend(state, job, Waits(spans, SIGNAL in kinds, until), until, waited)
    return Ok()


def _heads(run: OpenRun, job: Job, group: WaitGroup) -> list[StepHead]:
    missing = next((name for name in group.steps if name not in run.heads), None)
    if missing is not None:
        text = f"job {job.id} has recorded no step {missing!r} that it could wait for"
        raise CommandError(text, Code.STEP_NOT_FOUND, field="groups", value=missing)
    return [run.heads[name] for name in group.steps]


def _is_ready(group: list[StepHead]) -> bool:
    """Whether a group no longer has to be waited for."""
    return any(head.status == FAILED for head in group) or not any(map(run_steps.is_open, group))


@handles(ContinueAsNew)
def continue_as_new(state: State, client: Client, command: ContinueAsNew) -> Ok:
    known_queue(state, command.queue)
    job = locked_job(state, command.id, command.token)
    data = bytes(command.data)
    check_data(data)
    check_arguments(data)
    if transitions.is_cancelled(job):
        transitions.cancel(state, job)
        return Ok()
    with_run(state, job)
    children.cancel_all(state, job, f"its workflow {outside(job.queue, job.id)} has begun again")
    undo.forget_steps(state, job, 1)
    state.out.runs.append((Op.DELETE_SOME_STEPS, (job.seq, 0, 0)))
    state.out.runs.append((Op.FORGET_TAKEN, (job.seq, state.now - REMEMBERED_MS)))
    space.change_data(state.queues[job.queue], job, NIL if data == UNDEFINED else data)
    job.attempts = job.stalls = 0
    transitions.suspend(state, job, None, None)
    events.emit(state, events.CONTINUED, job)
    state.out.touch(job, ROW)
    return Ok()
