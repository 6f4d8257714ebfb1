"""Who holds which job until when: heartbeats, the sweep of the silent, connections that end."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import attrgetter

from msgspec import UNSET

from bunqueue.model.job import ACTIVE, Job, Lock
from bunqueue.model.stall import DEFAULT_STALLS, StallConfig
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

from . import chores, lifecycle, moves, waiting
from .cancelling import notice_of
from .configs import of_queue, store
from .dependencies import extra_of
from .finishing import check_lengths
from .outbox import ROW
from .queries import known_queue
from .registry import handles
from .state import Client, State

SWEEP_MS = 5_000  # the seeds' interval of lock expiry and stall checks
SWEEP = "sweep"  # the chore of taking back
BY_SEQ = attrgetter("seq")
ORPHAN_MS = 30 * 60_000  # silence after which a job that nobody holds is suspect, even where stalls are not
FREE_DROPS = 2  # connections that may end with a job before that counts as a stall
GRACE_MS = 5_000  # after start, before the first sweep


@handles(JobHeartbeat)
def heartbeat(state: State, client: Client, command: JobHeartbeat) -> HeartbeatReply:
    if not _beat(state, command.id, command.token, command.duration):
        raise CommandError("Job not found or not active (or invalid token)")
    notice = notice_of(state.jobs[command.id], command.token or "", state.now)
    return HeartbeatReply(data=Alive(cancelled=[notice] if notice else UNSET))


@handles(JobHeartbeatBatch)
def heartbeat_batch(state: State, client: Client, command: JobHeartbeatBatch) -> HeartbeatBatchReply:
    ids, tokens = command.ids, command.tokens
    check_lengths("JobHeartbeatB", ids, tokens=tokens)
    count, notices = 0, []
    for index, job_id in enumerate(ids):
        token = tokens[index] if tokens else None
        if _beat(state, job_id, token, None):
            count += 1
            if (notice := notice_of(state.jobs[job_id], token or "", state.now)) is not None:
                notices.append(notice)
    return HeartbeatBatchReply(data=AliveCount(count, cancelled=notices or UNSET))


@handles(ExtendLock)
def extend_lock(state: State, client: Client, command: ExtendLock) -> Ok:
    if not _extend(state, command.id, command.token, command.duration):
        raise CommandError("Lock not found or invalid token")
    return Ok()


@handles(ExtendLocks)
def extend_locks(state: State, client: Client, command: ExtendLocks) -> ExtendedReply:
    ids, tokens, durations = command.ids, command.tokens, command.durations
    check_lengths("ExtendLocks", ids, tokens=tokens, durations=durations)
    renewals = zip(ids, tokens, durations, strict=True)
    return ExtendedReply(count=sum(_extend(state, *renewal) for renewal in renewals))


def _extend(state: State, job_id: str, token: str | None, duration: int) -> bool:
    """Renew a lock; what has no lock, or another one, is left alone."""
    job = state.jobs.get(job_id)
    locked = job is not None and job.lock is not None and bool(job.lock.token)
    return bool(token) and locked and _beat(state, job_id, token, duration)


def _beat(state: State, job_id: str, token: str | None, duration: int | None) -> bool:
    """A sign of life.  Without the token it feeds the stall check alone, and the lock runs out."""
    job = state.jobs.get(job_id)
    lock = job.lock if job is not None else None
    if lock is None:
        return False
    if token and lock.token:
        if token != lock.token:
            return False
        until = state.now + (duration or lock.ttl)
        shorter, lock.until = until < lock.until, until
        if job is not None and (duration or shorter or not lock.renewed):
            # After a restart a lock has its full ttl again, so other renewals need not be written.
            lock.renewed = True
            state.out.touch(job)
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
    """Take back jobs whose lock has run out, and, the second time, jobs that were silent."""
    if SWEEP in state.chores:  # the last one still goes on
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
        chores.begin(state, SWEEP, _take_back(state, [(job, job.lock) for job in lost], state.now))


def _sweep(state: State, held: set[Job], configs: dict[str, StallConfig]) -> list[Job]:
    """Those of ``held`` that are to be taken back."""
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
                _suspect(job, lock, lost)
        # Where nothing was asked for, a lock that still runs protects its job, however long it is.
        elif lock.heartbeat_at <= silent and not lock.token:
            _suspect(job, lock, lost)
    return sorted(lost, key=BY_SEQ)


def _take_back(state: State, lost: list[tuple[Job, Lock | None]], swept_at: int) -> Iterator[None]:
    """Take jobs back, unless something was heard of them meanwhile."""
    for job, lock in lost:
        while state.spare <= 0:
            yield
        if lock is None or job.lock is not lock or lock.heartbeat_at > swept_at:
            continue
        state.spare -= chores.LOSS
        if lock.conn == 0 and not lock.renewed:
            # Its connection broke before anything was heard of the job: the delivery may have been lost.
            moves.take_back(state, job)
        else:
            expired = lock.token and lock.until <= swept_at
            lifecycle.lose(state, job, "Lock expired" if expired else "Job stalled")


def _is_silent(job: Job, lock: Lock, config: StallConfig, now: int) -> bool:
    """Whether nothing has been heard of a job for longer than it or its queue allows."""
    own = job.extra.stall_timeout if job.extra is not None else None
    silence = now - lock.heartbeat_at
    if not config.enabled and not own:
        return not lock.token and lock.conn == 0 and silence >= ORPHAN_MS
    return silence >= (own or config.stall_interval) and now - (job.started_at or 0) >= config.grace_period


def _suspect(job: Job, lock: Lock, lost: list[Job]) -> None:
    if lock.suspect:
        lost.append(job)
    lock.suspect = True


def disconnect(state: State, conn: int, *, severed: bool) -> None:
    """A connection ended.  Its jobs return at once, except locked ones that may still be worked on:
    those renewed before (the worker lives on another connection), and all of them when it was the
    server that cut the line (the worker will be back with its token).
    """
    client = state.clients.get(conn)
    if client is None:
        return
    client.closed = True
    waiting.leave(state, client)
    del state.clients[conn]
    if client.held:
        chores.begin(state, conn, _give_back(state, client, severed))


def _give_back(state: State, client: Client, severed: bool) -> Iterator[None]:
    for job in sorted(client.held, key=BY_SEQ):
        while state.spare <= 0:
            yield
        lock = job.lock
        if lock is None or lock.conn != client.conn:  # ended by others meanwhile
            continue
        state.spare -= 1
        if lock.token and (severed or lock.renewed):
            lock.conn = 0
            state.orphans.add(job)
        else:
            _drop(state, job)


def _drop(state: State, job: Job) -> None:
    """Its holder has gone before anything was heard of the job: nothing counts, but for a job that this
    happens to again and again.  It may be what ends its workers, and has to come to an end, too."""
    extra = extra_of(job)
    extra.drops += 1
    state.out.touch(job, ROW)
    if extra.drops > FREE_DROPS:
        lifecycle.lose(state, job, f"Whoever held the job has gone at once, {extra.drops} times by now")
    else:
        lifecycle.release(state, job)


def desert(state: State) -> None:
    """All who held jobs are gone for good, so nobody has to be waited for.  Jobs that had been in hand for
    long enough to be renewed have used an attempt: they may be what ended their worker."""
    for job in sorted(state.orphans, key=BY_SEQ):
        if job.lock is not None and job.lock.renewed:
            lifecycle.lose(state, job, "The process that ran it has ended")
        else:
            _drop(state, job)


def renew_all(state: State) -> None:
    """The shard was away (stopped, suspended, its clock set forward): nobody could renew a lock in
    that time, so all of them run anew."""
    for held in (*(client.held for client in state.clients.values()), state.orphans):
        renew(state, held)


def renew(state: State, jobs: Collection[Job]) -> None:
    """The locks of these jobs run anew."""
    for job in jobs:
        if job.lock is not None:
            job.lock.until = max(job.lock.until, state.now + job.lock.ttl)
            job.lock.heartbeat_at = state.now
            job.lock.suspect = False


def detach(state: State, client: Client, job: Job) -> None:
    """An active job shall outlive the connection that pulled it."""
    lock = job.lock
    assert lock is not None
    client.held.discard(job)
    lock.conn, lock.renewed = 0, True
    state.orphans.add(job)
    state.out.touch(job, ROW)  # a usual lock is stored without what is unusual here


def adopt(state: State, live: Collection[int]) -> None:
    """After a restart: give recovered active jobs back to connections that are still there.

    Locked jobs of others stay active for one lock time, so that their worker can come back;
    unlocked ones return to their queues, as after any disconnect.
    """
    for job in sorted(state.orphans, key=lambda job: job.seq):
        lock = job.lock
        assert lock is not None
        assert job.state == ACTIVE
        if lock.conn in live:
            state.orphans.discard(job)
            state.client(lock.conn, 2).held.add(job)
            continue
        lock.conn = 0
        if not lock.token and not lock.renewed:  # a detached one stays
            lifecycle.release(state, job)
