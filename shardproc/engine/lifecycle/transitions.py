"""All transitions between states: in the course of a job, by command, and while it waits for other jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from operator import attrgetter

from msgspec import UNSET, Raw
from msgspec.structs import replace

from bunqueue.model.backoff import may_retry, retry_delay
from bunqueue.model.dead_letters import (
    CANCELLED,
    COMPLETED_OUTCOME,
    EXPIRED,
    EXPLICIT_FAIL,
    INTERRUPTED,
    MAX_ATTEMPTS,
    NEVER_ON,
    RETRY_ON,
    STALLED,
    TIMEOUT,
    TIMEOUT_TYPES,
    UNRECOVERABLE,
    reason_of,
)
from bunqueue.model.job import (
    ACTIVE,
    BLOCKED,
    COMPLETED,
    DELAYED,
    FAILED,
    NIL,
    REMOVED,
    SUSPENDED,
    WAITING,
    Extra,
    Job,
    Lock,
    Moment,
)
from bunqueue.model.stall import StallConfig
from bunqueue.model.workflow import STUCK, UNDONE, Waits
from bunqueue.protocol.job_timeline import timeline

from ..memory.job_figures import JobFigures
from ..memory.queue_configs import dlq_config, of_queue
from ..memory.worker_presence import remember
from ..outbox import CLEAN, NEW, ROW, STATE, Attempt
from ..ready import deadlines, queue_limits
from ..state import Client, QueueState, State
from . import (
    breakers,
    child_results,
    dlq_retries,
    events,
    job_waiters,
    last_runs,
    outcomes,
    progress,
    removal,
    undo,
    unique_keys,
)
from .dedup import holder_id
from .events import PUSHED, READY, WAITING_CHILDREN, emit
from .last_runs import ended as run_ended
from .repeating import successor
from .timeline import attempt_number, note, planned

_NAME = attrgetter("name")
DISCARDED = "unknown"  # the reason of a dead letter, as in the reference server
MAX_ERROR = 65_536  # characters kept of an error text
# How often workers may give a job back because they stop: a long job may live through several deploys in a
# row.
FREE_INTERRUPTIONS = 10


def enqueue(state: State, queue: QueueState, job: Job) -> None:
    """Queue a job: WAITING, or DELAYED if its time has not come."""
    if job.run_at > state.now:
        job.state = DELAYED
        queue.delayed[job.seq] = job
        state.delays.push(job.run_at, job.seq, job)
        return
    job.state = WAITING
    queue.waiting += 1
    queue.ready.push(job)
    if queue.waiters:
        state.woken[queue] = None


def add(state: State, queue: QueueState, jobs: list[Job], kind: int = events.PUSHED) -> None:
    """Make jobs live: pushed, or brought back with another ``kind`` of event."""
    for job in jobs:
        queue_limits.join(queue, job)
        state.jobs[job.id] = queue.jobs[job.seq] = job
        emit(state, kind, job)
        enqueue(state, queue, job)
        state.out.touch(job, ROW)
    if queue.tenant is not None:
        queue.tenant.jobs += len(jobs)
    if kind == PUSHED:
        count_pushed(state, queue, jobs)


def add_new(state: State, queue: QueueState, job: Job) -> None:
    """`add` for a new job without options: the hottest path."""
    out = state.out
    state.jobs[job.id] = queue.jobs[job.seq] = job
    job.dirty = NEW
    out.dirty.append(job)
    out.events.append((events.PUSHED, queue.id, job.id))
    (queue.names.get(job.name) or state.figures.new(queue.names, job.name)).pushed += 1  # _figures, inlined
    if job.run_at > state.now:
        enqueue(state, queue, job)
    else:  # enqueue, inlined
        queue.waiting += 1
        queue.ready.push(job)
        if queue.waiters:
            state.woken[queue] = None
    if queue.tenant is not None:
        queue.tenant.jobs += 1
    if queue.listeners:
        events.publish(state, queue, events.PUSHED, job)


def add_many_new(state: State, queue: QueueState, jobs: list[Job]) -> None:
    """`add_new` for the jobs of one command, in less time than one by one."""
    by_id, by_seq, out, queue_id = state.jobs, queue.jobs, state.out, queue.id
    for job in jobs:
        by_id[job.id] = by_seq[job.seq] = job
        job.dirty = NEW
    out.dirty.extend(jobs)
    out.events.extend([(events.PUSHED, queue_id, job.id) for job in jobs])
    ready = [job for job in jobs if job.run_at <= state.now]
    if len(ready) < len(jobs):
        for job in jobs:
            if job.run_at > state.now:
                enqueue(state, queue, job)
    if ready:
        queue.waiting += len(ready)
        queue.ready.extend(ready)
        if queue.waiters:
            state.woken[queue] = None
    count_pushed(state, queue, jobs)
    if queue.tenant is not None:
        queue.tenant.jobs += len(jobs)
    if queue.listeners:
        for job in jobs:
            events.publish(state, queue, events.PUSHED, job)


def _figures(state: State, queue: QueueState, name: str) -> JobFigures:
    """The figures of the queue's jobs of one name."""
    return queue.names.get(name) or state.figures.new(queue.names, name)


def count_pushed(state: State, queue: QueueState, jobs: list[Job]) -> None:
    """Count new jobs."""
    if len(jobs) == 1:
        name = jobs[0].name
        _figures(state, queue, name).pushed += 1
        return
    for name, count in Counter(map(_NAME, jobs)).items():
        _figures(state, queue, name).pushed += count


def due(state: State, job: Job) -> None:
    """DELAYED to WAITING: its time has come.  SUSPENDED to WAITING: it has waited long enough."""
    queue = state.queues[job.queue]
    if job.state == SUSPENDED:
        leave_suspended(state, queue, job)
        state.out.touch(job, ROW)
    else:
        del queue.delayed[job.seq]
    enqueue(state, queue, job)
    emit(state, events.READY, job)


def activate(state: State, queue: QueueState, job: Job, client: Client, owner: str, ttl: int) -> None:
    """WAITING to ACTIVE: ``client`` takes it; with an owner, under a lock."""
    now = state.now
    token = state.ids.token(queue.slot, now) if owner else ""
    job.state = ACTIVE
    job.started_at = now
    job.lock = Lock(token, owner, ttl, now + ttl, client.conn, now)
    if job.timeline is not None:  # not its first run: there is more to write than a lock
        job.lost_token = None
        job.timed_out = False
        note(job, Moment("active", now))
        state.out.touch(job, ROW)
    if job.shared.options.timeout:  # 0 means no timeout, and is shown as given
        job.lock.own_timeout = client.own_timeouts
        deadlines.watch(state, job)
    client.held.add(job)
    queue.waiting -= 1
    queue.active[job.seq] = job
    (queue.names.get(job.name) or state.figures.new(queue.names, job.name)).started += 1  # _figures, inlined
    if queue.limits is not None:
        queue_limits.passed(state, queue, queue.limits, job)
    state.out.events.append((events.PULLED, queue.id, job.id))
    if queue.listeners:
        events.publish(state, queue, events.PULLED, job)
    if not job.dirty:  # out.touch, inlined: once per job on the hottest path
        state.out.dirty.append(job)
    job.dirty |= STATE


def complete(
    state: State, queue: QueueState, job: Job, result: bytes | None, *, remove: bool | None = False
) -> None:
    """ACTIVE (or WAITING, by a late ack) to COMPLETED; or to REMOVED if its options or its worker require
    it."""
    if queue.limits is not None and queue.limits.breakers is not None:
        breakers.succeeded(state, queue, queue.limits.breakers, job)
    if job.state == ACTIVE:  # `withdraw`, inlined
        job.state = COMPLETED
        let_go(state, queue, job)
    else:
        withdraw(state, queue, job, COMPLETED)
    job.finished_at = now = state.now
    state.totals.completed += 1
    queue.total_completed += 1
    figures = queue.names.get(job.name) or state.figures.new(queue.names, job.name)  # _figures, inlined
    figures.completed += 1
    if (started := job.started_at) is not None:
        figures.attempt(started - job.run_at, now - started)
    figures.ended(now - job.created_at)
    remove = remove or job.shared.options.remove_on_complete
    if state.waits:
        job_waiters.completed(state, job, result, kept=not remove)
    if job.timeline is not None:
        note(job, Moment("completed", state.now))
    state.out.events.append((events.COMPLETED, queue.id, job.id))
    if queue.listeners:
        events.publish(state, queue, events.COMPLETED, job, data=UNSET if result is None else Raw(result))
    if remove:
        job.state = REMOVED
        emit(state, events.DROPPED, job)
        outcomes.remember(state, job)
        child_results.keep(state, job, result)
    else:
        if job.id in state.awaited:
            state.decided.append(job)
        job.result = result
        queue.completed += 1
    retire(state, queue, job)
    extra = job.extra
    if extra is None:
        return
    if extra.schedule is not None:
        run_ended(state, job, "completed")
    if extra.repeat and (again := successor(state, queue, job, extra)) is not None:
        add(state, queue, [again])


def fail(
    state: State,
    job: Job,
    error: str | None,
    reason: str,
    *,
    final: bool = False,
    remove: bool = False,
    delay: float | None = None,
    types: Sequence[str] = (),
) -> None:
    """ACTIVE to DELAYED or WAITING for a retry, after its backoff or ``delay`` ms; or to FAILED if no attempt
    is left, or if the job's rules forbid a retry after an error of these ``types``."""
    if is_cancelled(job):
        return cancel(state, job)
    queue, left = state.queues[job.queue], undo.left(state, job)
    options = job.shared.options
    job.attempts += 1
    if queue.limits is not None and queue.limits.breakers is not None:
        breakers.failed(state, queue, queue.limits.breakers, job, error, types)
    attempt = _end_attempt(state, queue, job, error, reason)
    attempt.error_type = types[0] if types else None
    unique_keys.release_after_attempt(queue, job)
    cause = UNRECOVERABLE if final else _last(job, types, reason)
    final = cause is not None
    if final and undo.is_underway(job):
        return end_undo(state, queue, job, left)
    undoes = final and undo.comes_first(job)
    emit(state, events.FAILED, job, error=job.error or "", terminal=final and not undoes)
    if undoes:
        begin_undo(state, queue, job, cause or reason)
    elif final:
        dead_letter(state, queue, job, cause or reason, remove=remove)
    else:
        if delay is None:
            kind, backoff, jitter = options.backoff_kind, options.backoff, options.backoff_jitter
            most, delays = options.backoff_max, options.backoff_delays
            chance = state.chance()
            delay = retry_delay(kind, backoff, job.attempts, chance, jitter, most=most, delays=delays)
        attempt.delay = int(delay)
        _figures(state, queue, job.name).retried += 1
        _again(state, queue, job, state.now + int(delay))
        emit(state, events.RETRIED, job, prev="failed")


def _last(job: Job, types: Sequence[str], reason: str) -> str | None:
    """Why this attempt is the last one; None: another one follows.  ``retry_on`` applies to errors of the
    handler only; a run that timed out raised none, but ``never_on`` may name timeouts."""
    extra = job.extra
    timed_out = reason == TIMEOUT
    if extra is not None and (extra.retry_on or extra.never_on):
        if not may_retry(types, (), extra.never_on):
            return TIMEOUT if timed_out else NEVER_ON
        if not timed_out and not may_retry(types, extra.retry_on, ()):
            return RETRY_ON
    if job.attempts < job.shared.options.max_attempts:
        return None
    return TIMEOUT if timed_out else MAX_ATTEMPTS


def stall(state: State, job: Job, error: str) -> None:
    """ACTIVE to WAITING without backoff: its worker sent no heartbeat.  After too many stalls to FAILED."""
    if is_cancelled(job):
        return cancel(state, job)
    queue, left = state.queues[job.queue], undo.left(state, job)
    lock = job.lock
    job.attempts += 1
    job.stalls += 1
    attempt = _end_attempt(state, queue, job, error, STALLED)
    emit(state, events.STALLED, job)
    stalled = job.stalls >= of_queue(state, job.queue, StallConfig).max_stalls
    if stalled or job.attempts >= job.shared.options.max_attempts:
        if undo.is_underway(job):
            return end_undo(state, queue, job, left)
        undoes = undo.comes_first(job)
        emit(state, events.FAILED, job, error=error, terminal=not undoes)
        if undoes:
            begin_undo(state, queue, job, STALLED if stalled else MAX_ATTEMPTS)
        else:
            dead_letter(state, queue, job, STALLED if stalled else MAX_ATTEMPTS)
    else:
        remember(job, lock)
        attempt.delay = 0
        _figures(state, queue, job.name).retried += 1
        _again(state, queue, job, state.now)


def is_cancelled(job: Job) -> bool:
    """Whether an active job has been cancelled and can only end as such."""
    return job.extra is not None and job.extra.cancellation is not None


def cancelled(why: str | None) -> str:
    """The error text of a cancelled job."""
    return f"Cancelled: {why}" if why else "Cancelled"


def cancel(state: State, job: Job) -> None:
    """ACTIVE to FAILED: it was cancelled, and its worker has stopped or its time to stop is over."""
    queue, extra, lock = state.queues[job.queue], job.extra, job.lock
    assert extra is not None
    assert extra.cancellation is not None
    assert lock is not None
    left = undo.left(state, job)
    why, extra.cancellation = extra.cancellation.reason, None
    text = cancelled(why)
    started, number = job.started_at, job.attempts + 1
    attempt = Attempt(job.seq, number, lock.owner, started, state.now, CANCELLED, text, None)
    state.out.attempts.append(attempt)
    note(job, Moment(CANCELLED, state.now, text, attempt_number(job, number)))
    let_go(state, queue, job)
    job.error = text
    _cancelled(state, queue, job, left)


def cancel_begun(state: State, job: Job, why: str | None) -> None:
    """WAITING, DELAYED, SUSPENDED or BLOCKED to FAILED: a workflow was cancelled between two runs, or the
    job's flow was cancelled.  Other jobs are removed instead, as they have not begun."""
    queue, left = state.queues[job.queue], undo.left(state, job)
    withdraw(state, queue, job, FAILED)
    job.error = cancelled(why)
    note(job, Moment(CANCELLED, state.now, job.error))
    _cancelled(state, queue, job, left)


def _cancelled(state: State, queue: QueueState, job: Job, left: str | None) -> None:
    """End a cancelled job that has left its place, or undo its steps first.  If an undo is under way,
    ``left`` is the next step to undo."""
    if undo.is_underway(job):
        end_undo(state, queue, job, left)
    else:
        undoes = undo.comes_first(job)
        emit(state, events.FAILED, job, error=job.error or "", terminal=not undoes, reason=CANCELLED)
        if undoes:
            begin_undo(state, queue, job, CANCELLED)
        else:
            dead_letter(state, queue, job, CANCELLED)
    state.out.touch(job, ROW)


def time_out(state: State, job: Job) -> None:
    """ACTIVE to a retry or FAILED: the attempt took too long.  Late reports for it are ignored."""
    job.timed_out = True
    fail(state, job, "Job timeout exceeded", TIMEOUT, types=TIMEOUT_TYPES)


def release(state: State, job: Job) -> None:
    """ACTIVE to WAITING: its connection ended.  No attempt is counted, and the job keeps its place in the
    queue."""
    if is_cancelled(job):
        return cancel(state, job)
    queue = state.queues[job.queue]
    let_go(state, queue, job)
    job.started_at = None
    progress.forget(state, job)
    enqueue(state, queue, job)
    emit(state, events.RELEASED, job)
    state.out.touch(job)


def expire(state: State, queue: QueueState, job: Job) -> None:
    """WAITING to REMOVED: its ttl was over when a pull reached it."""
    queue.waiting -= 1
    job.state, job.reason = REMOVED, EXPIRED
    job_waiters.keep(state, job)
    emit(state, events.DROPPED, job, reason=EXPIRED)
    outcomes.remember(state, job)
    run_ended(state, job, EXPIRED)
    retire(state, queue, job)


def remove(
    state: State, queue: QueueState, job: Job, kind: int = events.DROPPED, *, reason: str | None = None
) -> None:
    """Any live state to REMOVED, by command or for another ``reason``.  With ``kind`` events.REMOVED,
    subscribers get that event."""
    withdraw(state, queue, job, REMOVED)
    if reason is not None:
        job.reason = reason
    job_waiters.keep(state, job)
    emit(state, kind, job, **({} if reason is None else {"reason": reason}))
    outcomes.remember(state, job)
    run_ended(state, job, "removed")
    retire(state, queue, job)
    job.data = NIL  # entries in heaps may stay for a long time


def withdraw(state: State, queue: QueueState, job: Job, to: int) -> None:
    """Take a live job out of its place and set its state to ``to``."""
    was, job.state = job.state, to
    if was == WAITING:
        queue.waiting -= 1
        queue_limits.forget(queue, job)
    elif was == DELAYED:
        del queue.delayed[job.seq]
        state.delays.forget()
    elif was == ACTIVE:
        let_go(state, queue, job)
    elif was == SUSPENDED:
        leave_suspended(state, queue, job)
    else:
        del queue.blocked[job.seq]
        state.unblocked.append(job)


def dead_letter(
    state: State, queue: QueueState, job: Job, reason: str, *, remove: bool = False, keep: bool = False
) -> None:
    """To FAILED, a dead letter; or to REMOVED if its options or its worker require it, unless ``keep``."""
    job.reason = reason
    state.totals.failed += 1
    queue.total_failed += 1
    figures = _figures(state, queue, job.name)
    figures.dead += 1
    figures.ended(state.now - job.created_at)
    state.errors.pending.append((queue, job, None))
    run_ended(state, job, CANCELLED if reason == CANCELLED else "failed")
    if remove or (job.shared.options.remove_on_fail and not keep):
        job.state = REMOVED
        job_waiters.keep(state, job)
        emit(state, events.DROPPED, job)
        outcomes.remember(state, job)
    else:
        if job.id in state.awaited:
            state.decided.append(job)
        job.state = FAILED
        job.finished_at = state.now
        queue.failed += 1
        dlq_retries.plan(state, job)
        if (most := dlq_config(state, queue.name).max_entries) and queue.failed > most:
            state.background_work.setdefault((removal.evict, queue.name), removal.evict(state, queue))
    extra = job.extra
    if extra is not None and extra.on_dead is not None and reason not in (CANCELLED, DISCARDED):
        if extra.auto_retries is None or extra.auto_retries.next_at is None or job.state == REMOVED:
            state.died.append(job)
    retire(state, queue, job)


def take_dead_letter(state: State, queue: QueueState, job: Job) -> None:
    """FAILED to REMOVED: it moves to another queue."""
    queue.failed -= 1
    job.state = REMOVED
    state.out.touch(job, ROW)


def put_dead_letter(state: State, queue: QueueState, job: Job) -> None:
    """To FAILED: a dead letter that had been taken comes back, because the other queue refused it."""
    job.state = FAILED
    queue.failed += 1
    emit(state, events.FAILED, job, error=job.error or "", terminal=True)
    state.out.touch(job, ROW)


def let_go(state: State, queue: QueueState, job: Job) -> None:
    """End the lock of an active job."""
    lock = job.lock
    assert lock is not None
    client = state.clients.get(lock.conn)
    if client is not None:
        client.held.discard(job)
    if client is None or lock.conn == 0:
        state.orphans.discard(job)
    job.worker = lock.owner
    job.lock = None
    del queue.active[job.seq]
    if state.runs:
        state.runs.pop(job.id, None)
    if job.run is not None:
        job.run.waited = None
    if queue.limits is not None:
        queue_limits.freed(state, queue, queue.limits, job)


# -- by command: to another time, another place in the order, the dead letters, and back


def discard(state: State, queue: QueueState, job: Job) -> None:
    """WAITING, DELAYED or ACTIVE to FAILED by command.  The job is kept even if it has remove_on_fail."""
    if is_cancelled(job):
        return cancel(state, job)
    withdraw(state, queue, job, FAILED)
    emit(state, events.DISCARDED, job)
    dead_letter(state, queue, job, DISCARDED, keep=True)


def revive(
    state: State,
    queue: QueueState,
    job: Job,
    *,
    by_itself: bool = False,
    keeps_steps: bool = False,
    pending: Sequence[str] = (),
) -> None:
    """FAILED or COMPLETED to WAITING with all its attempts, by RetryDlq, RetryCompleted or an automatic
    retry; ``job`` is from the archive.  If a child's failure made it a dead letter, it no longer waits for
    its children: the caller wants it to run.  For a workflow, steps that another run must not take for done
    are removed, unless it ``keeps_steps``.  With ``pending`` jobs it becomes BLOCKED and waits for these."""
    note(job, Moment("waiting", state.now))
    if job.extra is not None:
        job.extra.pending, job.extra.parked = [], False
        job.extra.last_report = None
    if job.state == FAILED:
        queue.failed -= 1
    else:
        queue.completed -= 1
        _keep_success(state, job)
        job.result = None
        job.progress, job.progress_message = 0, None
        if job.extra is not None:
            job.extra.repeat = None  # its successor exists already
    dlq_retries.forget(state, job, by_itself=by_itself)
    last_runs.reopened(state, job)
    if not keeps_steps:
        undo.revived(state, job)
    undo.reopen_waits(state, job)
    job.attempts = job.stalls = 0
    if job.extra is not None:
        job.extra.drops = job.extra.interruptions = 0
    job.run_at = state.now
    job.started_at = job.finished_at = None
    job.reason = job.error = None
    job.timed_out = False
    unique_keys.retake_key(state, queue, job)
    if job.extra is not None and (pending or job.extra.gathering):
        job.extra.pending = list(pending)
        add_blocked(state, queue, job, events.REVIVED)
    else:
        add(state, queue, [job], events.REVIVED)
    queue.late[job.seq] = queue.jobs.pop(job.seq)


def _keep_success(state: State, job: Job) -> None:
    """List the attempt that completed a job with the others, because its row as a completed job is
    about to be deleted."""
    number, ended = job.attempts + 1, job.finished_at or state.now
    attempt = Attempt(job.seq, number, job.worker, job.started_at, ended, COMPLETED_OUTCOME, None, None)
    state.out.attempts.append(attempt)


def can_retake_key(state: State, queue: QueueState, job: Job) -> bool:
    """Whether no other job holds the unique key of a finished one."""
    return job.unique_key is None or holder_id(state, queue, job.unique_key) in (None, job.id)


def interrupt(state: State, job: Job, error: str | None) -> None:
    """ACTIVE to WAITING: its worker has to stop.  The same as `release`, but listed among the attempts.  A
    job to which this happens again and again must end as well: it counts as stalled."""
    extra = job.extra = job.extra or Extra()
    extra.interruptions += 1
    if extra.interruptions > FREE_INTERRUPTIONS:
        return stall(state, job, f"Given back {extra.interruptions} times before it was done: {error or ''}")
    lock = job.lock
    worker = lock.owner if lock is not None else None
    text = error[:MAX_ERROR] if error is not None else None
    started, number = job.started_at, job.attempts + 1
    state.out.attempts.append(Attempt(job.seq, number, worker, started, state.now, INTERRUPTED, text, None))
    release(state, job)


def take_back(state: State, job: Job) -> None:
    """ACTIVE to WAITING: no worker ever confirmed that it received the job.  No attempt is counted.  If a
    worker did receive it, its token still locks or completes the job while that is WAITING."""
    lock = job.lock
    release(state, job)
    if job.state == FAILED or job.state == REMOVED:  # cancelled
        return
    remember(job, lock)
    job.timeline = timeline(job)  # its next start has more to write than a lock
    state.out.touch(job, ROW)


def move(state: State, queue: QueueState, job: Job, run_at: int) -> None:
    """WAITING, DELAYED or ACTIVE to WAITING or DELAYED, with another run time."""
    was = job.state
    if was == WAITING:
        job = stand_in(state, queue, job)
        job.run_at = run_at
    elif was == DELAYED:
        job.run_at = run_at
        del queue.delayed[job.seq]
        state.delays.forget()
    else:
        job.timeline = timeline(job)  # its start would be lost
        let_go(state, queue, job)
        job.run_at, job.started_at = run_at, None
        progress.forget(state, job)
    if job.timeline is None:
        planned(job, state.now)
    else:
        note(job, Moment("delayed" if run_at > state.now else "waiting", state.now))
    enqueue(state, queue, job)
    if job.state == DELAYED:
        emit(state, events.DELAYED, job, delay=run_at - state.now)
    elif was != WAITING:
        emit(state, events.WAITING if was == ACTIVE else events.READY, job)
    state.out.touch(job, ROW)


def reorder(state: State, queue: QueueState, job: Job, priority: int, *, lifo: bool | None) -> None:
    """Change the place of a waiting or delayed job in the order."""
    waits = job.state == WAITING
    if waits:
        job = stand_in(state, queue, job)
    job.priority = priority
    if lifo is not None:
        job.shared = state.shared(replace(job.options, lifo=lifo))
    if waits:
        enqueue(state, queue, job)
    state.out.touch(job, ROW)


def stand_in(state: State, queue: QueueState, job: Job) -> Job:
    """Replace a WAITING job by a copy everywhere except among the ready ones: an entry there can be
    forgotten, but not moved."""
    other = copy(job)
    withdraw(state, queue, job, REMOVED)
    state.jobs[job.id] = other
    (queue.jobs if job.seq in queue.jobs else queue.late)[job.seq] = other
    if job.dirty:
        what, job.dirty, other.dirty = job.dirty, CLEAN, CLEAN
        state.out.touch(other, what)
    job.data = NIL
    return other


# -- jobs that wait for others: into BLOCKED and out of it


def add_blocked(state: State, queue: QueueState, job: Job, kind: int = PUSHED) -> None:
    """Make a job live that has to wait for others."""
    queue_limits.join(queue, job)
    state.jobs[job.id] = job
    queue.jobs[job.seq] = job
    if queue.tenant is not None:
        queue.tenant.jobs += 1
    if kind == PUSHED:
        count_pushed(state, queue, [job])
    emit(state, kind, job)
    _block(state, queue, job)


def recover_blocked(queue: QueueState, job: Job) -> None:
    """Restore a job that was stored while it waited for others."""
    job.state = BLOCKED
    queue.blocked[job.seq] = job


def block(state: State, queue: QueueState, job: Job) -> Job:
    """WAITING or DELAYED to BLOCKED: it now has dependencies.  Returns the job, which may be a copy."""
    if job.state == WAITING:
        job = stand_in(state, queue, job)
    else:
        withdraw(state, queue, job, BLOCKED)
    _block(state, queue, job)
    return job


def block_active(state: State, job: Job) -> None:
    """ACTIVE to BLOCKED: its worker found that the job has to wait for its children."""
    queue = state.queues[job.queue]
    let_go(state, queue, job)
    job.started_at = None
    progress.forget(state, job)
    _block(state, queue, job)


def _block(state: State, queue: QueueState, job: Job) -> None:
    recover_blocked(queue, job)
    state.out.touch(job, ROW)
    emit(state, WAITING_CHILDREN, job)


def unblock(state: State, job: Job) -> None:
    """BLOCKED to WAITING, or to DELAYED if its time has not come: its dependencies are done.  It stays
    BLOCKED if it starts only after another job has ended, or if its flow is open."""
    queue = state.queues[job.queue]
    if job.extra is not None:
        job.extra.parked = False
        if job.extra.after is not None or job.extra.gathering:
            return state.out.touch(job, ROW)
    del queue.blocked[job.seq]
    enqueue(state, queue, job)
    state.out.touch(job, ROW)
    emit(state, READY, job)


def _let_follow(state: State, job: Job, follower_id: str) -> None:
    """A superseded job has ended: start the job that waited for this."""
    follower = state.jobs.get(follower_id)
    if follower is None or follower.extra is None or follower.extra.after != job.id:
        return
    follower.extra.after = None
    if follower.state == BLOCKED and not (follower.extra.pending or follower.extra.parked):
        unblock(state, follower)
    else:
        state.out.touch(follower, ROW)


def recover_followers(state: State, followers: list[Job]) -> None:
    """Restore jobs that were stored while they waited for the end of another job, which may have been
    lost."""
    for job in followers:
        assert job.extra is not None
        if job.extra.after not in state.jobs:
            job.extra.after = None
            if not (job.extra.pending or job.extra.parked):
                unblock(state, job)


def fail_blocked(state: State, job: Job, error: str) -> None:
    """BLOCKED to FAILED: a child failed that it cannot run without."""
    queue = state.queues[job.queue]
    withdraw(state, queue, job, FAILED)
    job.error = error
    note(job, Moment("failed", state.now, error))
    emit(state, events.FAILED, job, error=error, terminal=True)
    dead_letter(state, queue, job, EXPLICIT_FAIL)


# -- workflows: into SUSPENDED and out of it, and undone before they end


def begin_undo(state: State, queue: QueueState, job: Job, reason: str) -> None:
    """To WAITING, for a job that has left its place and would end: it runs once more, to be undone first."""
    undo.mark(state, job, reason)
    job.run_at, job.started_at, job.timed_out, job.reason = state.now, None, False, None
    state.run_ends.append(job)
    note(job, Moment("waiting", state.now))
    enqueue(state, queue, job)
    emit(state, events.UNDOING, job, reason=reason_of(reason))


def end_undo(state: State, queue: QueueState, job: Job, left: str | None) -> None:
    """To FAILED, for a job that has left its place: everything has been undone, or the step ``left`` could
    not be, and the job is stuck."""
    reason = undo.end(state, job, left)
    why = {"reason": reason} if reason in (CANCELLED, STUCK, UNDONE) else {}
    emit(state, events.FAILED, job, error=job.error or "", terminal=True, **why)
    dead_letter(state, queue, job, reason)


def suspend(
    state: State, job: Job, waits: Waits | None, until: int | None, waited: list[int] | None = None
) -> None:
    """ACTIVE to SUSPENDED, until it is woken or ``until`` has come.  Without ``waits`` to DELAYED, or to
    WAITING if ``until`` has come."""
    queue, run = state.queues[job.queue], job.run
    assert run is not None
    let_go(state, queue, job)
    job.started_at = None
    job.run_at = state.now if until is None else until
    run.suspended += 1
    run.waits, run.waited = waits, waited
    if waits is None:
        note(job, Moment("delayed" if job.run_at > state.now else "waiting", state.now))
        enqueue(state, queue, job)
    else:
        note(job, Moment("waiting-signal" if waits.signal else "waiting-children", state.now))
        recover_suspended(state, queue, job)
    emit(state, events.SUSPENDED, job)
    state.out.touch(job, ROW)


def recover_suspended(state: State, queue: QueueState, job: Job) -> None:
    """Make a job SUSPENDED, also one that was stored as such.  Without a time to wait for, it is not in the
    heap of delays."""
    assert job.run is not None
    assert job.run.waits is not None
    job.state = SUSPENDED
    queue.suspended[job.seq] = job
    queue.waiting_signal += job.run.waits.signal
    if job.run.waits.until is not None:
        job.run_at = job.run.waits.until
        state.delays.push(job.run_at, job.seq, job)


def leave_suspended(state: State, queue: QueueState, job: Job) -> None:
    """End the wait of a suspended job; the caller decides its next state."""
    assert job.run is not None
    assert job.run.waits is not None
    del queue.suspended[job.seq]
    queue.waiting_signal -= job.run.waits.signal
    if job.run.waits.until is not None:
        state.delays.forget()
    job.run.waits = None
    state.remaining.pop(job.id, None)


def wake(state: State, job: Job) -> None:
    """SUSPENDED to WAITING: something it waited for has happened."""
    queue = state.queues[job.queue]
    leave_suspended(state, queue, job)
    job.run_at = state.now
    note(job, Moment("waiting", state.now))
    enqueue(state, queue, job)
    emit(state, READY, job)
    state.out.touch(job, ROW)


# -- shared helpers


def _end_attempt(state: State, queue: QueueState, job: Job, error: str | None, outcome: str) -> Attempt:
    """Record a failed attempt."""
    now = state.now
    worker = job.lock.owner if job.lock is not None else None
    text = error[:MAX_ERROR] if error is not None else None
    attempt = Attempt(job.seq, job.attempts, worker, job.started_at, now, outcome, text, None)
    state.out.attempts.append(attempt)
    state.errors.pending.append((queue, job, attempt))
    figures = _figures(state, queue, job.name)
    figures.failed += 1
    if (started := job.started_at) is not None:
        figures.attempt(started - job.run_at, now - started)
    note(job, Moment("failed", now, text, attempt_number(job, job.attempts)))
    let_go(state, queue, job)
    job.error = text
    progress.forget(state, job)
    return attempt


def _again(state: State, queue: QueueState, job: Job, run_at: int) -> None:
    job.run_at = run_at
    job.started_at = None
    note(job, Moment("waiting", state.now, None, attempt_number(job, job.attempts + 1)))
    enqueue(state, queue, job)
    state.out.touch(job, ROW)


def retire(state: State, queue: QueueState, job: Job) -> None:
    """Remove a job from memory when it is no longer live: only the archive knows it afterwards."""
    if job.holds_key:
        unique_keys.end_key(state, queue, job)
    if job.extra is not None:
        queue_limits.left(state, queue, job)
        if job.extra.superseded_by is not None:
            _let_follow(state, job, job.extra.superseded_by)
        if job.state == REMOVED and job.extra.own_id and not _is_remembered(state, job.id):
            state.freed_ids.append(job.id)
    if job.run is not None:
        state.run_ends.append(job)
    del state.jobs[job.id]
    if state.waits:
        job_waiters.ended(state, job)
    if queue.jobs.pop(job.seq, None) is None:
        del queue.late[job.seq]
    if queue.tenant is not None:
        queue.tenant.jobs -= 1
    if not job.dirty:  # out.touch, inlined: once per job on the hottest path
        state.out.dirty.append(job)
    job.dirty |= STATE


def _is_remembered(state: State, job_id: str) -> bool:
    """Whether other shards may ask this one about a removed job."""
    return job_id in state.tombstones or job_id in state.child_results or job_id in state.moving
