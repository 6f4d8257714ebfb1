"""The end of steps, whatever the cause: writes and notifications."""

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
    """End an open step without a request from its worker."""
    error = error[:MAX_ERROR] if error is not None else None
    state.out.runs.append((Op.END_STEP, (status, state.now, error, result, source, job.seq, number)))
    head = _head(state, job, number)
    if head is not None:
        head.status = status
    name = name or (head.name if head is not None else state.archive.runs.name(job.seq, number))
    events.emit(state, events.STEP, job, step=name, status=status)
    ended(state, job, number, status)


def end_waits(state: State, job: Job) -> None:
    """End the open waits of a workflow that has ended, or that runs only to be undone."""
    if job.state == REMOVED or not job.stored & STEP_ROWS:
        return
    if job.state == COMPLETED and (job.run is None or not job.run.suspended):
        return  # in a first run the worker has reported itself which waits it gave up
    for head in state.archive.runs.open_waits(job.seq):
        end(state, job, head.number, CANCELLED, error=ENDED_WITH, name=head.name)


def ended(state: State, job: Job, number: int, status: str) -> None:
    """Wake the job that may wait for this step, or notify the worker that runs it."""
    if job.state == SUSPENDED:
        assert job.run is not None
        assert job.run.waits is not None
        if _is_ready(state, job, job.run.waits, number, status):
            transitions.wake(state, job)
    elif job.lock is not None:
        client = state.clients.get(job.lock.conn)
        if client is not None and client.signals:
            job_id = job.id if client.scope is None else client.scope.outside(job.id)
            frame = wake_frame(WakeNotice(job_id, job.lock.token, number))
            state.out.notices.append((client.conn, frame))


def _is_ready(state: State, job: Job, waits: Waits, number: int, status: str) -> bool:
    """Whether a group is ready now that this step has ended."""
    remaining = state.remaining.get(job.id)
    known = remaining is not None
    if remaining is None:  # the end of this step is written before this read
        remaining = state.remaining[job.id] = [_open_in(state, job, group) for group in waits.groups]
    ready = False
    for index, group in enumerate(waits.groups):
        if _has(group, number):
            remaining[index] -= known or group[0] == group[-1]
            ready |= status == FAILED or remaining[index] <= 0
    return ready


def _open_in(state: State, job: Job, group: list[int]) -> int:
    if len(group) == 2 and group[0] == group[1]:
        return 1  # the only step of the group: it has just ended, or is not meant
    reads = state.archive.runs
    return sum(
        reads.open_in(job.seq, first, last) for first, last in zip(group[::2], group[1::2], strict=True)
    )


def _has(group: list[int], number: int) -> bool:
    return any(first <= number <= last for first, last in zip(group[::2], group[1::2], strict=True))


def _head(state: State, job: Job, number: int) -> StepHead | None:
    """The head of a step, if its job is active and its steps are in memory."""
    run = state.runs.get(job.id)
    name = run.names.get(number) if run is not None else None
    return run.heads[name] if run is not None and name is not None else None


def spans(numbers: list[int]) -> list[int]:
    """Numbers as pairs of first and last, one per run of consecutive numbers: 1, 2, 3, 7 become 1, 3, 7,
    7."""
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
    """Mark a job that has rows for steps, which are removed with it."""
    job.stored |= STEP_ROWS
