"""Locks: heartbeats renew them, and the sweep takes jobs back from workers without a heartbeat."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import attrgetter

from msgspec import UNSET

from bunqueue.model.job import Job, Lock
from bunqueue.model.stall import DEFAULT_STALLS, StallConfig
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.core import (
    Alive,
    AliveCount,
    ExtendedReply,
    ExtendLock,
    ExtendLocks,
    HeartbeatBatchReply,
    HeartbeatReply,
    JobHeartbeat,
    JobHeartbeatBatch,
)
from bunqueue.protocol.commands.stall import GetStallConfig, SetStallConfig, StallConfigReply
from bunqueue.protocol.configuration import changed

from ..background import background_work
from ..lifecycle import transitions
from ..lifecycle.cancellation import notice_of
from ..lookup import known_queue
from ..memory.queue_configs import of_queue, store
from ..registry import handles
from ..state import Client, State
from . import disconnects
from .ack import check_lengths

SWEEP_MS = 5_000  # the specification's interval for lock expiry and stall checks
SWEEP = "sweep"  # the background work that takes jobs back
BY_SEQ = attrgetter("seq")
ORPHAN_MS = 30 * 60_000  # silence that makes a job without a connection suspect, with stall checks off too
GRACE_MS = 5_000  # after start, before the first sweep


@handles(JobHeartbeat)
def heartbeat(state: State, client: Client, command: JobHeartbeat) -> HeartbeatReply:
    if not _heartbeat(state, command.id, command.token, command.duration):
        text = "Job not found or not active (or invalid token)"
        raise CommandError(text, Code.LOCK_LOST, field="id", value=command.id)
    notice = notice_of(state.jobs[command.id], command.token or "", state.now)
    return HeartbeatReply(data=Alive(cancelled=[notice] if notice else UNSET))


@handles(JobHeartbeatBatch)
def heartbeat_batch(state: State, client: Client, command: JobHeartbeatBatch) -> HeartbeatBatchReply:
    ids, tokens = command.ids, command.tokens
    check_lengths("JobHeartbeatB", ids, tokens=tokens)
    count, notices = 0, []
    for index, job_id in enumerate(ids):
        token = tokens[index] if tokens else None
        if _heartbeat(state, job_id, token, None):
            count += 1
            if command.own_timeouts and (lock := state.jobs[job_id].lock) is not None:
                lock.own_timeout = True  # not stored: the worker reports it again after a restart
            if (notice := notice_of(state.jobs[job_id], token or "", state.now)) is not None:
                notices.append(notice)
    return HeartbeatBatchReply(data=AliveCount(count, cancelled=notices or UNSET))


@handles(ExtendLock)
def extend_lock(state: State, client: Client, command: ExtendLock) -> Ok:
    if not _extend(state, command.id, command.token, command.duration):
        raise CommandError("Lock not found or invalid token", Code.LOCK_LOST, field="id", value=command.id)
    return Ok()


@handles(ExtendLocks)
def extend_locks(state: State, client: Client, command: ExtendLocks) -> ExtendedReply:
    ids, tokens, durations = command.ids, command.tokens, command.durations
    check_lengths("ExtendLocks", ids, tokens=tokens, durations=durations)
    renewals = zip(ids, tokens, durations, strict=True)
    return ExtendedReply(count=sum(_extend(state, *renewal) for renewal in renewals))


def _extend(state: State, job_id: str, token: str | None, duration: int) -> bool:
    """Renew a lock; a job with another lock, or one pulled without a lock, is left alone."""
    job = state.jobs.get(job_id)
    if job is None or not token or (job.lock is not None and not job.lock.token):
        return False
    return _heartbeat(state, job_id, token, duration)


def _heartbeat(state: State, job_id: str, token: str | None, duration: int | None) -> bool:
    """Handle a heartbeat.  Without the token it only resets the stall check, and the lock runs out.  With the
    token of a lost lock, the job is locked again, unless another worker has taken it."""
    job = state.jobs.get(job_id)
    lock = job.lock if job is not None else None
    if lock is None:
        return job is not None and disconnects.retake(state, job, token, duration)
    if token and lock.token:
        if token != lock.token:
            return False
        until = state.now + (duration or lock.ttl)
        shorter, lock.until = until < lock.until, until
        if job is not None and (duration or shorter or not lock.renewed):
            # After a restart a lock has its full ttl again, so other renewals need not be written.
            lock.renewed = True
            state.out.touch(job)
            if job.extra is not None and job.extra.drops:
                disconnects.still_alive(state, job)
    lock.heartbeat_at = state.now
    lock.suspect = False
    return True


@handles(SetStallConfig)
def set_stall_config(state: State, client: Client, command: SetStallConfig) -> Ok:
    known_queue(state, command.queue)
    store(state, command.queue, changed(of_queue(state, command.queue, StallConfig), command.config))
    return Ok()


@handles(GetStallConfig)
def get_stall_config(state: State, client: Client, command: GetStallConfig) -> StallConfigReply:
    known_queue(state, command.queue)
    return StallConfigReply(config=of_queue(state, command.queue, StallConfig))


def sweep(state: State) -> None:
    """Take back jobs whose lock has expired, and jobs found silent twice in a row."""
    if SWEEP in state.background_work:  # the last sweep is still running
        return
    configs = {
        queue: config for (_, queue), config in state.configs.items() if isinstance(config, StallConfig)
    }
    lost: list[Job] = []
    for client in state.clients.values():
        if client.held:
            lost += _sweep(state, client.held, configs)
    lost += _sweep(state, state.orphans, configs)
    if lost:
        background_work.begin(state, SWEEP, _take_back(state, [(job, job.lock) for job in lost], state.now))


def _sweep(state: State, held: set[Job], configs: dict[str, StallConfig]) -> list[Job]:
    """The jobs of ``held`` to take back."""
    now = state.now
    silent = now - DEFAULT_STALLS.stall_interval
    lost: list[Job] = []
    for job in held:
        lock = job.lock
        if lock is None:
            continue
        if lock.token and lock.until <= now:
            lost.append(job)
        elif job.queue in configs or (job.extra is not None and job.extra.stall_timeout):
            if _is_silent(job, lock, configs.get(job.queue, DEFAULT_STALLS), now):
                _mark_suspect(job, lock, lost)
        # Without a stall setting, an unexpired lock protects its job, however long it is.
        elif lock.heartbeat_at <= silent and not lock.token:
            _mark_suspect(job, lock, lost)
    return sorted(lost, key=BY_SEQ)


def _take_back(state: State, lost: list[tuple[Job, Lock | None]], swept_at: int) -> Iterator[None]:
    """Take jobs back, unless a heartbeat has arrived in the meantime."""
    for job, lock in lost:
        while state.budget <= 0:
            yield
        if lock is None or job.lock is not lock or lock.heartbeat_at > swept_at:
            continue
        state.budget -= background_work.LOSS
        if lock.conn == 0 and not lock.renewed:
            # Its connection broke before the first heartbeat: the delivery may have been lost.
            transitions.take_back(state, job)
        else:
            expired = lock.token and lock.until <= swept_at
            transitions.stall(state, job, "Lock expired" if expired else "Job stalled")


def _is_silent(job: Job, lock: Lock, config: StallConfig, now: int) -> bool:
    """Whether a job has had no heartbeat for longer than it or its queue allows."""
    own = job.extra.stall_timeout if job.extra is not None else None
    silence = now - lock.heartbeat_at
    if not config.enabled and not own:
        return not lock.token and lock.conn == 0 and silence >= ORPHAN_MS
    return silence >= (own or config.stall_interval) and now - (job.started_at or 0) >= config.grace_period


def _mark_suspect(job: Job, lock: Lock, lost: list[Job]) -> None:
    if lock.suspect:
        lost.append(job)
    lock.suspect = True


def renew_all(state: State) -> None:
    """Restart all locks: the shard was unreachable (it or the router was stopped or suspended), so no worker
    could renew a lock."""
    for held in (*(client.held for client in state.clients.values()), state.orphans):
        renew(state, held)
    state.next_sweep = max(state.next_sweep, state.reachability.resumes_at)
    disconnects.wait_anew(state)


def renew(state: State, jobs: Collection[Job]) -> None:
    """Restart the locks of these jobs."""
    for job in jobs:
        if job.lock is not None:
            job.lock.until = max(job.lock.until, state.now + job.lock.ttl)
            job.lock.heartbeat_at = state.now
            job.lock.suspect = False
