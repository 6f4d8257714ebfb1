"""RecordSteps: what a run has done, and what it wants to wait for.

The moves of a step are those in `bunqueue.model.workflow.MOVES`.  A step that has ended never changes; the
answer holds what is stored, so repeating a command does no harm.
"""

from __future__ import annotations

from msgspec import UNSET, Raw

from bunqueue.model.job import Job
from bunqueue.model.workflow import (
    CHILD,
    COMPLETED,
    FAILED,
    MAX_CHILDREN,
    MAX_ERROR,
    MAX_STATE_BYTES,
    MAX_STEPS,
    MOVES,
    OPEN,
    RETRYING,
    SIGNAL,
    SLEEP,
    UNDO,
    WAITING,
    WAITS,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, refusal
from bunqueue.protocol.commands.workflows import (
    RecordSteps,
    RecordStepsReply,
    StepAnswer,
    StepRecord,
)

from ...lookup import known_queue
from ...memory.open_runs import OpenRun
from ...peers import children
from ...registry import handles
from ...run_writes import Op, StepHead
from ...scoped import is_limited
from ...state import Client, State
from . import step_rows, waits
from .run_access import advanced, locked_job, open_run, payload, with_run

MAX_REPLY = 16 << 20  # bytes of results per reply
STATE = "state"  # a kind for a record that is not a step


@handles(RecordSteps)
def record_steps(state: State, client: Client, command: RecordSteps) -> RecordStepsReply:
    known_queue(state, command.queue)
    scope = client.scope.wire if client.scope is not None and is_limited(client) else b""
    started = waits.Started(scope, {})
    results = [_recorded(state, record, started) for record in command.steps]
    _bound(results)
    for job, some in started.jobs.values():
        children.begin(state, job, some)
    return RecordStepsReply(results=results)


def _bound(results: list[StepAnswer | None]) -> None:
    """Keep the reply small enough for a frame."""
    size = 0
    for answer in results:
        if answer is not None and isinstance(answer.result, Raw):
            size += len(memoryview(answer.result))
            if size > MAX_REPLY:
                answer.result, answer.left_out = UNSET, True


def _recorded(state: State, record: StepRecord, started: waits.Started) -> StepAnswer | None:
    try:
        return _record(state, record, started)
    except CommandError as error:
        return StepAnswer(refused=refusal(error))


def _record(state: State, record: StepRecord, started: waits.Started) -> StepAnswer | None:
    job = locked_job(state, record.id, record.token)
    if record.kind == STATE:
        _set_state(state, job, record)
        return None
    _check(record)
    run = open_run(state, job)
    head = run.heads.get(record.name)
    if head is not None:
        _check_same(record, head)
        return _again(state, job, head, record)
    _check_whole(record)
    _check_move(record, None)
    _check_room(run, record)
    number = run.last + 1
    if record.kind in WAITS or record.status not in OPEN:
        advanced(state, job)
    if record.kind in WAITS:
        return waits.begin(state, job, run, number, record, started)
    _enter(state, job, run, number, record)
    return None


def _set_state(state: State, job: Job, record: StepRecord) -> None:
    """Store the value that the workflow publishes, in a row that is not a step."""
    value = payload(record.result, "state", MAX_STATE_BYTES)
    with_run(state, job)
    state.out.runs.append((Op.DELETE_SOME_STEPS, (job.seq, 0, 0)))
    state.out.runs.append(
        (Op.PUT_STEP, step_rows.row(state, job, 0, record, ended_at=state.now, result=value))
    )


# -- refusals


def _check(record: StepRecord) -> None:
    payload(record.result, "result")
    if (cursor := step_rows.cursor_of(record)) is not None:
        payload(Raw(cursor), "cursor")
    if not record.name:
        raise CommandError("name must not be empty", Code.INVALID_FIELD, field="name", value=record.name)


def _check_whole(record: StepRecord) -> None:
    """CommandError unless a new step has all it needs; a repeated request may leave that out."""
    missing = {SLEEP: ("delay",), SIGNAL: ("signal",), CHILD: ("child",)}.get(record.kind, ())
    for field in missing:
        if getattr(record, field) is None:
            text = f"{field} is missing: a step of the kind {record.kind} has one"
            raise CommandError(text, Code.INVALID_FIELD, field=field, value=None)


def _check_room(run: OpenRun, record: StepRecord) -> None:
    if record.kind == CHILD:
        full, most, what = run.children >= MAX_CHILDREN, MAX_CHILDREN, "children"
    else:
        full, most, what = run.steps >= MAX_STEPS and record.kind != UNDO, MAX_STEPS, "steps"
    if full:
        text = f"the workflow has {most} {what}: begin it again with ContinueAsNew, or use children"
        raise CommandError(text, Code.TOO_MANY_STEPS, field="name", value=record.name, bound=most)


def _check_same(record: StepRecord, head: StepHead) -> None:
    other = record.arguments is not None and head.arguments not in (None, record.arguments)
    if record.kind != head.kind or other:
        what = "with other arguments" if other else f"as a {head.kind}, not as a {record.kind}"
        text = f"step {head.name} was recorded {what}"
        raise CommandError(text, Code.STEP_CONFLICT, field="name", value=record.name)


def _check_move(record: StepRecord, before: str | None) -> None:
    waits = record.kind in WAITS
    other = waits != (record.status == WAITING) if before is None else record.status == WAITING and not waits
    if record.status not in MOVES[before] or other:
        was = f"is {before}" if before else "is new"
        text = f"status: step {record.name} {was}, and cannot become {record.status}"
        raise CommandError(text, Code.INVALID_FIELD, field="status", value=record.status)


# -- a new step


def _enter(state: State, job: Job, run: OpenRun, number: int, record: StepRecord) -> None:
    """Enter a step of a function that has started or ended, or of a value."""
    with_run(state, job)
    now, result = state.now, bytes(record.result)
    open_, lock = record.status in OPEN, job.lock
    usual = record.kind == "step" and record.status == COMPLETED and not record.undo
    if usual and record.attempts == 1 and lock is not None and step_rows.cursor_of(record) is None:
        row = (
            job.seq,
            number,
            record.name,
            now - int(record.took),
            now,
            lock.owner,
            record.arguments,
            result,
        )
        state.out.runs.append((Op.INSERT_STEP, row))
        head = StepHead(number, record.name, record.kind, COMPLETED, 1, None, record.arguments)
    else:
        until = now + int(record.delay) if open_ and record.delay is not None else None
        kept = result if record.status == COMPLETED else None
        ended_at = None if open_ else now
        full = step_rows.row(state, job, number, record, ended_at=ended_at, until=until, result=kept)
        state.out.runs.append((Op.PUT_STEP, full))
        head = step_rows.head_of(number, record, until)
    run.enter(head)
    step_rows.note(state, job, record, head)


# -- a step recorded before


def _again(state: State, job: Job, head: StepHead, record: StepRecord) -> StepAnswer | None:
    if record.kind == UNDO and head.status == FAILED:
        head.status = RETRYING  # tried again, as an operator has requested
    if record.unfit is not None and waits.is_about(head, record):
        return waits.set_aside(state, job, head, record)
    if head.status not in OPEN and record.status not in MOVES[head.status]:
        return _stored(state, job, head)
    if record.status == WAITING:
        return waits.check(state, job, head, record)
    _check_move(record, head.status)
    if head.kind in WAITS:
        return waits.give_up(state, job, head, record)
    now, open_ = state.now, record.status in OPEN
    if not open_ or step_rows.cursor_of(record) is not None:
        advanced(state, job)
    head.status, head.attempts = record.status, record.attempts
    head.until = now + int(record.delay) if open_ and record.delay is not None else None
    head.undo |= record.undo
    changed = (
        record.status,
        record.attempts,
        None if open_ else now,
        head.until,
        job.lock.owner if job.lock is not None else None,
        None if record.error is None else record.error[:MAX_ERROR],
        step_rows.cursor_of(record),
        int(record.undo),
        bytes(record.result) if record.status == COMPLETED else None,
        job.seq,
        head.number,
    )
    state.out.runs.append((Op.UPDATE_STEP, changed))
    step_rows.note(state, job, record, head)
    return None


def _stored(state: State, job: Job, head: StepHead) -> StepAnswer:
    """How a step ended earlier."""
    result, error = state.archive.runs.result(job.seq, head.number)
    answer = step_rows.answer(state, head, result=result, error=error)
    answer.existing = True
    return answer
