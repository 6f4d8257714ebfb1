"""Commands that change the course of a single job."""

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
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.base import Data, Removed
from bunqueue.protocol.commands.jobs import (
    ChangeDelay,
    ChangePriority,
    Discard,
    MoveToDelayed,
    MoveToWait,
    Promote,
    RemoveJob,
    Update,
)
from bunqueue.protocol.job_view import state_name

from ..lifecycle import events, removal, transitions
from ..lifecycle.dedup import holder_id
from ..lifecycle.repeating import last_of
from ..lifecycle.transitions import is_cancelled
from ..lookup import being_cancelled, find, key_is_taken, known_job, wrong_state
from ..outbox import ROW
from ..peers import families
from ..ready import space
from ..registry import handles
from ..state import Client, State
from .ack import check_token
from .push_checks import check_arguments, check_data

MOVABLE = frozenset({WAITING, DELAYED, ACTIVE})
MOVABLE_NAMES = "waiting, delayed, active"


@handles(RemoveJob)
def remove_job(state: State, client: Client, command: RemoveJob) -> Data[Removed]:
    job = find(state, command.id)
    if job is None:
        return Data(data=Removed(False))
    queue = state.queues[job.queue]
    if job.state == ACTIVE:
        text = "Job is active and cannot be removed: cancel it, or wait until it has ended"
        raise wrong_state(job.id, text, "any but active")
    if job.state in (COMPLETED, FAILED):
        removal.purge(state, queue, job.state, [job.seq])
    else:
        transitions.remove(state, queue, job, events.REMOVED)
    return Data(data=Removed(True))


@handles(Update)
def update(state: State, client: Client, command: Update) -> Ok:
    job = state.jobs.get(command.id) or last_of(state, command.id)
    if job is None:
        raise wrong_state(command.id, "Job not found or cannot be updated", "any of a job that has not ended")
    check_data(bytes(command.data))
    if job.run is not None and job.run.declared:
        check_arguments(bytes(command.data))
    data = families.with_flow_fields(job.data, bytes(command.data))
    check_data(data)
    space.change_data(state.queues[job.queue], job, NIL if data == UNDEFINED else data)
    state.out.touch(job, ROW)
    return Ok()


@handles(ChangePriority)
def change_priority(state: State, client: Client, command: ChangePriority) -> Ok:
    job = state.jobs.get(command.id)
    if job is None or job.state not in (WAITING, DELAYED):
        raise wrong_state(command.id, "Job not found or not in queue", "waiting, delayed")
    transitions.reorder(state, state.queues[job.queue], job, command.priority, lifo=command.lifo)
    return Ok()


@handles(Promote)
def promote(state: State, client: Client, command: Promote) -> Ok:
    job = state.jobs.get(command.id)
    if job is None or job.state != DELAYED:
        raise wrong_state(command.id, "Job not found or not delayed", "delayed")
    _move(state, job, 0)
    return Ok()


@handles(MoveToDelayed)
def move_to_delayed(state: State, client: Client, command: MoveToDelayed) -> Ok:
    job = known_job(state, command.id)
    if job.state not in MOVABLE:
        text = f"Job is not active (current state: {STATE_NAMES[job.state]})"
        raise wrong_state(job.id, text, MOVABLE_NAMES)
    check_token(job, command.token, required=client.version >= 3 and not command.force)
    counts = command.postponed and job.state == ACTIVE
    _move(state, job, command.delay)
    if counts:
        job.extra = job.extra or Extra()
        job.extra.postponed += 1
    return Ok()


@handles(ChangeDelay)
def change_delay(state: State, client: Client, command: ChangeDelay) -> Ok:
    job = state.jobs.get(command.id)
    if job is None or job.state not in MOVABLE:
        raise wrong_state(command.id, "Job not found or cannot change delay", MOVABLE_NAMES)
    check_token(job, command.token, required=client.version >= 3 and not command.force)
    _move(state, job, command.delay)
    return Ok()


@handles(MoveToWait)
def move_to_wait(state: State, client: Client, command: MoveToWait) -> Ok:
    job = find(state, command.id)
    if job is None or job.state in (COMPLETED, BLOCKED):
        name = "unknown" if job is None else state_name(job, client.version)
        text = f"Cannot move job from state '{name}' to waiting"
        raise wrong_state(command.id, text, f"{MOVABLE_NAMES}, failed")
    if job.state == FAILED:
        queue = state.queues[job.queue]
        if not transitions.can_retake_key(state, queue, job):
            holder = holder_id(state, queue, job.unique_key or "")
            raise key_is_taken(job.id, holder)
        transitions.revive(state, queue, job)
        return Ok()
    if job.state != WAITING:
        check_token(job, command.token, required=client.version >= 3 and not command.force)
        _move(state, job, 0)
    return Ok()


@handles(Discard)
def discard(state: State, client: Client, command: Discard) -> Ok:
    job = state.live(command.id)
    if job.state == BLOCKED:
        text = "Job is waiting for its dependencies and cannot be discarded, cancel it instead"
        raise wrong_state(job.id, text, MOVABLE_NAMES)
    check_token(job, command.token, required=client.version >= 3 and not command.force)
    transitions.discard(state, state.queues[job.queue], job)
    return Ok()


def _move(state: State, job: Job, delay: float) -> None:
    if job.state == ACTIVE and is_cancelled(job):
        raise being_cancelled(job.id)
    transitions.move(state, state.queues[job.queue], job, state.now + int(delay))
