"""Live jobs, schedules, limits and whoever waits, brought back to the true time: see `set_back`."""

from __future__ import annotations

from collections import Counter
from heapq import heapify

from bunqueue.model.job import ACTIVE, WAITING, Extra, Job, Lock

from . import gate, history, idempotency, locks, repeating, schedules, timeouts, upkeep
from .groups import Groups
from .outbox import ROW
from .set_back import SetBack
from .state import QueueState, Rates, State


def set_back(state: State, back: SetBack) -> Counter[str]:
    """How many of what were moved.  Costs a look at every live job, and a write of each that was moved."""
    state.now = back.now
    moved = Counter(jobs=_jobs(state, back), schedules=schedules.set_back(state, back))
    moved["limits"] = gate.set_back(state, back)
    idempotency.set_back(state, back)
    history.set_back(state, back)
    _rounds(state, back)
    for parked in (state.poll_ends, state.wait_ends, state.trials.ends):
        parked.set_back(back.by)
    return moved


def _rounds(state: State, back: SetBack) -> None:
    """What is done from time to time goes on."""
    now = back.now
    state.next_sweep = min(state.next_sweep, now + locks.SWEEP_MS)
    state.upkeep.next_at = min(state.upkeep.next_at, now + upkeep.ROUND_MS)
    state.upkeep.dlq_at = min(state.upkeep.dlq_at, now + upkeep.DEAD_MS)
    state.started_at, state.away_until = min(state.started_at, now), min(state.away_until, now)
    state.trials.asked_at = min(state.trials.asked_at, now)
    state.rates = Rates()


def _jobs(state: State, back: SetBack) -> int:
    moved = 0
    for queue in state.queues.values():
        reordered = False
        for jobs in (queue.jobs, queue.late):
            for job in jobs.values():
                if _job(state, job, back):
                    state.out.touch(job, ROW)
                    moved += 1
                    reordered |= job.state == WAITING
        if reordered:
            _reorder(queue)
    delayed = [job for queue in state.queues.values() for job in queue.delayed.values()]
    state.delays, state.stale_delays = [(job.run_at, job.seq, job) for job in delayed], 0
    heapify(state.delays)
    state.timeouts = []
    for queue in state.queues.values():
        for job in queue.active.values():
            timeouts.watch(state, job)
    return moved


def _reorder(queue: QueueState) -> None:
    if isinstance(queue.ready, Groups):
        queue.ready.reorder()
    else:
        queue.ready = queue.ready.sorted()


def _job(state: State, job: Job, back: SetBack) -> bool:
    """Whether anything of it was taken from the wrong clock."""
    before = job.created_at, job.run_at, job.started_at
    extra = job.extra
    if job.run_at > back.now and back.is_wrong(_planned_at(state, job)):
        job.run_at = job.run_at - back.by if extra is None else repeating.set_back(job, extra, back)
    job.created_at = back.moment(job.created_at)
    if job.started_at is not None:
        job.started_at = back.moment(job.started_at)
    for moment in job.timeline or ():
        moment.at = back.moment(moment.at)
    changed = before != (job.created_at, job.run_at, job.started_at)
    if extra is not None:
        changed |= _extra(extra, back)
    if job.state == ACTIVE and job.lock is not None:
        changed |= _lock(job.lock, back)
    return changed


def _planned_at(state: State, job: Job) -> int:
    """When it was decided when the job is to run: when it was pushed, failed last, or was put off."""
    planned = job.timeline[-1].at if job.timeline else job.created_at
    if job.extra is not None and job.extra.planned_at is not None:
        planned = max(planned, job.extra.planned_at)
    return planned


def _extra(extra: Extra, back: SetBack) -> bool:
    before = extra.key_until, extra.planned_at, extra.cancellation and extra.cancellation.until
    if extra.key_until is not None:
        extra.key_until = back.end(extra.key_until, extra.key_until - int(extra.deduplication_ttl or 0))
    if extra.planned_at is not None:
        extra.planned_at = back.moment(extra.planned_at)
    if extra.cancellation is not None:
        # When it was asked for is not known: it is no mistake to be early with a job that is to stop.
        until = extra.cancellation.until
        extra.cancellation.until = max(min(until, back.now), until - back.by)
    return before != (extra.key_until, extra.planned_at, extra.cancellation and extra.cancellation.until)


def _lock(lock: Lock, back: SetBack) -> bool:
    """Whether it ends earlier.  After a start it is not known when it was granted: then it is taken for
    granted by the wrong clock, but never ends before its time has run anew."""
    until = lock.until
    if lock.heartbeat_at >= back.now:
        lock.until = min(until, max(back.now + lock.ttl, until - back.by))
    lock.heartbeat_at, lock.suspect = back.now, False
    return lock.until != until
