"""COMPLETED or FAILED to gone: finished jobs that are forgotten, purged or evicted."""

from __future__ import annotations

from collections.abc import Iterator

from bunqueue.model.dead_letters import MAX_ENTRIES
from bunqueue.model.job import COMPLETED, FAILED, REMOVED, STATE_NAMES, Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError

from ..memory.queue_configs import dlq_config
from ..outbox import ROW, OldLetter
from ..state import QueueState, State
from . import child_results, dropped_letters, events, unique_keys
from .events import emit

EVICTED = 250  # dead letters removed at a time; 2 ms
EVICTION = 8  # the cost of removing one, in units of `state.SPARE`


def forget(state: State, job: Job) -> None:
    """COMPLETED or FAILED to gone; ``job`` is from the archive."""
    queue = state.queues[job.queue]
    if job.state == COMPLETED:
        queue.completed -= 1
    else:
        queue.failed -= 1
    job.state = REMOVED
    unique_keys.forget(state, queue, job)
    emit(state, events.DROPPED, job)
    state.out.touch(job, ROW)


def purge(state: State, queue: QueueState, finished: int, seqs: list[int]) -> None:
    """COMPLETED or FAILED (as given by ``finished``) to gone: jobs that `Archive.old_completed` or
    `Archive.old_dead_letters` has just found.  Call it in slices: all jobs of one call are deleted at
    once."""
    own = state.archive.own_ids(seqs)
    events.emit_purged(state, queue, STATE_NAMES[finished], seqs, own)
    _delete(state, queue, finished, seqs, own)


def drop(state: State, queue: QueueState, letters: list[OldLetter], why: str) -> None:
    """FAILED to gone, as in `purge`: dead letters that are removed without a command."""
    seqs = [letter.seq for letter in letters]
    own = state.archive.own_ids(seqs)
    dropped_letters.drop(state, queue, letters, why, own)
    _delete(state, queue, FAILED, seqs, own)


def _delete(state: State, queue: QueueState, finished: int, seqs: list[int], own: dict[int, str]) -> None:
    if finished == COMPLETED:
        queue.completed -= len(seqs)
        child_results.keep_of(state, seqs)
    else:
        queue.failed -= len(seqs)
    if state.shards > 1:
        state.freed_ids += [job_id for job_id in own.values() if not child_results.is_known(state, job_id)]
    state.out.purge(queue.id, seqs)
    if state.ended_keys.kept:
        unique_keys.purged(state, seqs, own)


def check(state: State, queue: QueueState, removed: int) -> None:
    """For a purge that found nothing: CommandError if the reason is a damaged file."""
    problem = state.archive.problem()
    if problem is not None and (queue.completed or queue.failed):
        before = f"; {removed:,} jobs were removed before that was known" if removed else ""
        text = f"no finished job is removed from a damaged file{before}: {problem}"
        raise CommandError(text, Code.STORAGE_DAMAGED)


def evict(state: State, queue: QueueState) -> Iterator[None]:
    """Remove the oldest dead letters of a queue that has more than it may keep."""
    while (most := dlq_config(state, queue.name).max_entries) and (excess := queue.failed - most) > 0:
        old = state.archive.old_dead_letters(queue.id, state.now, min(excess, EVICTED))
        if not old:
            return
        drop(state, queue, old, MAX_ENTRIES)
        state.budget -= EVICTION * len(old)
        if state.budget <= 0:
            yield
