"""The undo of a workflow: whether it precedes the end, how it ends, and how a retry affects it.

A workflow that would end as failed or cancelled, and has steps that can be undone, runs once more, marked as
`Undoing`: its worker undoes them, the last one first.  Only then does it end, with its original reason.  If a
step could not be undone, it ends as STUCK, and the mark stays for the next try.
"""

from __future__ import annotations

from bunqueue.model.job import COMPLETED, Job
from bunqueue.model.workflow import COMPLETED as DONE
from bunqueue.model.workflow import ENDED_WITH, STUCK, UNDO, UNDO_MARK, Undoing

from ..outbox import ROW
from ..run_writes import Op
from ..state import State

EVER = 2**53


def comes_first(job: Job) -> bool:
    """Whether a job that would end for good has to be undone first."""
    run = job.run
    return run is not None and run.undoable and run.undoing is None and not run.undone


def is_underway(job: Job) -> bool:
    """Whether the job runs only to be undone."""
    return job.run is not None and job.run.undoing is not None


def mark(state: State, job: Job, reason: str) -> None:
    """Mark a job that runs only to be undone."""
    assert job.run is not None
    job.run.undoing = Undoing(state.now, reason, job.error)
    job.attempts = job.stalls = 0
    state.out.touch(job, ROW)


def left(state: State, job: Job) -> str | None:
    """The next step to undo, for a job that runs only for that.  Call this before the job leaves its place: a
    read first writes all touched rows, and half of a move must not be written."""
    found = state.archive.runs.undo_left(job.seq) if is_underway(job) else ()
    return found[0] if found else None


def end(state: State, job: Job, left: str | None) -> str:
    """End the undo, with one step ``left`` if it failed; returns the reason for the dead letter."""
    run = job.run
    assert run is not None
    assert run.undoing is not None
    state.out.touch(job, ROW)
    if left is not None:
        job.error = f"Step {left} could not be undone: {job.error or 'its worker did not say why'}"
        return STUCK
    undoing, run.undoing, run.undone = run.undoing, None, True
    job.error = undoing.error
    return undoing.reason


def revived(state: State, job: Job) -> None:
    """Prepare the steps of a finished job that runs again.  Undone steps have to run again, and a completed
    workflow starts over; an undo that was stuck continues."""
    run = job.run
    if run is None or run.undoing is not None:
        return
    if job.state == COMPLETED:
        forget_steps(state, job, 1)
    elif run.undone:
        _forget_undone(state, job)


def reopen_waits(state: State, job: Job) -> None:
    """Reopen the waits that a finished job still had at its end, for the rest of their time.  Not during an
    undo: nothing waits then."""
    if job.run is not None and job.run.undoing is None:
        state.out.runs.append((Op.REOPEN_WAITS, (job.seq, ENDED_WITH)))


def forget_steps(state: State, job: Job, first: int) -> None:
    """Remove the steps from this number on, and earlier ones that were undone, whose results are no longer
    valid.  They run again, with new idempotency keys for the outside world."""
    run = job.run
    assert run is not None
    heads = state.archive.runs.heads(job.seq)
    undone = {
        head.name.removeprefix(UNDO_MARK) for head in heads if head.kind == UNDO and head.status == DONE
    }
    before = [head for head in heads if head.number < first]
    kept = [head for head in before if head.name not in undone]
    gone = [head.number for head in before if head.name in undone]
    state.out.runs.append((Op.DELETE_SOME_STEPS, (job.seq, first, EVER)))
    state.out.runs += [(Op.DELETE_SOME_STEPS, (job.seq, number, number)) for number in gone]
    run.generation += 1
    run.undoable = any(head.undo for head in kept)
    run.undone, run.undoing = False, None
    state.out.touch(job, ROW)


def _forget_undone(state: State, job: Job) -> None:
    run = job.run
    assert run is not None
    heads = {head.name: head for head in state.archive.runs.heads(job.seq)}
    gone: list[int] = []
    for head in heads.values():
        undo = heads.get(UNDO_MARK + head.name)
        if undo is not None:
            gone.append(undo.number)
            if undo.status == DONE:
                gone.append(head.number)
    state.out.runs += [(Op.DELETE_SOME_STEPS, (job.seq, number, number)) for number in gone]
    run.generation += 1
    run.undoable = any(head.undo for head in heads.values() if head.number not in gone)
    run.undone = False
