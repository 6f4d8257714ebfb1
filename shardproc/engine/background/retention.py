"""Retention: removes finished jobs that are too old or too many, and retries dead letters that are due.

A round covers all queues, one piece at a time, so each commit takes only a few ms and commands run in
between.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

from bunqueue.model.bounds import Bounds
from bunqueue.model.dead_letters import KEEP_FAILED, MAX_AGE
from bunqueue.model.job import COMPLETED, FAILED
from bunqueue.model.workflow import REMEMBERED_MS

from ..lifecycle import dlq_retries, removal, transitions, unique_keys
from ..memory.queue_configs import dlq_config, of_queue
from ..outbox import Outdated
from ..run_writes import Op
from ..state import QueueState, State
from . import unused_queues

ROUND_MS = 10_000  # from the end of a round to the start of the next
DEAD_MS = 60_000  # the same for dead letters: the specification's interval
PACE_MS = 10  # between two pieces of a round
FAST_PACE_MS = 1  # the same, when far too many jobs are kept
PIECE = 250  # jobs removed or inspected per piece; 2 ms
REVIVALS = 100  # jobs retried per piece: their payloads are read as well
FAR = 50_000  # jobs above the limit that count as far too many
SPARED = 40  # pieces per queue and round that may contain only jobs with a longer retention than the queue's
QUEUES = 50  # inspected per piece when there is nothing to do

_PLACE = attrgetter("queue_id", "state")

Pieces = Iterator[int]  # ms until the next piece


def step(state: State) -> None:
    """Run the next piece, which is due."""
    if state.maintenance.pieces is None:
        state.maintenance.pieces = _round(state)
    pause = next(state.maintenance.pieces, None)
    if pause is None:
        state.maintenance.pieces = None
    state.maintenance.next_at = state.now + (ROUND_MS if pause is None else pause)


def _round(state: State) -> Pieces:
    while unique_keys.expire(state, PIECE) == PIECE:
        yield PACE_MS
    yield from _expired(state)
    dead = state.now >= state.maintenance.dlq_at
    if dead:
        state.maintenance.dlq_at = state.now + DEAD_MS
        forget_broadcasts(state)
    with_schedules = unused_queues.scheduled(state)
    for number, queue in enumerate(list(state.queues.values()), 1):
        if queue.completed:
            yield from _too_many(state, queue)
            yield from _too_old(state, queue)
        if dead and queue.failed:
            yield from _dead_letters(state, queue)
        if state.queues.get(queue.name) is queue:  # the queue still exists
            unused_queues.check(state, queue, with_schedules)
        if number % QUEUES == 0:
            yield PACE_MS


def _expired(state: State) -> Pieces:
    """Remove jobs that have a retention time of their own, in all queues and both states."""
    while found := state.archive.expired(state.maintenance.uncertainty.time(state.now), PIECE):
        names = {queue.id: queue for queue in state.queues.values()}
        for (queue_id, finished), some in groupby(sorted(found, key=_PLACE), key=_PLACE):
            if finished == FAILED:
                removal.drop(state, names[queue_id], [job.letter for job in some], KEEP_FAILED)
            else:
                removal.purge(state, names[queue_id], finished, [job.seq for job in some])
        yield PACE_MS


def forget_broadcasts(state: State) -> None:
    """Remove broadcast signals that no run will receive any more."""
    for broadcast_id in state.archive.runs.old_broadcasts(state.now, REMEMBERED_MS, PIECE):
        state.out.runs.append((Op.DELETE_BROADCAST, (broadcast_id,)))


def _too_many(state: State, queue: QueueState) -> Pieces:
    while (most := _most(state, queue)) and (excess := queue.completed - most) > 0:
        old, _ = state.archive.old_completed(queue.id, state.now, min(excess, PIECE), -1)
        if not old:
            return
        removal.purge(state, queue, COMPLETED, [seq for seq, _ in old])
        yield FAST_PACE_MS if excess > FAR else PACE_MS


def _most(state: State, queue: QueueState) -> int:
    """The number of completed jobs that a queue keeps; 0: no limit.  Checked for each piece, as the disk may
    fill up."""
    own = of_queue(state, queue.name, Bounds).keep_count
    return 1 if state.maintenance.pressed else state.maintenance.retention.max_count if own is None else own


def _longest(state: State, queue: QueueState) -> int:
    """How long a queue keeps completed jobs, in ms; 0: no limit."""
    own = of_queue(state, queue.name, Bounds).keep_age
    return state.maintenance.retention.max_age_s * 1000 if own is None else own


def _too_old(state: State, queue: QueueState) -> Pieces:
    """Remove outdated jobs from the start of the queue, then from where the last round ended: jobs do not
    complete in order of arrival."""
    if not _longest(state, queue):
        return
    while _purge_old(state, queue, -1).jobs:
        yield PACE_MS
    spared = 0
    while spared < SPARED:
        old, last, has_spared = _purge_old(state, queue, queue.kept)
        queue.kept = -1 if last is None else last
        if not old and not has_spared:
            return
        spared += not old
        yield PACE_MS


def _purge_old(state: State, queue: QueueState, after: int) -> Outdated:
    """Remove the outdated jobs among the next PIECE jobs after a number, and return them."""
    until = state.maintenance.uncertainty.time(state.now) - _longest(state, queue)
    found = state.archive.outdated(queue.id, until, PIECE, after)
    if found.jobs:
        removal.purge(state, queue, COMPLETED, [seq for seq, _ in found.jobs])
    return found


def _dead_letters(state: State, queue: QueueState) -> Pieces:
    config = dlq_config(state, queue.name)
    while config.auto_retry and (seqs := state.archive.due_retries(queue.id, state.now, REVIVALS)):
        for job in state.archive.load(seqs).values():
            if transitions.can_retake_key(state, queue, job):
                transitions.revive(state, queue, job, by_itself=True)
            else:
                dlq_retries.give_up(state, job)
        yield PACE_MS
    while config.max_age is not None:
        until = state.maintenance.uncertainty.time(state.now) - int(config.max_age)
        old = state.archive.old_dead_letters(queue.id, until, PIECE, spare=True)
        if not old:
            break
        removal.drop(state, queue, old, MAX_AGE)
        yield PACE_MS
    for _ in removal.evict(state, queue):
        yield PACE_MS
