"""SendSignal and Broadcast: data for workflows that wait for it, or will.

A signal is taken by a step in the transaction in which it comes, or in which the step is recorded, so exactly
one step takes it.  A broadcast is stored on every shard; the source of a step says which one it got, so no
workflow gets one twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bunqueue.model.job import Job
from bunqueue.model.workflow import (
    COMPLETED,
    KEEP_MS,
    MAX_BROADCASTS,
    MAX_SIGNALS,
    TIMED_OUT,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.query import CountReply
from bunqueue.protocol.commands.workflows import Broadcast, Delivered, SendSignal, SignalReply

from ...background import chores, retention
from ...background.slices import Steps, sliced
from ...lifecycle import events, run_steps
from ...lookup import not_found, wrong_state
from ...run_writes import Op, StoredBroadcast, WaitingRun
from ...state import Client, State
from .runs import payload

SLICE = 200  # workflows that get a broadcast in one go; some 5 ms


class Taken(NamedTuple):
    """What a step got, and from which broadcast."""

    data: bytes
    source: str | None = None


def take(state: State, job: Job, number: int, name: str, key: str | None) -> Taken | None:
    """The oldest signal or broadcast that a step may have, if there is one; it is the step's from now on."""
    reads = state.archive.runs
    signal = reads.next_signal(job.seq, name, state.now)
    broadcast = None if key is None else reads.next_broadcast(job.seq, name, key, state.now)
    if signal is not None and (broadcast is None or signal.at <= broadcast.at):
        state.out.runs.append((Op.TAKE_SIGNAL, (number, job.seq, signal.number)))
        return Taken(signal.data)
    return None if broadcast is None else Taken(broadcast.data, broadcast.id)


# -- to one workflow


def send_signal(state: State, client: Client, command: SendSignal) -> SignalReply:
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
        return SignalReply(data=Delivered(False, kept))
    waiting = _first_wait(state, job, command.name)
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
    return SignalReply(data=Delivered(waiting is not None, kept + (waiting is None)))


def _sent_before(state: State, command: SendSignal) -> SignalReply:
    """The answer again that was lost, if it was the last signal before the workflow ended."""
    job = state.archive.find(command.id)
    if job is None:
        raise not_found(command.id)
    if command.signal_id is not None:
        _, kept, known = state.archive.runs.counted(job.seq, command.signal_id)
        if known:
            return SignalReply(data=Delivered(False, kept))
    text = f"Workflow {command.id} has ended: it takes no signals"
    raise wrong_state(command.id, text, "any of a workflow that has not ended")


def _first_wait(state: State, job: Job, name: str) -> int | None:
    """The oldest open wait for a signal; those whose time is over end."""
    for head in state.archive.runs.waiting(job.seq, name):
        if head.until is None or head.until > state.now:
            return head.number
        run_steps.end(state, job, head.number, TIMED_OUT)
    return None


def _forget_expired(state: State, job: Job) -> None:
    for number in state.archive.runs.expired_signals(job.seq, state.now):
        state.out.runs.append((Op.DELETE_SIGNAL, (job.seq, number)))


# -- to all that wait for a key


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
    """Give a broadcast to all that wait for it, slice by slice; how many took it."""
    after = (-1, -1)
    while some := state.archive.runs.waiting_for(sent, after, SLICE):
        after = some[-1].seq, some[-1].number
        first = {waiting.seq: waiting for waiting in reversed(some)}  # one wait of each workflow takes it
        yield sum(_give(state, sent, waiting) for waiting in first.values())
    state.out.runs.append((Op.DELIVERED, (sent.id,)))


def _give(state: State, sent: StoredBroadcast, waiting: WaitingRun) -> bool:
    job = state.jobs.get(waiting.job_id)
    if job is None:
        return False
    if waiting.until is not None and waiting.until <= state.now:
        run_steps.end(state, job, waiting.number, TIMED_OUT)
        return False
    events.emit(state, events.SIGNALLED, job, step=sent.name, status="taken")
    run_steps.end(state, job, waiting.number, COMPLETED, result=sent.data, source=sent.id)
    return True


def recovered(state: State) -> None:
    """After a start: go on with broadcasts that not all have got."""
    for sent in state.archive.runs.undelivered():
        chores.begin(state, ("broadcast", sent.id), _deliver_on(state, sent))


def _deliver_on(state: State, sent: StoredBroadcast) -> Iterator[None]:
    for count in _deliver(state, sent):
        state.spare -= chores.LOSS * count
        if state.spare <= 0:
            yield
