"""What may hold back the ready jobs of a queue: a rate, a number of active jobs, the limits of groups.

Most queues have no limits and pay only for reading ``queue.limits``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil

from msgspec import Struct

from bunqueue.model.groups import NO_DEFAULTS, GroupDefaults
from bunqueue.model.job import Job
from bunqueue.model.names import record_key

from ..memory.clock_correction import SetBack
from ..state import QueueState, State
from .breaker import Breakers
from .group import policy_of
from .groups import Groups

RECORD, GROUP_RECORD, DEFAULTS_RECORD = "limits", "group", "group-defaults"


class TokenBucket(Struct):
    """``max`` jobs at once, and the same number in every ``duration`` ms.

    Counted in credits, so whole numbers stay exact: each ms earns ``max``, each job costs ``duration``.
    """

    max: float
    duration: int
    at: int  # time of the count, epoch ms
    credits: float
    until: int | None = None  # when the limit expires
    since: int = 0  # when it was set, epoch ms

    def has_token(self, now: int) -> bool:
        """Whether a job may be taken now."""
        if now > self.at:
            full = max(self.max, 1) * self.duration
            self.credits = min(full, self.credits + (now - self.at) * self.max)
            self.at = now
        return self.max > 0 and self.credits >= self.duration

    def next_token_at(self, now: int) -> int | None:
        """When a job may be taken; None: never."""
        if self.has_token(now):
            return now
        if self.max <= 0:
            return None
        return now + max(1, ceil((self.duration - self.credits) / self.max))


class Limits(Struct, omit_defaults=True):
    """The limits of a queue as stored."""

    bucket: TokenBucket | None = None
    concurrency: float | None = None


class QueueLimits:
    """The limits, groups and breakers of one queue."""

    __slots__ = ("alarm", "breakers", "group_defaults", "groups", "own")

    def __init__(self) -> None:
        self.own = Limits()
        self.group_defaults = NO_DEFAULTS
        self.groups: Groups | None = None  # once a job or a command has named a group
        self.breakers: Breakers | None = None  # circuit breakers, once one was set
        self.alarm = 0  # when the engine will serve the parked pulls; 0: no timer


def limits_of(queue: QueueState) -> QueueLimits:
    """The limits of a queue, created if necessary."""
    if queue.limits is None:
        queue.limits = QueueLimits()
    return queue.limits


def groups_of(queue: QueueState) -> Groups:
    """The groups of a queue, created if necessary: they then replace its order of ready jobs."""
    limits = limits_of(queue)
    groups = limits.groups
    if groups is None:
        assert not isinstance(queue.ready, Groups)
        groups = limits.groups = queue.ready = Groups(queue.ready, limits.group_defaults)
        for waiter in queue.waiters:
            groups.note(policy_of(waiter.client.version, waiter.group))
    return groups


def keep(state: State, queue: QueueState, limits: QueueLimits) -> None:
    """Store the limits; without any, they are dropped."""
    own = limits.own
    has_none = own.bucket is None and own.concurrency is None
    if has_none:
        drop_if_empty(queue, limits)
    state.out.keep(RECORD, queue.name, None if has_none else own)


def drop_if_empty(queue: QueueState, limits: QueueLimits) -> None:
    """Drop limits that hold nothing back."""
    own = limits.own
    is_needed = (
        limits.groups is not None or limits.group_defaults != NO_DEFAULTS or limits.breakers is not None
    )
    if not is_needed and own.bucket is None and own.concurrency is None:
        queue.limits = None


def group_defaults(queue: QueueState | None) -> GroupDefaults:
    """The default limits for the groups of a queue."""
    return NO_DEFAULTS if queue is None or queue.limits is None else queue.limits.group_defaults


def set_group_defaults(queue: QueueState, defaults: GroupDefaults) -> None:
    """Change the default limits for the groups of a queue."""
    limits = limits_of(queue)
    limits.group_defaults = defaults
    if limits.groups is not None:
        limits.groups.set_defaults(defaults)
    drop_if_empty(queue, limits)


def bucket_of(state: State, queue: QueueState, limits: QueueLimits) -> TokenBucket | None:
    """The bucket, unless it has expired."""
    bucket = limits.own.bucket
    if bucket is not None and bucket.until is not None and bucket.until <= state.now:
        limits.own.bucket = bucket = None
        keep(state, queue, limits)
    return bucket


def is_open(state: State, queue: QueueState, limits: QueueLimits) -> bool:
    """Whether one more job may be taken."""
    most = limits.own.concurrency
    if most is not None and len(queue.active) >= most:
        return False
    breakers = limits.breakers
    if breakers is not None and breakers.whole is not None and not breakers.whole.lets(state.now):
        return False
    bucket = bucket_of(state, queue, limits)
    return bucket is None or bucket.has_token(state.now)


def join(queue: QueueState, job: Job) -> None:
    """Add a live job that has a group."""
    if job.extra is not None and job.extra.group_id is not None:
        groups_of(queue).join(job)


def readopt(queue: QueueState, job: Job) -> None:
    """The same for a job that was active when the shard stopped."""
    if queue.limits is not None and queue.limits.groups is not None:
        queue.limits.groups.readopt(job)


def left(state: State, queue: QueueState, job: Job) -> None:
    """Remove a job that is no longer live."""
    limits = queue.limits
    if limits is not None and limits.groups is not None:
        limits.groups.leave(job, state.now)
        keep_groups(state, queue, limits.groups)


def keep_groups(state: State, queue: QueueState, groups: Groups) -> None:
    """Store changed groups."""
    for group in groups.changed.values():
        key = record_key(queue.name, group.id)
        if not group.record.is_over(state.now):
            state.out.keep(GROUP_RECORD, key, group.record)
            group.stored = True
        elif group.stored:
            state.out.keep(GROUP_RECORD, key, None)
            group.stored = False
    groups.changed.clear()


def passed(state: State, queue: QueueState, limits: QueueLimits, job: Job) -> None:
    """Record that a job was taken.  The remaining rates are stored with it, so they survive a restart."""
    bucket = limits.own.bucket
    if bucket is not None:
        bucket.credits -= bucket.duration
        keep(state, queue, limits)
    if limits.groups is not None:
        limits.groups.start(job, state.now)
        keep_groups(state, queue, limits.groups)
    if limits.breakers is not None:
        limits.breakers.started(job)


def freed(state: State, queue: QueueState, limits: QueueLimits, job: Job) -> None:
    """Record that an active job has ended, so another one may be taken."""
    if limits.groups is not None:
        limits.groups.end(job)
    if limits.breakers is not None:
        limits.breakers.ended(job)
    if queue.waiters and queue.waiting:
        state.woken[queue] = None


def opens_at(state: State, queue: QueueState, limits: QueueLimits) -> int | None:
    """The next time when a job may pass; None if time will not change that."""
    bucket, groups, now = bucket_of(state, queue, limits), limits.groups, state.now
    may: list[int | None] = [] if groups is None else [groups.opens_at(now)]
    if limits.breakers is not None:
        may.append(limits.breakers.opens_at(now))
    if bucket is not None:
        may += [bucket.next_token_at(now), bucket.until]
    return min((at for at in may if at is not None and at > now), default=None)


def arm(state: State, queue: QueueState, limits: QueueLimits) -> None:
    """Pulls are parked while jobs wait: set an alarm for the time when a job may pass."""
    at = opens_at(state, queue, limits)
    if at is not None and not 0 < limits.alarm <= at:
        limits.alarm = at
        state.alarms.add(at, queue)


def ring(state: State) -> None:
    """Serve the parked pulls whose alarm is due."""
    alarms, now = state.alarms, state.now
    while (alarm := alarms.pop_due(now)) is not None:
        queue = alarm[2]
        if queue.limits is not None and alarms.is_current(alarm):
            queue.limits.alarm = 0
            if queue.waiters:
                state.woken[queue] = None


# Ready jobs, including those held by a breaker


def forget(queue: QueueState, job: Job) -> None:
    """Remove a job that is no longer ready."""
    breakers = queue.limits.breakers if queue.limits is not None else None
    if breakers is None or not breakers.unshelve(job):
        queue.ready.forget(job)


def ready_jobs(queue: QueueState) -> Iterator[Job]:
    """All ready jobs, in no order."""
    yield from queue.ready.jobs()
    yield from _shelved(queue)


def ready_counts(queue: QueueState) -> Counter[int]:
    """The number of ready jobs per priority."""
    counts = Counter(dict(queue.ready.counts()))
    counts.update(job.priority for job in _shelved(queue))
    return counts


def oldest(queue: QueueState) -> int | None:
    """Since when the oldest ready job has been ready (epoch ms); None without one."""
    ready = [queue.ready.oldest(), *(job.run_at for job in _shelved(queue))]
    return min((since for since in ready if since is not None), default=None)


def _shelved(queue: QueueState) -> Iterator[Job]:
    if queue.limits is not None and queue.limits.breakers is not None:
        yield from queue.limits.breakers.shelved()


def set_back(state: State, back: SetBack) -> int:
    """Correct rates and windows after the clock was ahead; returns how many were changed."""
    state.alarms.replace(())
    moved = 0
    for queue in state.queues.values():
        limits = queue.limits
        if limits is None:
            continue
        limits.alarm = 0
        bucket = limits.own.bucket
        if bucket is not None and max(bucket.at, bucket.since) > back.now:
            if bucket.until is not None:
                bucket.until = back.end(bucket.until, bucket.since)
            bucket.at, bucket.since = min(bucket.at, back.now), back.moment(bucket.since)
            keep(state, queue, limits)
            moved += 1
        if limits.breakers is not None:
            moved += limits.breakers.set_back(back)
        if limits.groups is not None:
            moved += limits.groups.set_back(back)
            keep_groups(state, queue, limits.groups)
        if queue.waiters:
            state.woken[queue] = None
    return moved
