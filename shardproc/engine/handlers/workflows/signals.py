"""SendSignal, DropSignal and Broadcast: data for workflows that wait for it, now or later.

A signal is taken by a step in the same transaction as its arrival, or as the recording of the step, so
exactly one step takes it.  A broadcast is stored on every shard, and the source of a step says which
broadcast it got, so no workflow gets one twice.  Data that does not fit is refused if a wait already exists
to check it against; data that arrived before the wait is set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bunqueue.model.job import NIL, Job
from bunqueue.model.workflow import (
    COMPLETED,
    KEEP_MS,
    MAX_BROADCASTS,
    MAX_SET_ASIDE,
    MAX_SIGNALS,
    TIMED_OUT,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, Ok
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.commands.workflows import Broadcast, Delivered, DropSignal, SendSignal

from ...background import background_work, retention
from ...lifecycle import events, run_steps
from ...lookup import not_found, wrong_state
from ...registry import handles
from ...run_writes import Op, StoredBroadcast, WaitingRun, set_aside
from ...slices import Steps, sliced
from ...state import Client, State
from . import types
from .run_access import payload, workflow

SLICE = 20  # workflows that get a broadcast per slice; about 0.5 ms
TRIED = 50  # signals that a wait may find unfit at a time; the rest is checked when the wait is polled again
SHOWN_WAITS = 100


class Taken(NamedTuple):
    """The data that a step got, and the broadcast that it came from."""

    data: bytes
    source: str | None = None


def take(
    state: State, job: Job, number: int, name: str, key: str | None, schema: bytes | None
) -> Taken | None:
    """Take the oldest signal or broadcast that fits a step, if there is one."""
    reads, passed = state.archive.runs, 0
    for _ in range(TRIED):
        signal = reads.next_signal(job.seq, name, state.now)
        broadcast = None if key is None else reads.next_broadcast(job.seq, name, key, state.now, passed)
        if signal is not None and (broadcast is None or signal.at <= broadcast.at):
            problem = types.unfit(state, job, name, schema, signal.data)
            if problem is None:
                state.out.runs.append((Op.TAKE_SIGNAL, (number, job.seq, signal.number)))
                return Taken(signal.data)
            _set_aside(state, job, name, signal.number, types.words(name, problem), signal.data)
        elif broadcast is not None:
            if types.unfit(state, job, name, schema, broadcast.data) is None:
                return Taken(broadcast.data, broadcast.id)
            passed += 1  # it is meant for others
        else:
            return None
    return None


def put_aside(state: State, job: Job, name: str, problem: str, data: bytes, source: str | None) -> None:
    """Keep data that a wait could not take, with its broadcast, where operators can see it."""
    last, _, _ = state.archive.runs.counted(job.seq, None)
    sent_as = None if source is None else f"broadcast:{source}"
    state.out.runs.append((Op.PUT_SIGNAL, (job.seq, last + 1, name, state.now, None, sent_as, NIL)))
    _set_aside(state, job, name, last + 1, problem, data)


def _set_aside(state: State, job: Job, name: str, number: int, problem: str, data: bytes) -> None:
    run_steps.has_steps(job)
    state.out.runs.append((Op.SET_ASIDE, (set_aside(problem, data), job.seq, number)))
    events.emit(state, events.SIGNALLED, job, step=name, status="set-aside")
    for old in state.archive.runs.aside(job.seq)[:-MAX_SET_ASIDE]:
        state.out.runs.append((Op.DELETE_SIGNAL, (job.seq, old)))


# -- to one workflow


@handles(SendSignal)
def send_signal(state: State, client: Client, command: SendSignal) -> Data[Delivered]:
    data = payload(command.data, "data")
    job = state.jobs.get(command.id)
    if job is None:
        return _sent_before(state, command)
    if job.run is None:
        text = f"Job {job.id} is no workflow: it takes no signals"
        raise CommandError(text, Code.NOT_A_WORKFLOW, field="id", value=job.id)
    _forget_expired(state, job)
    last, kept, known = state.archive.runs.counted(job.seq, command.signal_id)
    if known and command.signal_id is not None:
        return Data(data=Delivered(False, kept))
    waiting = _wait_for(state, job, command.name, data)
    if waiting is None and kept >= MAX_SIGNALS:
        text = f"{MAX_SIGNALS} signals are kept for workflow {job.id}, which has not waited for them"
        raise CommandError(text, Code.TOO_MANY_SIGNALS, field="id", value=job.id, bound=MAX_SIGNALS)
    run_steps.has_steps(job)
    expires = None if command.ttl is None else state.now + int(command.ttl)
    row = (job.seq, last + 1, command.name, state.now, expires, command.signal_id, data)
    state.out.runs.append((Op.PUT_SIGNAL, row))
    status = "kept" if waiting is None else "taken"
    events.emit(state, events.SIGNALLED, job, step=command.name, status=status)
    if waiting is not None:
        state.out.runs.append((Op.TAKE_SIGNAL, (waiting, job.seq, last + 1)))
        run_steps.end(state, job, waiting, COMPLETED, result=data)
    if waiting is not None:
        return Data(data=Delivered(True, kept))
    return Data(data=Delivered(False, kept + 1, _waited_for(state, job)))


def _waited_for(state: State, job: Job) -> list[str]:
    """The names of the signals that a workflow waits for."""
    found = state.archive.runs.signal_waits(job.seq, None, SHOWN_WAITS)
    return list(dict.fromkeys(wait.signal for wait in found))


@handles(DropSignal)
def drop_signal(state: State, client: Client, command: DropSignal) -> Ok:
    job = workflow(state, command.id)
    if not state.archive.runs.is_there(job.seq, command.number):
        text = f"workflow {job.id} keeps no signal of the number {command.number}"
        raise CommandError(text, Code.SIGNAL_NOT_FOUND, field="number", value=command.number)
    state.out.runs.append((Op.DELETE_SIGNAL, (job.seq, command.number)))
    return Ok()


def _sent_before(state: State, command: SendSignal) -> Data[Delivered]:
    """Repeat a reply that was lost, if this was the last signal before the workflow ended."""
    job = state.archive.find(command.id)
    if job is None:
        raise not_found(state, command.id)
    if command.signal_id is not None:
        _, kept, known = state.archive.runs.counted(job.seq, command.signal_id)
        if known:
            return Data(data=Delivered(False, kept))
    text = f"Workflow {command.id} has ended: it takes no signals"
    raise wrong_state(command.id, text, "any of a workflow that has not ended")


def _wait_for(state: State, job: Job, name: str, data: bytes) -> int | None:
    """The oldest open wait for a signal that the data fits; waits that have timed out are ended.
    CommandError if the data fits none of the waits, or not the type that the workflow has declared."""
    problem = types.unfit(state, job, name, None, data)
    for wait in state.archive.runs.signal_waits(job.seq, name, SHOWN_WAITS):
        if wait.until is not None and wait.until <= state.now:
            run_steps.end(state, job, wait.number, TIMED_OUT)
            continue
        unfit = types.unfit(state, job, name, wait.schema, data)
        if unfit is None:
            return wait.number
        problem = problem or unfit
    if problem is not None:
        raise types.refusal(job, name, problem)
    return None


def _forget_expired(state: State, job: Job) -> None:
    for number in state.archive.runs.expired_signals(job.seq, state.now):
        state.out.runs.append((Op.DELETE_SIGNAL, (job.seq, number)))


# -- to all workflows that wait for a key


@handles(Broadcast)
@sliced
def broadcast(state: State, client: Client, command: Broadcast) -> Steps:
    data = payload(command.data, "data")
    broadcast_id = command.broadcast_id or state.ids.job_id(0, state.now, state.next_seq)
    if state.archive.runs.broadcast(broadcast_id) is not None:
        return CountReply(count=0)
    retention.forget_broadcasts(state)
    if state.archive.runs.broadcasts() >= MAX_BROADCASTS:
        text = f"{MAX_BROADCASTS} broadcasts are kept: keep them for less time"
        raise CommandError(
            text,
            Code.TOO_MANY_SIGNALS,
            field="keep",
            value=command.keep or float(KEEP_MS),
            bound=MAX_BROADCASTS,
        )
    keep = KEEP_MS if command.keep is None else int(command.keep)
    sent = StoredBroadcast(broadcast_id, command.name, command.key, state.now, state.now + keep, data)
    row = (sent.id, sent.name, sent.key, sent.at, sent.expires_at, data)
    state.out.runs.append((Op.PUT_BROADCAST, row))
    count = 0
    for some in _deliver(state, sent):
        count += some
        yield
    return CountReply(count=count)


def _deliver(state: State, sent: StoredBroadcast) -> Iterator[int]:
    """Give a broadcast to all workflows that wait for it, slice by slice, yielding how many took it."""
    after = (-1, -1)
    while some := state.archive.runs.waiting_for(sent, after, SLICE):
        after = some[-1].seq, some[-1].number
        first = {waiting.seq: waiting for waiting in reversed(some)}  # one wait per workflow takes it
        yield sum(_give(state, sent, waiting) for waiting in first.values())
    state.out.runs.append((Op.DELIVERED, (sent.id,)))


def _give(state: State, sent: StoredBroadcast, waiting: WaitingRun) -> bool:
    job = state.jobs.get(waiting.job_id)
    if job is None:
        return False
    if waiting.until is not None and waiting.until <= state.now:
        run_steps.end(state, job, waiting.number, TIMED_OUT)
        return False
    if types.unfit(state, job, sent.name, waiting.schema, sent.data) is not None:
        return False
    events.emit(state, events.SIGNALLED, job, step=sent.name, status="taken")
    run_steps.end(state, job, waiting.number, COMPLETED, result=sent.data, source=sent.id)
    return True


def recovered(state: State) -> None:
    """After a start: resume broadcasts that some workflows have not received."""
    for sent in state.archive.runs.undelivered():
        background_work.begin(state, ("broadcast", sent.id), _deliver_on(state, sent))


def _deliver_on(state: State, sent: StoredBroadcast) -> Iterator[None]:
    for count in _deliver(state, sent):
        state.budget -= background_work.LOSS * count
        if state.budget <= 0:
            yield
