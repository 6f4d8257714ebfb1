"""Moves live jobs, schedules, limits and waiting clients back to the true time: see `set_back`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bunqueue.model.job import DELAYED, SUSPENDED, WAITING, Extra, Job, Lock
from bunqueue.model.workflow import Run

from .background import retention
from .handlers import idempotency, locks
from .handlers.crons import commands
from .handlers.views.paging import job_of
from .lifecycle import repeating, unique_keys
from .memory import history
from .memory.clock_correction import SetBack
from .memory.totals import Rates
from .outbox import ROW
from .ready import deadlines, queue_limits
from .ready.groups import Groups
from .state import QueueState, State

SLICE = 200  # jobs moved per step: about 5 ms, including the writes of their rows
SCAN = 2_000  # jobs inspected per step


def set_back(state: State, back: SetBack) -> Counter[str]:
    """Move everything that cannot wait, and count it by kind.  Live jobs that are not active are left to
    `jobs`."""
    state.now = back.now
    moved = Counter(jobs=_active(state, back), schedules=commands.set_back(state, back))
    moved["limits"] = queue_limits.set_back(state, back) + unique_keys.set_back(state, back)
    idempotency.set_back(state, back)
    history.set_back(state, back)
    _rounds(state, back)
    deadlines.set_back(state.poll_ends, back.by)
    deadlines.set_back(state.wait_ends, back.by)
    deadlines.set_back(state.trials.ends, back.by)
    return moved


def jobs(state: State, back: SetBack, end: int) -> Iterator[int]:
    """Move the live jobs with numbers below ``end``, step by step, yielding the number moved in each.
    A job that was moved before stays as it is, so this may start over after a crash."""
    for queue in list(state.queues.values()):
        reordered = False
        for some in _chunks([seq for seq in (*queue.late, *queue.jobs) if seq < end]):
            moved = 0
            for job in (found for seq in some if (found := job_of(queue, seq)) is not None):
                if _job(state, job, back):
                    moved += 1
                    reordered |= job.state == WAITING
                    if moved % SLICE == 0:
                        yield SLICE
            yield moved % SLICE
        if reordered:
            _reorder(queue)


def _chunks(seqs: list[int]) -> Iterator[list[int]]:
    return (seqs[start : start + SCAN] for start in range(0, len(seqs), SCAN))


def _rounds(state: State, back: SetBack) -> None:
    """Keep periodic work on schedule."""
    now = back.now
    state.next_sweep = min(state.next_sweep, now + locks.SWEEP_MS)
    state.maintenance.next_at = min(state.maintenance.next_at, now + retention.ROUND_MS)
    state.maintenance.dlq_at = min(state.maintenance.dlq_at, now + retention.DEAD_MS)
    state.started_at, state.away_until = min(state.started_at, now), min(state.away_until, now)
    state.trials.asked_at = min(state.trials.asked_at, now)
    state.rates = Rates()


def _active(state: State, back: SetBack) -> int:
    """Move the locks and timeouts of active jobs."""
    moved = 0
    state.timeouts.replace(())
    for queue in state.queues.values():
        for job in queue.active.values():
            changed = job.lock is not None and _lock(job.lock, back)
            if _job(state, job, back) or changed:
                state.out.touch(job, ROW)
                moved += 1
            deadlines.watch(state, job)
    return moved


def _reorder(queue: QueueState) -> None:
    if isinstance(queue.ready, Groups):
        queue.ready.reorder()
    else:
        queue.ready = queue.ready.sorted()


def _job(state: State, job: Job, back: SetBack) -> bool:
    """Move the times of a job that came from the wrong clock; whether there were any."""
    before = job.created_at, job.run_at, job.started_at
    extra, later = job.extra, back._replace(now=state.now)  # true times are before now
    if job.run_at > back.now and _is_wrongly_planned(job, back, later):
        job.run_at = job.run_at - back.by if extra is None else repeating.set_back(job, extra, back)
        if job.state in (DELAYED, SUSPENDED) and job.run_at != before[1]:
            state.delays.push(job.run_at, job.seq, job)
            state.delays.forget()
    job.created_at = back.moment(job.created_at)
    if job.started_at is not None:
        job.started_at = later.moment(job.started_at)
    for moment in job.timeline or ():
        moment.at = later.moment(moment.at)
    changed = before != (job.created_at, job.run_at, job.started_at)
    if extra is not None:
        changed |= _extra(extra, back, later)
    if job.run is not None:
        changed |= _run(job.run, job, later)
    if changed:
        state.out.touch(job, ROW)
    return changed


def _is_wrongly_planned(job: Job, back: SetBack, later: SetBack) -> bool:
    """Whether the wrong clock decided the job's run time: when it was pushed, last failed, or was
    postponed."""
    planned = [moment.at for moment in (job.timeline or ())[-1:]]
    if job.extra is not None and job.extra.planned_at is not None:
        planned.append(job.extra.planned_at)
    return later.is_wrong(max(planned)) if planned else back.is_wrong(job.created_at)


def _run(run: Run, job: Job, later: SetBack) -> bool:
    """Move the end of a workflow's wait, and the start of its undo."""
    before = run.undoing and run.undoing.at
    if run.waits is not None and run.waits.until is not None:
        run.waits.until = job.run_at
    if run.undoing is not None:
        run.undoing.at = later.moment(run.undoing.at)
    return before != (run.undoing and run.undoing.at)


def _extra(extra: Extra, back: SetBack, later: SetBack) -> bool:
    before = extra.key_until, extra.planned_at, extra.cancellation and extra.cancellation.until
    if extra.key_until is not None:
        extra.key_until = back.end(extra.key_until, extra.key_until - int(extra.deduplication_ttl or 0))
    if extra.planned_at is not None:
        extra.planned_at = later.moment(extra.planned_at)
    if extra.cancellation is not None:
        # The time of the request is not known.  A job that should stop may stop early.
        until = extra.cancellation.until
        extra.cancellation.until = max(min(until, back.now), until - back.by)
    return before != (extra.key_until, extra.planned_at, extra.cancellation and extra.cancellation.until)


def _lock(lock: Lock, back: SetBack) -> bool:
    """Whether the lock ends earlier.  After a start it is not known when the lock was granted: it is assumed
    to come from the wrong clock, but never ends before its full time has run again."""
    until = lock.until
    if lock.heartbeat_at >= back.now:
        lock.until = min(until, max(back.now + lock.ttl, until - back.by))
    lock.heartbeat_at, lock.suspect = back.now, False
    return lock.until != until
