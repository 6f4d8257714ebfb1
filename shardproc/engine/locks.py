"""Who holds which job until when: heartbeats, the sweep of the silent, connections that end."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import attrgetter

from bunqueue.model.job import ACTIVE, Job, Lock
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.core import (
    Alive,
    AliveCount,
    HeartbeatBatchReply,
    HeartbeatReply,
    JobHeartbeat,
    JobHeartbeatBatch,
)

from . import chores, lifecycle
from .finishing import check_lengths
from .registry import handles
from .state import Client, State

SWEEP_MS = 5_000  # the seeds' interval of lock expiry and stall checks
STALL_MS = 30_000  # silence after which a job is suspect; taken back by the next sweep
SWEEP = "sweep"  # the chore of taking back
BY_SEQ = attrgetter("seq")
GRACE_MS = 5_000  # after start, before the first sweep


@handles(JobHeartbeat)
def heartbeat(state: State, client: Client, command: JobHeartbeat) -> HeartbeatReply:
    if not _beat(state, command.id, command.token, command.duration):
        raise CommandError("Job not found or not active (or invalid token)")
    return HeartbeatReply(data=Alive())


@handles(JobHeartbeatBatch)
def heartbeat_batch(state: State, client: Client, command: JobHeartbeatBatch) -> HeartbeatBatchReply:
    ids, tokens = command.ids, command.tokens
    check_lengths("JobHeartbeatB", ids, None, tokens)
    count = 0
    for index, job_id in enumerate(ids):
        count += _beat(state, job_id, tokens[index] if tokens else None, None)
    return HeartbeatBatchReply(data=AliveCount(count))


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


def sweep(state: State) -> None:
    """Take back jobs whose lock has run out, and, the second time, jobs that were silent."""
    if SWEEP in state.chores:  # the last one still goes on
        return
    lost: list[Job] = []
    for client in state.clients.values():
        if client.held:
            lost += _sweep(state, client.held)
    lost += _sweep(state, state.orphans)
    if lost:
        chores.begin(state, SWEEP, _take_back(state, [(job, job.lock) for job in lost], state.now))


def _sweep(state: State, held: set[Job]) -> list[Job]:
    """Those of ``held`` that are to be taken back."""
    now = state.now
    lost = {job for job in held if (lock := job.lock) is not None and lock.token and lock.until <= now}
    silent = now - STALL_MS
    for job in held:
        lock = job.lock
        # A lock that still runs protects its job, however long it was asked for.
        if lock is None or lock.heartbeat_at > silent or (lock.token and lock.until > now):
            continue
        if lock.suspect:
            lost.add(job)
        lock.suspect = True
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
            lifecycle.take_back(state, job)
        else:
            lifecycle.lose(state, job, "Lock expired" if lock.token else "Job stalled")


def disconnect(state: State, conn: int, *, severed: bool) -> None:
    """A connection ended.  Its jobs return at once, except locked ones that may still be worked on:
    those renewed before (the worker lives on another connection), and all of them when it was the
    server that cut the line (the worker will be back with its token).
    """
    client = state.clients.get(conn)
    if client is None:
        return
    client.closed = True
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
            lifecycle.release(state, job)


def renew_all(state: State) -> None:
    """The shard was away (stopped, suspended, its clock set forward): nobody could renew a lock in
    that time, so all of them run anew."""
    for held in (*(client.held for client in state.clients.values()), state.orphans):
        for job in held:
            if job.lock is not None:
                job.lock.until = max(job.lock.until, state.now + job.lock.ttl)
                job.lock.heartbeat_at = state.now
                job.lock.suspect = False


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
        if not lock.token:
            lifecycle.release(state, job)
