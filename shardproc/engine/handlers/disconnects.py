"""Connections that end while they hold jobs: which jobs are returned at once, and which wait for their
worker.

When a connection is closed cleanly, its worker is gone.  When it breaks, the worker may still be alive: it
reconnects, and a heartbeat with its token shows that it still works on the job.  If the heartbeat comes too
late, but no other worker has taken the job yet, the worker gets the job back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bunqueue.model.job import ACTIVE, DEFAULT_LOCK_TTL_MS, WAITING, Job, Lock

from ..background import background_work
from ..lifecycle import job_waiters, transitions
from ..outbox import ROW
from ..peers.dependencies import extra_of
from ..state import Client, State

FREE_DROPS = 2  # connections that may end while they hold a job before that counts as a stall
# A worker renews its locks at least every third of their time, and at least every 10 s, over any of its
# connections.  One that has not done so within half of the lock time, or within this time, is not coming
# back.
RECONNECT_MS = 15_000


def disconnect(state: State, conn: int, *, severed: bool, broken: bool) -> None:
    """Handle the end of a connection.

    Its jobs return at once, except locked ones that a worker may still work on.  Those are jobs renewed
    before (the worker uses another connection), and all of them if the server closed the connection
    (``severed``: the worker will be back with its token).  If the connection broke, they wait for as long as
    a reconnect takes.
    """
    client = state.clients.get(conn)
    if client is None:
        return
    client.closed = True
    job_waiters.leave(state, client)
    del state.clients[conn]
    if client.held:
        background_work.begin(
            state, conn, _give_back(state, conn, client.held, severed=severed, broken=broken)
        )


def give_back(state: State, client: Client) -> None:
    """Return the jobs of a client that can send nothing more, as if it had closed the connection."""
    held, client.held = client.held, set()
    if held:
        background_work.begin(
            state, object(), _give_back(state, client.conn, held, severed=False, broken=False)
        )


def hang_up(state: State, conn: int) -> None:
    """Drop what a connection waits for: its router is unreachable, so replies would be lost.  The client may
    still be there and keeps its jobs."""
    before = state.clients[conn]
    before.closed = True
    job_waiters.leave(state, before)
    client = state.clients[conn] = Client(conn, before.version)
    client.held, before.held = before.held, set()
    client.signals, client.own_timeouts = before.signals, before.own_timeouts


def _give_back(
    state: State, conn: int, held: Collection[Job], *, severed: bool, broken: bool
) -> Iterator[None]:
    for job in sorted(held, key=lambda job: job.seq):
        while state.budget <= 0:
            yield
        lock = job.lock
        if lock is None or lock.conn != conn:  # ended by others meanwhile
            continue
        state.budget -= 1
        if lock.token and (severed or broken or lock.renewed):
            lock.conn = 0
            state.orphans.add(job)
            if not severed and not lock.renewed:
                _wait_for_worker(state, job, lock)
        else:
            _drop(state, job)


def _wait_for_worker(state: State, job: Job, lock: Lock) -> None:
    """Give the worker of a job time to reconnect."""
    state.reachability.reconnects.add(_patience_ends(state, lock), (job, lock))


def _patience_ends(state: State, lock: Lock) -> int:
    return state.now + max(1, min(lock.ttl // 2, RECONNECT_MS))


def end_reconnects(state: State) -> None:
    """Take back jobs whose worker has not come back in time."""
    reconnects, now = state.reachability.reconnects, state.now
    while state.budget > 0 and (entry := reconnects.pop_due(now)) is not None:
        if reconnects.is_current(entry):
            state.budget -= 1
            _drop(state, entry[2][0])


def wait_anew(state: State) -> None:
    """Give all workers time to reconnect: while the shard was stalled, none of them could."""
    reconnects = state.reachability.reconnects
    reconnects.replace(
        (_patience_ends(state, entry[2][1]), entry[1], entry[2])
        for entry in reconnects.entries
        if reconnects.is_current(entry)
    )


def worker_ended(state: State, owner: str) -> None:
    """The process of this worker has ended: do not wait for it."""
    reconnects = state.reachability.reconnects
    for entry in list(reconnects.entries):
        job, lock = entry[2]
        if lock.owner == owner and reconnects.is_current(entry):
            _drop(state, job)


def _drop(state: State, job: Job) -> None:
    """Return a job whose holder disappeared before it reported anything.  This costs no attempt, except for a
    job that loses its worker again and again: that job may be what ends its workers, and has to end."""
    extra, lock = extra_of(job), job.lock
    extra.drops += 1
    state.out.touch(job, ROW)
    if extra.drops > FREE_DROPS:
        transitions.stall(state, job, f"Whoever held the job has gone at once, {extra.drops} times by now")
    elif lock is not None and lock.token:
        transitions.take_back(state, job)
    else:
        transitions.release(state, job)


def retake(state: State, job: Job, token: str | None, duration: int | None) -> bool:
    """WAITING to ACTIVE: a worker that lost the lock of a job still works on it.  False if another worker has
    taken the job, or if the token does not match."""
    if not token or job.state != WAITING or job.lost_token != token:
        return False
    queue, extra = state.queues[job.queue], extra_of(job)
    job = transitions.stand_in(state, queue, job)
    queue.waiting += 1  # it has left its place among the ready jobs, but `activate` counts it again
    client = Client(0, 2)
    transitions.activate(state, queue, job, client, job.worker, extra.lost_ttl or DEFAULT_LOCK_TTL_MS)
    detach(state, client, job)
    lock = job.lock
    assert lock is not None
    lock.token = token
    if duration:
        lock.until = state.now + duration
    still_alive(state, job)
    return True


def still_alive(state: State, job: Job) -> None:
    """The worker of a job reports that it still works on it: the job did not end its earlier holders."""
    extra_of(job).drops = 0
    state.out.touch(job, ROW)


def detach(state: State, client: Client, job: Job) -> None:
    """Let an active job outlive the connection that pulled it."""
    lock = job.lock
    assert lock is not None
    client.held.discard(job)
    lock.conn, lock.renewed = 0, True
    state.orphans.add(job)
    state.out.touch(job, ROW)  # a normal lock is stored without these fields


def all_clients_gone(state: State) -> None:
    """All clients that held jobs are gone for good, so wait for none of them.  Jobs that were held long
    enough to be renewed have used an attempt: they may be what ended their worker."""
    for job in sorted(state.orphans, key=lambda job: job.seq):
        if job.lock is not None and job.lock.renewed:
            transitions.stall(state, job, "The process that ran it has ended")
        else:
            _drop(state, job)


def reattach(state: State, live: Collection[int]) -> None:
    """After a restart: give recovered active jobs back to connections that are still there.

    Locked jobs of other connections stay active for one lock time, so their workers can come back; unlocked
    ones return to their queues, as after any disconnect.
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
        if not lock.token and not lock.renewed:  # a detached job stays
            transitions.release(state, job)
