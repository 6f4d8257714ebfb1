"""Commands that take a single job out of its course."""

from __future__ import annotations

from bunqueue.model.job import (
    ACTIVE,
    BLOCKED,
    COMPLETED,
    DELAYED,
    FAILED,
    NIL,
    STATE_NAMES,
    UNDEFINED,
    WAITING,
    Extra,
    Job,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.jobs import (
    ChangeDelay,
    ChangePriority,
    Discard,
    MoveToDelayed,
    MoveToWait,
    Promote,
    Removed,
    RemovedReply,
    RemoveJob,
    Update,
)
from bunqueue.protocol.job_view import state_name

from ..lifecycle import events, removal, transitions
from ..lifecycle.dedup import holder_id
from ..lifecycle.repeating import last_of
from ..lifecycle.transitions import is_cancelled
from ..lookup import find
from ..outbox import ROW
from ..peers import families
from ..ready import space
from ..state import Client, State
from .ack import check_token
from .push import check_arguments, check_data, check_size

MOVABLE = frozenset({WAITING, DELAYED, ACTIVE})


def remove_job(state: State, client: Client, command: RemoveJob) -> RemovedReply:
    job = find(state, command.id)
    if job is None:
        return RemovedReply(data=Removed(False))
    queue = state.queues[job.queue]
    if job.state == ACTIVE:
        raise CommandError(
            "Job is active and cannot be removed: cancel it, or wait until it has ended", Code.JOB_STATE
        )
    if job.state in (COMPLETED, FAILED):
        removal.purge(state, queue, job.state, [job.seq])
    else:
        transitions.remove(state, queue, job, events.REMOVED)
    return RemovedReply(data=Removed(True))


def update(state: State, client: Client, command: Update) -> Ok:
    job = state.jobs.get(command.id) or last_of(state, command.id)
    if job is None:
        raise CommandError("Job not found or cannot be updated", Code.JOB_STATE)
    check_data(bytes(command.data))
    if job.run is not None and job.run.declared:
        check_arguments(bytes(command.data))
    data = families.with_flow_fields(job.data, bytes(command.data))
    check_size(data)
    space.change_data(state.queues[job.queue], job, NIL if data == UNDEFINED else data)
    state.out.touch(job, ROW)
    return Ok()


def change_priority(state: State, client: Client, command: ChangePriority) -> Ok:
    job = state.jobs.get(command.id)
    if job is None or job.state not in (WAITING, DELAYED):
        raise CommandError("Job not found or not in queue", Code.JOB_STATE)
    transitions.reorder(state, state.queues[job.queue], job, command.priority, lifo=command.lifo)
    return Ok()


def promote(state: State, client: Client, command: Promote) -> Ok:
    job = state.jobs.get(command.id)
    if job is None or job.state != DELAYED:
        raise CommandError("Job not found or not delayed", Code.JOB_STATE)
    _move(state, job, 0)
    return Ok()


def move_to_delayed(state: State, client: Client, command: MoveToDelayed) -> Ok:
    job = find(state, command.id)
    if job is None:
        raise CommandError("Job not found", Code.JOB_NOT_FOUND)
    if job.state not in MOVABLE:
        raise CommandError(f"Job is not active (current state: {STATE_NAMES[job.state]})", Code.JOB_STATE)
    check_token(job, command.token, required=client.version >= 3 and not command.force)
    counts = command.postponed and job.state == ACTIVE
    _move(state, job, command.delay)
    if counts:
        job.extra = job.extra or Extra()
        job.extra.postponed += 1
    return Ok()


def change_delay(state: State, client: Client, command: ChangeDelay) -> Ok:
    job = state.jobs.get(command.id)
    if job is None or job.state not in MOVABLE:
        raise CommandError("Job not found or cannot change delay", Code.JOB_STATE)
    check_token(job, command.token, required=client.version >= 3 and not command.force)
    _move(state, job, command.delay)
    return Ok()


def move_to_wait(state: State, client: Client, command: MoveToWait) -> Ok:
    job = find(state, command.id)
    if job is None or job.state in (COMPLETED, BLOCKED):
        name = "unknown" if job is None else state_name(job, client.version)
        raise CommandError(f"Cannot move job from state '{name}' to waiting", Code.JOB_STATE)
    if job.state == FAILED:
        queue = state.queues[job.queue]
        if not transitions.can_retake_key(state, queue, job):
            holder = holder_id(state, queue, job.unique_key or "")
            raise CommandError(
                f"Cannot move job {job.id} to waiting: job {holder} has its unique key", Code.JOB_STATE
            )
        transitions.revive(state, queue, job)
        return Ok()
    if job.state != WAITING:
        check_token(job, command.token, required=client.version >= 3 and not command.force)
        _move(state, job, 0)
    return Ok()


def discard(state: State, client: Client, command: Discard) -> Ok:
    job = state.live(command.id)
    if job.state == BLOCKED:
        raise CommandError(
            "Job is waiting for its dependencies and cannot be discarded, cancel it instead", Code.JOB_STATE
        )
    check_token(job, command.token, required=client.version >= 3 and not command.force)
    transitions.discard(state, state.queues[job.queue], job)
    return Ok()


def _move(state: State, job: Job, delay: float) -> None:
    if job.state == ACTIVE and is_cancelled(job):
        raise CommandError(
            f"Job {job.id} is being cancelled: only its end can be reported", Code.JOB_CANCELLED
        )
    transitions.move(state, state.queues[job.queue], job, state.now + int(delay))
