"""PULL and PULLB, answered at once or by long poll: a worker gets a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import UNSET, Raw

from bunqueue.model.job import Job
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.core import GroupRule, Pull, PullBatch, PullBatchReply, PullReply
from bunqueue.protocol.job_view import DEFAULT_OPTIONS, job_list, pulled_job, size_beside_data

from ..background import background_work
from ..dispatch import answer_late
from ..lifecycle import transitions
from ..lookup import known_queue
from ..ready import queue_limits
from ..ready.group import Policy, policy_of
from ..registry import handles
from ..state import Client, QueueState, State, Waiter
from . import disconnects

MAX_REPLY = 32 * 1024 * 1024  # bytes of jobs in one reply, half the limit of a frame


@handles(Pull)
def pull(state: State, client: Client, command: Pull) -> PullReply | None:
    owner = command.owner or ""
    client.signals, client.own_timeouts = command.signals, command.own_timeouts
    queue = known_queue(state, command.queue)
    job = None
    if queue is not None:
        job = _take(state, queue, client, owner, command.lock_ttl, command.group)
    if job is None and command.timeout:
        _park(state, client, command, None)
        return None
    if command.detach:
        _detach(state, client, [job] if job else [])
    return _one(job, owner)


@handles(PullBatch)
def pull_batch(state: State, client: Client, command: PullBatch) -> PullBatchReply | None:
    owner = command.owner or ""
    client.signals, client.own_timeouts = command.signals, command.own_timeouts
    queue = known_queue(state, command.queue)
    jobs: list[Job] = []
    if queue is not None:
        jobs = _take_many(state, queue, client, command.count, owner, command.lock_ttl, command.group)
    if not jobs and command.timeout:
        _park(state, client, command, command.count)
        return None
    if command.detach:
        _detach(state, client, jobs)
    return _many(jobs, owner)


def serve(state: State, queue: QueueState) -> None:
    """Give ready jobs to parked pulls, longest waiting first."""
    waiters = queue.waiters
    while waiters and queue.waiting and not queue.paused:
        waiter = waiters[0]
        if waiter.done or waiter.client.closed:
            waiters.popleft()
            continue
        reply = _answer(state, queue, waiter)
        if reply is None:
            break
        waiters.popleft()
        _finish(state, waiter, reply)
    if (held := queue.limits) is not None and waiters:
        if (groups := held.groups) is not None and groups.mixed:
            _serve_others(state, queue)
        queue_limits.arm(state, queue, held)


def _serve_others(state: State, queue: QueueState) -> None:
    """Serve other parked pulls: jobs that are blocked for the first one may be free for a pull with another
    policy."""
    tried: set[Policy] = set()
    for waiter in list(queue.waiters):
        if not queue.waiting or queue.paused:
            return
        policy = policy_of(waiter.client.version, waiter.group)
        if policy in tried or waiter.done or waiter.client.closed:
            continue
        reply = _answer(state, queue, waiter)
        if reply is None:
            tried.add(policy)
        else:
            _finish(state, waiter, reply)  # it leaves the line at its turn


def end_poll(state: State, waiter: Waiter) -> None:
    """A parked pull has timed out: send an empty reply."""
    if not waiter.done and not waiter.client.closed:
        empty = _one(None, waiter.owner) if waiter.count is None else _many([], waiter.owner)
        _finish(state, waiter, empty)
    waiters = state.waiters(waiter.queue)
    while waiters and (waiters[0].done or waiters[0].client.closed):
        waiters.popleft()
    if not waiters:
        state.early_pulls.pop(waiter.queue, None)


def end_polls(state: State, client: Client) -> None:
    """End the polls of a client that can take no more jobs."""
    for waiter in list(client.polls or ()):
        end_poll(state, waiter)


def _take(
    state: State, queue: QueueState, client: Client, owner: str, ttl: int, group: GroupRule | None
) -> Job | None:
    """Take the next job."""
    job = _next(state, queue, client, group)
    if job is not None:
        transitions.activate(state, queue, job, client, owner, ttl)
        state.totals.pulled += 1
        state.out.size += len(job.data)
    return job


def _next(state: State, queue: QueueState, client: Client, group: GroupRule | None) -> Job | None:
    """Take the next job that has not outlived its ttl from the ready ones; it is not active yet."""
    if queue.paused:
        return None
    pop: Callable[[], Job | None] = queue.ready.pop
    if (held := queue.limits) is not None:
        if not queue_limits.is_open(state, queue, held):
            return None
        if held.breakers is not None:
            held.breakers.offer(queue.ready, state.now)
        if (groups := held.groups) is not None:
            pop = partial(groups.pop, policy_of(client.version, group), state.now)
    while (job := pop()) is not None:
        if held is not None and held.breakers is not None and held.breakers.shelve(job, state.now):
            state.budget -= 1
            if state.budget > 0:
                continue
            background_work.begin(state, queue, _continue_search(state, queue, client, group))
            return None
        ttl = job.shared.options.ttl
        if ttl is None or state.maintenance.uncertainty.age(job.created_at, state.now) < ttl:
            return job
        if state.budget <= 0:
            queue.ready.push(job)
            background_work.begin(state, queue, _continue_search(state, queue, client, group))
            return None
        transitions.expire(state, queue, job)
        state.budget -= 1
    return None


def _continue_search(
    state: State, queue: QueueState, client: Client, group: GroupRule | None
) -> Iterator[None]:
    """Continue to drop jobs that have outlived their ttl, or to skip held ones, when there are more than one
    tick may handle, until parked pulls can be served."""
    while True:
        yield
        job = _next(state, queue, client, group)
        if job is not None:
            queue.ready.push(job)
        if job is not None or state.budget > 0:
            break
    if queue.waiters:
        state.woken[queue] = None


def _take_many(
    state: State,
    queue: QueueState,
    client: Client,
    count: int,
    owner: str,
    ttl: int,
    group: GroupRule | None,
) -> list[Job]:
    """Take up to ``count`` jobs, or fewer if they would not fit into one reply."""
    jobs: list[Job] = []
    size = 0
    while len(jobs) < count:
        job = _next(state, queue, client, group)
        if job is None:
            break
        size += len(job.data)
        if job.timeline is not None or job.extra is not None:
            size += size_beside_data(job)
        elif job.shared is not DEFAULT_OPTIONS:
            size += len(job.shared.wire)
        if size > MAX_REPLY and jobs:
            queue.ready.push(job)  # left for the next pull
            break
        transitions.activate(state, queue, job, client, owner, ttl)
        jobs.append(job)
    state.totals.pulled += len(jobs)
    state.out.size += size
    return jobs


def _one(job: Job | None, owner: str) -> PullReply:
    if job is None:
        return PullReply(job=None, token=None if owner else UNSET)
    assert job.lock is not None
    return PullReply(job=Raw(pulled_job(job)), token=job.lock.token if owner else UNSET)


def _many(jobs: list[Job], owner: str) -> PullBatchReply:
    tokens = [job.lock.token for job in jobs if job.lock is not None]
    encoded = job_list([pulled_job(job) for job in jobs])
    return PullBatchReply(jobs=encoded, tokens=tokens if owner else UNSET)


def _park(state: State, client: Client, command: Pull | PullBatch, count: int | None) -> Waiter:
    """Keep a pull until a job arrives or its timeout is over."""
    deadline = state.now + max(1, int(command.timeout))
    owner = command.owner or ""
    waiter = Waiter(
        client, command.queue, command.req_id, count, owner, command.lock_ttl, deadline, group=command.group
    )
    waiter.detach = command.detach
    client.waiters += 1
    if client.polls is None:
        client.polls = set()
    client.polls.add(waiter)
    state.waiters(command.queue).append(waiter)
    queue = state.queues.get(command.queue)
    if queue is not None and queue.limits is not None:
        queue_limits.arm(state, queue, queue.limits)
    state.poll_ends.add(deadline, waiter)
    return waiter


def _answer(state: State, queue: QueueState, waiter: Waiter) -> Reply | None:
    owner = waiter.owner
    if waiter.count is None:
        job = _take(state, queue, waiter.client, owner, waiter.lock_ttl, waiter.group)
        if waiter.detach:
            _detach(state, waiter.client, [job] if job else [])
        return _one(job, owner) if job is not None else None
    jobs = _take_many(state, queue, waiter.client, waiter.count, owner, waiter.lock_ttl, waiter.group)
    if waiter.detach:
        _detach(state, waiter.client, jobs)
    return _many(jobs, owner) if jobs else None


def _detach(state: State, client: Client, jobs: list[Job]) -> None:
    """Let jobs stay active when the connection that pulled them ends."""
    for job in jobs:
        disconnects.detach(state, client, job)


def _finish(state: State, waiter: Waiter, reply: Reply) -> None:
    waiter.done = True
    client = waiter.client
    client.waiters -= 1
    if client.polls is not None:
        client.polls.discard(waiter)
    answer_late(state, client, waiter.req_id, reply)
