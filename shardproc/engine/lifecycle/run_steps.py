"""Steps that end, whoever ends them: what is written, and who hears of it."""

from __future__ import annotations

from bunqueue.model.job import COMPLETED, REMOVED, SUSPENDED, Job
from bunqueue.model.workflow import CANCELLED, ENDED_WITH, FAILED, MAX_ERROR, OPEN, STEP_ROWS, Waits
from bunqueue.protocol.notices import WakeNotice, wake_frame

from ..run_writes import Op, StepHead
from ..state import State
from . import events, transitions


def end(
    state: State,
    job: Job,
    number: int,
    status: str,
    *,
    result: bytes | None = None,
    error: str | None = None,
    source: str | None = None,
    name: str = "",
) -> None:
    """An open step ends; by itself, not because its worker has said so."""
    error = error[:MAX_ERROR] if error is not None else None
    state.out.runs.append((Op.END_STEP, (status, state.now, error, result, source, job.seq, number)))
    head = _head(state, job, number)
    if head is not None:
        head.status = status
    name = name or (head.name if head is not None else state.archive.runs.name(job.seq, number))
    events.emit(state, events.STEP, job, step=name, status=status)
    ended(state, job, number, status)


def end_waits(state: State, job: Job) -> None:
    """A workflow has ended, or runs only to be undone: what it slept or waited for ends with it."""
    if job.state == REMOVED or not job.stored & STEP_ROWS:
        return
    if job.state == COMPLETED and (job.run is None or not job.run.suspended):
        return  # of a run that nothing preceded, the worker has said itself what it gave up
    for head in state.archive.runs.open_waits(job.seq):
        end(state, job, head.number, CANCELLED, error=ENDED_WITH, name=head.name)


def ended(state: State, job: Job, number: int, status: str) -> None:
    """A step has ended that its job may wait for: wake it, or tell the worker that has it."""
    if job.state == SUSPENDED:
        assert job.run is not None
        assert job.run.waits is not None
        if _is_ready(state, job, job.run.waits, number, status):
            transitions.wake(state, job)
    elif job.lock is not None:
        client = state.clients.get(job.lock.conn)
        if client is not None and client.signals:
            frame = wake_frame(WakeNotice(job.id, job.lock.token, number))
            state.out.notices.append((client.conn, frame))


def _is_ready(state: State, job: Job, waits: Waits, number: int, status: str) -> bool:
    """Whether a group is ready now that this step has ended."""
    remaining = state.remaining.get(job.id)
    known = remaining is not None
    if remaining is None:  # the step that has just ended is written before this is read
        remaining = state.remaining[job.id] = [_open_in(state, job, group) for group in waits.groups]
    ready = False
    for index, group in enumerate(waits.groups):
        if _has(group, number):
            remaining[index] -= known or group[0] == group[-1]
            ready |= status == FAILED or remaining[index] <= 0
    return ready


def _open_in(state: State, job: Job, group: list[int]) -> int:
    if len(group) == 2 and group[0] == group[1]:
        return 1  # it is the one that has ended, or not
    reads = state.archive.runs
    return sum(
        reads.open_in(job.seq, first, last) for first, last in zip(group[::2], group[1::2], strict=True)
    )


def _has(group: list[int], number: int) -> bool:
    return any(first <= number <= last for first, last in zip(group[::2], group[1::2], strict=True))


def _head(state: State, job: Job, number: int) -> StepHead | None:
    """The head of a step, if its job is active and has been heard of."""
    run = state.runs.get(job.id)
    name = run.names.get(number) if run is not None else None
    return run.heads[name] if run is not None and name is not None else None


def spans(numbers: list[int]) -> list[int]:
    """Numbers as first and last of each run of neighbours: 1, 2, 3, 7 are 1, 3, 7, 7."""
    out: list[int] = []
    for number in sorted(numbers):
        if out and number == out[-1] + 1:
            out[-1] = number
        elif not out or number != out[-1]:
            out += [number, number]
    return out


def is_open(head: StepHead) -> bool:
    return head.status in OPEN


def has_steps(job: Job) -> None:
    """From now on the job has rows beside its own, which go with it."""
    job.stored |= STEP_ROWS
