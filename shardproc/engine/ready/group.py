"""One group of jobs: which job is next, and whether a pull may take it."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from bunqueue.model.groups import GroupDefaults
from bunqueue.model.job import Job
from bunqueue.protocol.commands.core import GroupRule

from ..memory.lazy_heap import LazyHeap


class Policy(NamedTuple):
    """What a pull may take from a group without limits of its own."""

    turns: bool  # groups take turns (version 3), or their jobs follow the order of the queue (version 2)
    concurrency: int | None
    max: int | None  # jobs in a window of ``duration`` ms; None: any number
    duration: int
    fair: bool = False  # turns are shared by weight, and a group's own limits always apply

    @property
    def as_pushed(self) -> bool:
        """Whether the jobs of a group follow `group_order`, else the order of the queue."""
        return self.turns and not self.fair


FIFO = Policy(False, 1, None, 0)  # for a pull of version 2 that does not mention groups
FREE = Policy(True, None, None, 0)  # for version 3
FAIR = Policy(True, None, None, 0, True)  # for a pull that asks for it


def policy_of(version: int, rule: GroupRule | None) -> Policy:
    """The policy of a pull."""
    usual = FREE if version >= 3 else FIFO
    if rule is None:
        return usual
    if rule.fair:
        usual = FAIR
    if rule.concurrency is None and rule.limit is None:
        return usual
    limit = rule.limit or NO_LIMIT
    return usual._replace(
        concurrency=rule.concurrency or usual.concurrency, max=limit.max, duration=limit.duration
    )


class Window(NamedTuple):
    """A rate limit: ``max`` jobs within ``duration`` ms from the first one; None: any number."""

    max: int | None
    duration: int


NO_LIMIT = Window(None, 0)


class GroupRecord(Struct, omit_defaults=True):
    """The stored part of a group."""

    paused: bool = False
    concurrency: int | None = None
    max: int | None = None  # of its own rate limit
    duration: int = 0
    held_until: int = 0  # no job is delivered before
    held_from: int = 0  # when that was requested
    window_until: int = 0  # the window in which starts are counted
    window_from: int = 0
    started: int = 0  # jobs in that window
    weight: int | None = None  # its share of the turns, relative to the other groups; None: 1

    def is_over(self, now: int) -> bool:
        """Whether the record has no effect any more."""
        is_limited = self.paused or self.concurrency is not None or self.max is not None
        is_set = is_limited or self.weight is not None
        return not is_set and max(self.held_until, self.window_until) <= now


def queue_order(job: Job) -> tuple[int, ...]:
    """The place of a job in version 2, as in `ReadyQueue`."""
    if job.options.lifo:
        return (-job.priority, 0, -job.seq)
    return (-job.priority, 1, job.run_at, job.seq)


def group_order(job: Job) -> tuple[int, ...]:
    """The place of a job within its group in version 3: lower priority first, then in order of arrival.  A
    retry, a delay or a move does not change that place."""
    return (job.priority, job.seq)


Entry = tuple[tuple[int, ...], int, Job]  # order, ticket, job


class Group:
    """The jobs of one group.  Each order in use has a heap, where jobs that have left are skipped."""

    __slots__ = ("active", "heaps", "id", "members", "record", "stored", "timer", "waiting", "window")

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.record = GroupRecord()
        self.stored = False  # it has a record
        self.members: set[int] = set()  # live jobs by seq
        self.active = 0  # the number of active members
        self.waiting: dict[int, tuple[int, Job]] = {}  # ready members by seq: ticket and job
        self.heaps: dict[bool, LazyHeap[tuple[int, ...], Job]] = {}
        self.timer = 0  # when Groups will check it again; 0: not on a timer
        self.window = 0  # length of the window that counts the last job taken, ms; 0: none

    def push(self, job: Job, ticket: int) -> None:
        self.waiting[job.seq] = (ticket, job)
        for as_pushed, heap in self.heaps.items():
            heap.push(group_order(job) if as_pushed else queue_order(job), ticket, job)

    def best(self, as_pushed: bool) -> Entry | None:
        """The first job in an order."""
        heap = self.heaps.get(as_pushed)
        if heap is None:
            order = group_order if as_pushed else queue_order
            heap = self.heaps[as_pushed] = LazyHeap(self._waits)
            heap.replace((order(job), ticket, job) for ticket, job in self.waiting.values())
        return heap.first()

    def _waits(self, entry: Entry) -> bool:
        _, ticket, job = entry
        return self.waiting.get(job.seq, (0, None))[0] == ticket

    def blocked(self, policy: Policy, usual: GroupDefaults, now: int) -> int | None:
        """Until when no job may be taken: 0 if one may, None if time will not change that."""
        state = self.record
        most = self.most_active(policy, usual)
        if state.paused or (most is not None and self.active >= most):
            return None
        at_most, self.window = self.rate(policy, usual)
        until = state.held_until
        if at_most is None:
            self.window = 0
        elif state.started >= at_most:
            until = max(until, state.window_until)
        return until if until > now else 0

    def most_active(self, policy: Policy, usual: GroupDefaults) -> int | None:
        """The maximum number of active jobs: the group's own limit comes first, then its queue's, then the
        pull's.  In version 3 the group's own limit counts only if there is another one, unless a pull is
        fair."""
        default = usual.concurrency or policy.concurrency
        if policy.as_pushed and default is None:
            return None
        return self.record.concurrency or default

    def rate(self, policy: Policy, usual: GroupDefaults) -> Window:
        """How many of its jobs may start within how many ms, by the rules of `most_active`."""
        default = Window(policy.max, policy.duration)
        if usual.max is not None:
            default = Window(usual.max, usual.duration)
        if self.record.max is None or (policy.as_pushed and default.max is None):
            return default
        return Window(self.record.max, self.record.duration)

    @property
    def queued(self) -> int:
        """Live jobs that are not active."""
        return len(self.members) - self.active

    def window_end(self) -> int:
        """The end of its window, or of the pause from `RateLimitGroup`."""
        return max(self.record.held_until, self.record.window_until)
