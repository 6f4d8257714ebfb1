"""Moves jobs to another queue, perhaps on another shard: none is lost, and none exists twice.

The shard that has the jobs takes them out and stores them in a record, in one batch.  Then it asks the shard
of the other queue to take them, until that answers.  The other shard stores the jobs and the fact that it has
them, also in one batch.  So each job is in exactly one place, a queue or the record, whichever shard is
killed at whatever time, and a repeated question gets the same answer.  Once the directory of ids knows where
the jobs are, the record is deleted, and the other shard may forget the move.

Commands that name a moving job wait until it has arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, json

from bunqueue.model.ids import slot_of_queue
from bunqueue.model.job import FAILED, REMOVED, Job
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..lifecycle import dedup, events, transitions, unique_keys
from ..lifecycle.last_runs import ended as run_ended
from ..memory.pointers import enter, pointer
from ..peer_calls import Steps
from ..registry import Apart, Deliver, answers, answers_late, recovers
from ..state import QueueState, State
from .carried_jobs import Carried, begin_anew, carried_of, decode_all, encode_all, job_of, keep_rows

LEAVING, ARRIVED = "move", "moved_in"
MAX_BYTES = 2 << 20  # of data per message; the job that exceeds it is the last one
MAX_MOVED = 10_000  # moved jobs whose destination is remembered

# Why jobs stay, or are returned
TAKEN = "unique-key"
CLASH = "id"
MOVING = "moving"


class Move(Struct):
    """A record: jobs on their way to a queue.  Without jobs, they have arrived, and the other shard still has
    to forget the move."""

    to: str
    jobs: bytes = b""


class Arrived(Struct):
    """A record: a move whose jobs are ``here``, except those with these ids, for these reasons.  It is kept
    until the directory of ids knows where the jobs are.  Until then they may not move again, or the directory
    might receive their moves in the wrong order."""

    ids: list[str]
    reasons: list[str]
    here: list[str]


_decode_move = json.Decoder(Move).decode
_decode_arrived = json.Decoder(Arrived).decode


class Transfer:
    """Moves jobs to one queue, in groups."""

    def __init__(self, state: State, to: str) -> None:
        self._state, self._to = state, to
        self._jobs: list[Carried] = []
        self._bytes = self._pending = self._moved = 0
        self._refused: Counter[str] = Counter()
        self._done: Callable[[int, Counter[str]], None] | None = None

    def add(self, queue: QueueState, job: Job) -> str | None:
        """Take out a live job that is not active, or a dead letter from the archive; or return why that is
        impossible, if this shard can tell.  `send` must follow in the same batch."""
        if job.id in self._state.arriving:
            return MOVING
        carried = carried_of(self._state, job)
        if _shard_of(self._state, self._to) == self._state.shard:
            return self._pass(queue, job, carried)
        _take_out(self._state, queue, job)
        self._jobs.append(carried)
        self._bytes += len(job.data)
        if self._bytes > MAX_BYTES:
            self.send()
        return None

    def _pass(self, queue: QueueState, job: Job, carried: Carried) -> str | None:
        """Move a job between queues of this shard."""
        target = self._state.queue(self._to)
        problem = _problem(self._state, target, carried, is_here=True)
        if problem is None:
            _take_out(self._state, queue, job)
            _arrive(self._state, target, carried)
            del self._state.moving[job.id]
            self._moved += 1
        return problem

    def send(self) -> None:
        """Send the jobs that were taken out."""
        if not self._jobs:
            return
        state = self._state
        number = state.ids.job_id(0, state.now, state.next_seq)
        state.next_seq += 1
        move = Move(self._to, encode_all(self._jobs))
        state.out.keep(LEAVING, number, move)
        state.out.durable = True  # before any other shard receives them
        self._jobs, self._bytes = [], 0
        self._pending += 1
        peer_calls.start(state, _carry(state, number, move), self._arrived)

    def when_done(self, done: Callable[[int, Counter[str]], None]) -> None:
        """Call ``done`` when all jobs have arrived: with their number, and the number of returned ones for
        each reason."""
        self._done = done
        self._check_done()

    def _arrived(self, result: Any) -> None:
        moved, refused = result
        self._pending -= 1
        self._moved += moved
        self._refused += refused
        self._check_done()

    def _check_done(self) -> None:
        if self._done is not None and not self._pending:
            self._done(self._moved, self._refused)


def is_of_flow(state: State, job: Job) -> bool:
    """Whether other jobs depend on this one, or it depends on them."""
    extra = job.extra
    if job.id in state.awaited:
        return True
    if extra is None:
        return False
    family = extra.parent_id, extra.depends_on, extra.children_ids, extra.flow, extra.watched
    return any(family)


def _shard_of(state: State, queue: str) -> int:
    return slot_of_queue(queue) & (state.shards - 1)


# The shard that jobs leave


def _take_out(state: State, queue: QueueState, job: Job) -> None:
    """Take a job out of its queue to move it: only its id is left here."""
    state.moving[job.id] = []
    events.emit(state, events.DROPPED, job, reason="moved")
    unique_keys.let_go(state, queue, job)
    if job.state == FAILED:
        transitions.take_dead_letter(state, queue, job)
        return
    run_ended(state, job, "moved")
    transitions.withdraw(state, queue, job, REMOVED)
    transitions.retire(state, queue, job)


def _carry(state: State, number: str, move: Move) -> Steps:
    """Hand jobs over; returns how many moved, and how many were returned for each reason."""
    shard = _shard_of(state, move.to)
    (arrived,) = yield [(shard, messages.MoveIn(number, move.to, move.jobs))]
    why = dict(zip(arrived.ids, arrived.reasons, strict=True))
    jobs = decode_all(move.jobs)
    moved = [job.id for job in jobs if job.id not in why]
    pointers = {job_id: pointer(state, job_id) for job_id in moved}
    elsewhere = {job_id: at for job_id, at in pointers.items() if at not in (state.shard, shard)}
    if elsewhere:
        yield [(at, messages.Rehome(ids, shard)) for at, ids in peer_calls.grouped(elsewhere).items()]
    for job_id, at in pointers.items():
        if at == state.shard:
            enter(state, job_id, shard)
    for job in jobs:
        if job.id in why:
            _put_back(state, job)
    state.out.keep(LEAVING, number, Move(move.to))
    state.out.durable = True
    _remember(state, moved, shard)
    for job in jobs:
        for deliver in state.moving.pop(job.id, ()):
            deliver(messages.Settled(job.id))
    peer_calls.start(state, _end(state, number, shard))
    return len(moved), Counter(why.values())


def _end(state: State, number: str, shard: int) -> Steps:
    """Let the other shard forget the move."""
    yield [(shard, messages.MoveEnded(number))]
    state.out.keep(LEAVING, number, None)


def _remember(state: State, ids: Iterable[str], shard: int) -> None:
    """Remember where jobs have gone, for commands that are already on their way here."""
    for job_id in ids:
        state.moved[job_id] = shard
        if len(state.moved) > MAX_MOVED:
            del state.moved[next(iter(state.moved))]


def _put_back(state: State, carried: Carried) -> None:
    """Return a refused job to its old place, without its key if another job has taken that in the
    meantime."""
    queue = state.queue(carried.queue)
    job = job_of(carried, queue, carried.seq)
    keep_rows(state, carried, job)
    if carried.dead:
        job.reason, job.worker = carried.reason, carried.worker
        job.started_at, job.finished_at = carried.started_at, carried.finished_at
        transitions.put_dead_letter(state, queue, job)
        if carried.holds_key:
            unique_keys.retake(state, queue, job)
        return
    unique_keys.retake_key(state, queue, job)
    transitions.add(state, queue, [job])
    queue.late[job.seq] = queue.jobs.pop(job.seq)


@recovers(LEAVING, Apart.UNSETTLED)
def recover_leaving(state: State, key: str, value: str) -> None:
    move = _decode_move(value)
    state.leaving[key] = move
    for job in decode_all(move.jobs) if move.jobs else ():
        state.moving[job.id] = []
        state.next_seq = max(state.next_seq, job.seq + 1)  # it may be returned


def recovered(state: State) -> None:
    """Resume moves that were in progress when the shard stopped."""
    leaving, state.leaving = state.leaving, {}
    for number, move in leaving.items():
        steps = _carry(state, number, move) if move.jobs else _end(state, number, _shard_of(state, move.to))
        peer_calls.start(state, steps)


@answers_late(messages.Settled)
def settled(state: State, source: int, message: messages.Settled, deliver: Deliver) -> None:
    """Answer when a job is no longer moving."""
    waiting = state.moving.get(message.id)
    if waiting is None:
        deliver(message)
    else:
        waiting.append(deliver)


# The shard where jobs arrive


@answers(messages.MoveIn)
def move_in(state: State, source: int, message: messages.MoveIn) -> messages.MovedIn:
    """Take jobs over; a repeated question gets the same answer."""
    known = state.arrived.get(message.move)
    if known is not None:
        return messages.MovedIn(known.ids, known.reasons)
    arrived = Arrived([], [], [])
    queue = state.queue(message.queue)
    for carried in decode_all(message.jobs):
        problem = _problem(state, queue, carried)
        if problem is not None:
            arrived.ids.append(carried.id)
            arrived.reasons.append(problem)
            continue
        _arrive(state, queue, carried)
        arrived.here.append(carried.id)
    _keep_arrived(state, message.move, arrived)
    state.out.keep(ARRIVED, message.move, arrived)
    state.out.durable = True
    return messages.MovedIn(arrived.ids, arrived.reasons)


def _problem(state: State, queue: QueueState, carried: Carried, *, is_here: bool = False) -> str | None:
    """Why a job cannot be taken over; ``is_here``: it comes from another queue of this shard."""
    there = any(carried.id in some for some in (state.jobs, state.prepared, state.moving))
    if there and not is_here:
        return CLASH
    key = carried.unique_key
    holds = carried.holds_key or carried.dead
    if key is not None and holds and dedup.holder_id(state, queue, key) is not None:
        return TAKEN
    return None


def _arrive(state: State, queue: QueueState, carried: Carried) -> None:
    job = job_of(carried, queue, state.next_seq)
    state.next_seq += 1
    state.moved.pop(job.id, None)
    if pointer(state, job.id) == state.shard:
        enter(state, job.id, state.shard)
    if carried.dead:
        begin_anew(state, job)
    keep_rows(state, carried, job)
    if carried.holds_key or carried.dead:
        unique_keys.retake_key(state, queue, job)
    state.out.durable |= job.options.durable
    transitions.add(state, queue, [job])


def _keep_arrived(state: State, move: str, arrived: Arrived) -> None:
    state.arrived[move] = arrived
    state.arriving.update(arrived.here)


@recovers(ARRIVED, Apart.UNSETTLED)
def recover_arrived(state: State, key: str, value: str) -> None:
    _keep_arrived(state, key, _decode_arrived(value))


@answers(messages.MoveEnded)
def move_ended(state: State, source: int, message: messages.MoveEnded) -> messages.MoveEnded:
    """Forget a move that no shard will ask about again."""
    arrived = state.arrived.pop(message.move, None)
    if arrived is not None:
        state.arriving.difference_update(arrived.here)
        state.out.keep(ARRIVED, message.move, None)
    return message


@answers(messages.Rehome)
def rehome(state: State, source: int, message: messages.Rehome) -> messages.Rehome:
    """Note the new shard of moved jobs whose ids point here."""
    for job_id in message.ids:
        enter(state, job_id, message.shard)
    state.out.durable = True
    return message
