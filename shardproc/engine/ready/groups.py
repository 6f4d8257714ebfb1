"""The ready jobs of a queue with groups: which group is next, and which of its jobs.

This replaces the `ReadyQueue` of such a queue and keeps that one for the jobs without a group.  What a pull
may take depends on its `Policy`, so each policy in use has its `ReadyGroups`: those that may be free for it,
in the order of its pulls.  A group that a pull finds blocked leaves them, and returns when
something changes (a job ends or arrives, a window ends, it is resumed).  So blocked groups cost nothing,
however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bunqueue.model.groups import NO_DEFAULTS, GroupDefaults
from bunqueue.model.job import Job
from shardproc.engine.ready.ready_queue import ReadyQueue

from ..memory.clock_correction import SetBack
from ..memory.lazy_heap import LazyHeap
from .group import FIFO, Entry, Group, GroupRecord, Policy
from .ready_groups import Heads, ReadyGroups, Turns
from .shares import Shares

MAX_POLICIES = 8  # above this, the oldest one is dropped


class Groups:
    """The ready jobs of a queue, with and without groups."""

    __slots__ = (
        "_ages",
        "_ready",
        "_ticket",
        "_timers",
        "by_id",
        "changed",
        "mixed",
        "plain",
        "priorities",
        "queued",
        "used",
        "usual",
    )

    def __init__(self, plain: ReadyQueue, usual: GroupDefaults = NO_DEFAULTS) -> None:
        self.plain = plain
        self.usual = usual
        self.by_id: dict[str, Group] = {}
        self.queued = 0  # live jobs of all groups that are not active
        self.priorities: Counter[int] = Counter()  # of ready jobs with a group
        self.changed: dict[str, Group] = {}  # groups to store again
        self.used: Policy | None = None  # the policy of the first pull
        self.mixed = False  # pulls have different policies
        # By the time since they are ready.  No group's own order shows that, and checking each of 100,000
        # groups took a third of a second in a measurement.
        self._ages: LazyHeap[int, Job] = LazyHeap(self._waits)
        self._ready: dict[Policy, ReadyGroups] = {}
        self._timers: LazyHeap[int, Group] = LazyHeap(self._is_set)  # when to check a group again
        self._ticket = 0

    def group(self, group_id: str) -> Group:
        """The group with that name, created if necessary."""
        group = self.by_id.get(group_id)
        if group is None:
            group = self.by_id[group_id] = Group(group_id)
        return group

    # -- the interface of a ReadyQueue ---------------------------------------------------------

    def push(self, job: Job) -> None:
        """Add a job that is WAITING."""
        group = self._group_of(job)
        if group is None:
            self.plain.push(job)
            return
        self._ticket += 1
        self.priorities[job.priority] += 1
        group.push(job, self._ticket)
        self._ages.push(job.run_at, self._ticket, job)
        self.offer(group)

    def extend(self, jobs: list[Job]) -> None:
        """Add new jobs without options, and so without a group, in order of arrival."""
        self.plain.extend(jobs)

    def pop(self, policy: Policy = FIFO, now: int = 0) -> Job | None:
        """Take the next job among those that ``policy`` allows."""
        self.note(policy)
        self._release(now)
        ready = self._ready.get(policy)
        if ready is None:
            ready = self._new_ready_groups(policy)
        job = ready.take(now)
        if job is not None and (group := self._group_of(job)) is not None:
            self._remove(group, job)
        return job

    def forget(self, job: Job) -> None:
        """Remove ``job`` from the order."""
        group = self._group_of(job)
        if group is None:
            self.plain.forget(job)
        else:
            self._remove(group, job)

    def jobs(self) -> Iterator[Job]:
        """All ready jobs, in no order."""
        yield from self.plain.jobs()
        for group in self.by_id.values():
            for _, job in group.waiting.values():
                yield job

    def compact(self) -> None:
        """Drop the entries of jobs that have left."""
        self.plain.compact()

    def counts(self) -> Iterator[tuple[int, int]]:
        """The priorities of ready jobs, each with the number of jobs."""
        yield from (Counter(dict(self.plain.counts())) + self.priorities).items()

    def oldest(self) -> int | None:
        """The same as `ReadyQueue.oldest`."""
        first = self._ages.first()
        ready = (self.plain.oldest(), None if first is None else first[0])
        return min((since for since in ready if since is not None), default=None)

    def prioritized(self) -> int:
        """The number of ready jobs with a priority above 0."""
        mine = sum(count for priority, count in self.priorities.items() if priority > 0)
        return mine + self.plain.prioritized()

    # -- changes of jobs --------------------------------------------------------------------------

    def join(self, job: Job) -> None:
        """Add a job that has become live."""
        group = self._group_of(job)
        if group is not None and job.seq not in group.members:
            group.members.add(job.seq)
            self.queued += 1

    def start(self, job: Job, now: int) -> None:
        """Record that ``job``, returned by `pop`, has become active."""
        group = self._group_of(job)
        if group is None:
            return
        self.readopt(job)
        if group.window:
            state = group.record
            if now >= state.window_until:
                state.window_from, state.window_until, state.started = now, now + group.window, 0
            state.started += 1
            self.changed[group.id] = group

    def recover(self, group_id: str, state: GroupRecord) -> None:
        """Restore a group from storage."""
        group = self.group(group_id)
        group.record, group.stored = state, True
        if group.window_end():
            self._set_timer(group, group.window_end())

    def readopt(self, job: Job) -> None:
        """Record that ``job`` is active, as it was when the shard stopped."""
        if (group := self._group_of(job)) is not None:
            group.active += 1
            self.queued -= 1

    def end(self, job: Job) -> None:
        """Record that ``job`` is no longer active."""
        if (group := self._group_of(job)) is not None:
            group.active -= 1
            self.queued += 1
            self.offer(group)

    def leave(self, job: Job, now: int) -> None:
        """Record that ``job`` is no longer live."""
        group = self._group_of(job)
        if group is not None and job.seq in group.members:
            group.members.discard(job.seq)
            self.queued -= 1
            self.drop_if_idle(group, now)

    # -- changes of groups ------------------------------------------------------------------------

    def offer(self, group: Group) -> None:
        """Something has changed in ``group``: pulls may find it free now."""
        for ready in self._ready.values():
            ready.offer(group)

    def free(self, group: Group, policy: Policy, now: int) -> Entry | None:
        """The first job of ``group``, unless it is empty or blocked."""
        entry = group.best(policy.as_pushed)
        until = None if entry is None else group.blocked(policy, self.usual, now)
        if until == 0:
            return entry
        if until is not None:
            self._set_timer(group, until)
        return None

    def set_defaults(self, usual: GroupDefaults) -> None:
        """Change the limits of the groups without their own."""
        self.usual = usual
        for group in self.by_id.values():
            self.offer(group)

    def drop_if_idle(self, group: Group, now: int) -> None:
        """Forget a group without jobs and limits, or check it again when its window has ended."""
        if group.members:
            return
        if group.record.is_over(now):
            self.by_id.pop(group.id, None)
            for ready in self._ready.values():
                ready.drop(group)
            if group.stored:
                self.changed[group.id] = group
        elif group.window_end() > now:
            self._set_timer(group, group.window_end())

    def reset(self, now: int) -> None:
        """Remove all limits of all groups."""
        for group in list(self.by_id.values()):
            group.record = GroupRecord()
            self.changed[group.id] = group
            self.offer(group)
            self.drop_if_idle(group, now)

    def opens_at(self, now: int) -> int | None:
        """When the next window ends that keeps jobs waiting; None without one."""
        timers = self._timers.entries
        return timers[0][0] if timers and timers[0][0] > now else None

    def note(self, policy: Policy) -> None:
        """Note the policy of a pull."""
        if self.used is None:
            self.used = policy
        elif self.used != policy:
            self.mixed = True

    def set_back(self, back: SetBack) -> int:
        """Correct the windows after the clock was ahead; returns the number of changed groups."""
        self._timers.replace(())
        moved = 0
        for group in list(self.by_id.values()):
            group.timer, state = 0, group.record
            if back.is_wrong(state.held_from) or back.is_wrong(state.window_from):
                state.held_until = back.end(state.held_until, state.held_from)
                state.window_until = back.end(state.window_until, state.window_from)
                state.held_from, state.window_from = map(back.moment, (state.held_from, state.window_from))
                self.changed[group.id] = group
                moved += 1
            if group.window_end() > back.now:
                self._set_timer(group, group.window_end())
            self.offer(group)
            self.drop_if_idle(group, back.now)
        return moved

    def reorder(self) -> None:
        """Sort again after the times of ready jobs have changed."""
        self.plain = self.plain.sorted()
        for group in self.by_id.values():
            for _, job in list(group.waiting.values()):
                self._remove(group, job)
                self.push(job)

    def _set_timer(self, group: Group, at: int) -> None:
        if not 0 < group.timer <= at:
            group.timer = at
            self._timers.add(at, group)

    def _release(self, now: int) -> None:
        """Release the groups whose windows are over."""
        while (timer := self._timers.pop_due(now)) is not None:
            if self._is_set(timer):
                group = timer[2]
                group.timer = 0
                self.offer(group)
                self.drop_if_idle(group, now)

    def _is_set(self, timer: tuple[int, int, Group]) -> bool:
        """Whether a group exists and waits for this timer."""
        at, _, group = timer
        return group.timer == at and self.by_id.get(group.id) is group

    def _new_ready_groups(self, policy: Policy) -> ReadyGroups:
        if len(self._ready) >= MAX_POLICIES:
            del self._ready[next(iter(self._ready))]
        kind = Shares if policy.fair else Turns if policy.turns else Heads
        ready = self._ready[policy] = kind(self, policy)
        for group in self.by_id.values():
            ready.offer(group)
        return ready

    def _waits(self, entry: tuple[int, int, Job]) -> bool:
        """Whether a job with a group is ready, and has been since it got that ticket."""
        _, ticket, job = entry
        group_id = job.extra.group_id if job.extra is not None else None
        group = self.by_id.get(group_id) if group_id is not None else None
        return group is not None and group.waiting.get(job.seq, (0, None))[0] == ticket

    def _group_of(self, job: Job) -> Group | None:
        group_id = job.extra.group_id if job.extra is not None else None
        return None if group_id is None else self.group(group_id)

    def _remove(self, group: Group, job: Job) -> None:
        if group.waiting.pop(job.seq, None) is not None:
            self.priorities[job.priority] -= 1
            if not self.priorities[job.priority]:
                del self.priorities[job.priority]
