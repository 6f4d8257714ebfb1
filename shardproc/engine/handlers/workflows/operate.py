"""RetryWorkflow and UndoWorkflow: what an operator can do with a workflow."""

from __future__ import annotations

from bunqueue.model.job import (
    ACTIVE,
    BLOCKED,
    COMPLETED,
    DELAYED,
    FAILED,
    NIL,
    SUSPENDED,
    UNDEFINED,
    Job,
)
from bunqueue.model.names import outside
from bunqueue.model.workflow import COMPLETED as COMPLETED_STEP
from bunqueue.model.workflow import SKIPPED, UNDO, UNDO_MARK, UNDONE, Undoing
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.workflows import RetryWorkflow, UndoWorkflow
from bunqueue.protocol.job_view import state_name
from bunqueue.protocol.readable import shown

from ...lifecycle import transitions, undo
from ...lookup import key_is_taken, wrong_state
from ...peers import children
from ...registry import handles
from ...run_writes import Op, StepHead
from ...state import Client, State
from .run_access import payload, workflow

FINISHED = (FAILED, COMPLETED)
MAX_SHOWN = 5  # names of steps in a refusal


@handles(RetryWorkflow)
def retry_workflow(state: State, client: Client, command: RetryWorkflow) -> Ok:
    job = workflow(state, command.id)
    if job.state in (ACTIVE, BLOCKED):
        cannot = "be retried: cancel it first" if job.state == ACTIVE else "be retried"
        raise _refused(job, cannot, "failed, or with a step any but active and blocked")
    if command.step is None and job.state != FAILED:
        raise _refused(job, "be retried: it has not failed; name a step to retry it from", "failed")
    head = None if command.step is None else _step(state, job, command.step)
    if head is not None and head.kind == UNDO:
        text = f"step: {head.name} undoes a step, and is no step to retry from: name the step that it undoes"
        raise CommandError(text, Code.INVALID_FIELD, field="step", value=head.name)
    if job.state in FINISHED:
        _check_key(state, job)
    if head is not None:
        children.cancel_all(state, job, f"its workflow {outside(job.queue, job.id)} is retried", head.number)
        undo.forget_steps(state, job, head.number)
    if job.state in FINISHED:
        _revive(state, job, keeps_steps=head is not None)
    elif job.state == SUSPENDED:
        transitions.wake(state, job)
    elif job.state == DELAYED:
        transitions.move(state, state.queues[job.queue], job, state.now)
    return Ok()


@handles(UndoWorkflow)
def undo_workflow(state: State, client: Client, command: UndoWorkflow) -> Ok:
    job = workflow(state, command.id)
    run = job.run
    assert run is not None
    if command.action == "start":
        if run.undoing is not None:
            cannot = "be undone anew: it is being undone; if stuck, retry, skip or edit it"
            raise _refused(job, cannot, "completed, failed, cancelled")
        if job.state not in FINISHED:
            cannot = "be undone: cancel it, and it is undone"
            raise _refused(job, cannot, "completed, failed, cancelled")
        if not run.undoable or run.undone:
            text = f"Workflow {job.id} has no finished steps that can be undone"
            raise wrong_state(job.id, text, "completed steps with undo that were not undone")
    elif job.state != FAILED or run.undoing is None:
        raise _refused(job, "go on with its undo: it is not stuck", "stuck")
    _check_unused(command)
    _check_key(state, job)
    if command.action == "start":
        reason = UNDONE if job.state == COMPLETED else job.reason or UNDONE
        run.undoing = Undoing(state.now, reason, job.error or "it was undone by request")
    elif command.action == "skip":
        _skip(state, job, _named(state, job, command))
    elif command.action == "edit":
        _edit(state, job, _named(state, job, command), payload(command.data, "data"))
    _revive(state, job, keeps_steps=True)
    return Ok()


def _check_unused(command: UndoWorkflow) -> None:
    """CommandError for fields that the action does not use."""
    if command.step is not None and command.action in ("start", "retry"):
        text = f"step: the action {command.action} is about all steps; skip and edit are about one"
        raise CommandError(text, Code.INVALID_FIELD, field="step", value=command.step)
    if command.action != "edit" and bytes(command.data) not in (NIL, UNDEFINED):
        text = f"data: the action {command.action} takes none; edit does"
        raise CommandError(text, Code.INVALID_FIELD, field="data", value=shown(bytes(command.data)))


def _named(state: State, job: Job, command: UndoWorkflow) -> StepHead:
    """The step named by an action: one that still has to be undone."""
    if command.step is None:
        text = f"step is missing: the action {command.action} needs one"
        raise CommandError(text, Code.INVALID_FIELD, field="step", value=None)
    head = _step(state, job, command.step.removeprefix(UNDO_MARK))
    left = state.archive.runs.undo_left(job.seq)
    if head.name not in left:
        those = ", ".join(left[:MAX_SHOWN]) or "none"
        text = f"step: {head.name} is not to be undone (any more); still to be undone: {those}"
        raise CommandError(text, Code.INVALID_FIELD, field="step", value=head.name, bound=those)
    return head


def _step(state: State, job: Job, name: str) -> StepHead:
    found = next((head for head in state.archive.runs.heads(job.seq) if head.name == name), None)
    if found is None:
        text = f"Workflow {job.id} has recorded no step {name!r}"
        raise CommandError(text, Code.STEP_NOT_FOUND, field="step", value=name)
    return found


def _skip(state: State, job: Job, head: StepHead) -> None:
    """Record the undo of a step as done without running it."""
    heads = state.archive.runs.heads(job.seq)
    name, now = UNDO_MARK + head.name, state.now
    known = next((each for each in heads if each.name == name), None)
    if known is not None:
        changed = (SKIPPED, known.attempts, now, None, None, None, None, 0, None, job.seq, known.number)
        state.out.runs.append((Op.UPDATE_STEP, changed))
        return
    step = (job.seq, heads[-1].number + 1, name, UNDO, SKIPPED, 0, now, now)
    unused = (None,) * 8  # until, worker, arguments, signal, key, source, child and its queue
    state.out.runs.append((Op.PUT_STEP, (*step, *unused, 0, None, None, None, None)))


def _edit(state: State, job: Job, head: StepHead, data: bytes) -> None:
    """Replace the result that a step is undone with; a step that was cut off ends with it."""
    if head.status == COMPLETED_STEP:
        state.out.runs.append((Op.SET_RESULT, (data, job.seq, head.number)))
        return
    ended = (COMPLETED_STEP, head.attempts, state.now, None, None, None, None, 1, data, job.seq, head.number)
    state.out.runs.append((Op.UPDATE_STEP, ended))


def _check_key(state: State, job: Job) -> None:
    """CommandError if the job cannot get its unique key back; checked before any change."""
    queue = state.queues[job.queue]
    if not transitions.can_retake_key(state, queue, job):
        holder = queue.unique[job.unique_key or ""]
        raise key_is_taken(job.id, holder)


def _revive(state: State, job: Job, *, keeps_steps: bool = False) -> None:
    transitions.revive(state, state.queues[job.queue], job, keeps_steps=keeps_steps)


def _refused(job: Job, cannot: str, allowed: str) -> CommandError:
    return wrong_state(job.id, f"Workflow {job.id} is {state_name(job, 3)} and cannot {cannot}", allowed)
