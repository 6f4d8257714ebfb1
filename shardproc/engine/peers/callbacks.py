"""Jobs that are added because others have failed for good: `onDead` of a push.

A job for the same shard is added in the transaction in which the other one died.  A job for another shard is
stored in that transaction, and sent until that shard has answered, even if either shard restarts.  The other
shard stores the key of each job that it has added until the sender confirms the answer, for `KEPT_MS` at
most: within that time each job is added exactly once.
"""

from __future__ import annotations

from itertools import islice

from msgspec import Raw, Struct, json

from bunqueue.model.dead_letters import reason_of
from bunqueue.model.durations import DAY_MS
from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import DEFAULT_NAME, FAILED, Cause, Extra, Job
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import JobFields, OnDead
from bunqueue.protocol.commands.jobs import MAX_LOG
from bunqueue.protocol.job_view import decode_on_dead
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..handlers.push import push_fields
from ..outbox import ROW, LogEntry
from ..peer_calls import Steps
from ..registry import Apart, answers, recovers
from ..state import State

KIND, CALLED = "call", "called"
KEPT_MS = 7 * DAY_MS
MAX_CALLED = 100_000  # stored keys: a sender that never returns must not fill the memory
MAX_CALLS, MAX_BYTES = 100, 1 << 20  # per message: a few ms of work for the other shard

_FIELDS = tuple(name for name in OnDead.__struct_fields__ if name != "queue")


class Stored(Struct):
    """A record: a job that another shard should add."""

    at: int
    queue: str
    job: bytes
    cause: Cause


class Added(Struct):
    """A record: the answer given to another shard."""

    at: int
    id: str
    problem: str = ""


_decode_stored, _decode_added = json.Decoder(Stored).decode, json.Decoder(Added).decode


# The shard of the dead job


def call(state: State) -> None:
    """Add the jobs for those that have just died."""
    died, state.died = state.died, []
    for job in died:
        if job.extra is None or job.extra.on_dead is None:
            continue
        on_dead = job.extra.on_dead
        queue = decode_on_dead(on_dead).queue or job.queue
        shard, cause = slot_of_queue(queue) & (state.shards - 1), _cause_of(state, job)
        if shard == state.shard:
            _note(state, job, queue, *_add(state, queue, on_dead, cause))
            continue
        key = f"{shard}/{state.ids.token(slot_of_queue(job.queue), state.now)}"
        state.out.keep(KIND, key, Stored(state.now, queue, on_dead, cause))
        _wait_for(state, key)


def _cause_of(state: State, job: Job) -> Cause:
    last = next((each for each in reversed(state.out.attempts) if each.seq == job.seq), None)
    return Cause(
        job.id,
        job.queue,
        job.name,
        job.error,
        None if last is None else last.error_type,
        reason_of(job.reason or ""),
        job.attempts,
        float(state.now),
    )


def _note(state: State, job: Job, queue: str, job_id: str, problem: str) -> None:
    """Write a line into the log of a dead letter: which job was added for it."""
    if job.state != FAILED:
        return
    text = f"it has failed for good: job {job_id} was added to the queue {queue}"
    if problem:
        text = f"it has failed for good, and its job for that was refused by the queue {queue}: {problem}"
    state.out.logs.append(LogEntry(job.seq, state.now, "error" if problem else "info", text, MAX_LOG))


def _wait_for(state: State, key: str) -> None:
    """Note a job that another shard should add, and ask it, unless a request to that shard is under way."""
    shard = int(key.partition("/")[0])
    waiting = state.calls.setdefault(shard, {})
    waiting[key] = None
    if len(waiting) == 1:
        peer_calls.start(state, _ask(state, shard))


def _ask(state: State, shard: int) -> Steps:
    waiting = state.calls[shard]
    while waiting:
        calls = _some(state, list(islice(waiting, MAX_CALLS)))
        answers = yield [(shard, messages.Calls(list(calls.values())))]
        for key, job_id, problem in zip(calls, answers[0].ids, answers[0].problems, strict=True):
            del waiting[key]
            state.out.keep(KIND, key, None)
            dead = state.archive.known(calls[key].cause.id)
            if dead is not None:
                _note(state, dead, calls[key].queue, job_id, problem)
        peer_calls.notify(state, shard, messages.CallsKnown(list(calls)))
    del state.calls[shard]


def _some(state: State, keys: list[str]) -> dict[str, messages.Call]:
    """The first of these jobs, as many as fit into a message."""
    calls: dict[str, messages.Call] = {}
    size = 0
    for key in keys:
        stored = _decode_stored(state.archive.record(KIND, key) or "")
        size += len(stored.job)
        if calls and size > MAX_BYTES:
            break
        calls[key] = messages.Call(key, stored.queue, Raw(stored.job), stored.cause)
    return calls


@recovers(KIND, Apart.UNSETTLED)
def recover(state: State, key: str, value: str) -> None:
    state.calls.setdefault(int(key.partition("/")[0]), {})[key] = None


def begin(state: State) -> None:
    """After recovery: ask again for everything that was not confirmed."""
    for shard in list(state.calls):
        peer_calls.start(state, _ask(state, shard))


# The shard of the added job


@answers(messages.Calls)
def answer_calls(state: State, source: int, message: messages.Calls) -> messages.Called:
    answers = [_answer(state, each) for each in message.calls]
    return messages.Called([job_id for job_id, _ in answers], [problem for _, problem in answers])


def _answer(state: State, each: messages.Call) -> tuple[str, str]:
    known = state.called.get(each.key)
    if known is None:
        known = state.called[each.key] = _add(state, each.queue, bytes(each.job), each.cause)
        state.out.keep(CALLED, each.key, Added(state.now, *known))
        if len(state.called) > MAX_CALLED:
            _forget(state, next(iter(state.called)))
    return known


def _forget(state: State, key: str) -> None:
    if state.called.pop(key, None) is not None:
        state.out.keep(CALLED, key, None)


@answers(messages.CallsKnown)
def known(state: State, source: int, message: messages.CallsKnown) -> None:
    for key in message.keys:
        _forget(state, key)


@recovers(CALLED, Apart.DERIVED)
def recover_called(state: State, key: str, value: str) -> None:
    added = _decode_added(value)
    if added.at < state.now - KEPT_MS:
        state.out.keep(CALLED, key, None)
    else:
        state.called[key] = added.id, added.problem


def _add(state: State, queue: str, on_dead: bytes, cause: Cause) -> tuple[str, str]:
    """The id of a job added for a dead one, or the reason why it was refused."""
    found = decode_on_dead(on_dead)
    fields = JobFields(**{name: getattr(found, name) for name in _FIELDS})
    fields.name = fields.name or DEFAULT_NAME
    try:
        job_id, _ = push_fields(state, queue, fields)
    except CommandError as error:
        return "", str(error)
    job = state.jobs[job_id]
    job.extra = job.extra or Extra()
    job.extra.cause = cause
    state.out.touch(job, ROW)
    return job_id, ""
