"""The ready groups of fair pulls: groups take turns in proportion to their weights.

This is start-time fair queueing.  Each group has a tag, the virtual time at which its next job may start.
The group with the smallest tag is next; its tag then grows by ``1 / weight``, and virtual time is the tag of
the last job taken.  A group that gets its first job starts at the present virtual time, so it waits for one
turn of each other group at most, however many jobs these have.  A group that returns soon after it was empty
keeps its tag, so adding jobs one by one gives no advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bunqueue.model.job import Job

from ..memory.lazy_heap import MIN_STALE, LazyHeap
from .group import Group, Policy

if TYPE_CHECKING:
    from .groups import Groups

TURN = 1 << 20  # virtual time between two jobs of a group with weight 1: whole numbers add up exactly
UNGROUPED = Group("")  # represents all jobs without a group; no group has that name


class Shares:
    """Ready groups that, with the jobs without a group as one more, share the turns by weight."""

    def __init__(self, groups: Groups, policy: Policy) -> None:
        self._groups = groups
        self._policy = policy
        self._heap: LazyHeap[int, Group] = LazyHeap(self._is_listed)  # by tag
        self._listed: dict[Group, int] = {}  # groups that may be free -> number of their entry
        self._tags: dict[str, int] = {}  # of groups that had turns; obsolete once time has reached them
        self._time = 0
        self._n = 0

    def offer(self, group: Group) -> None:
        """Something has changed in ``group``; it may be free now."""
        if group not in self._listed and group.waiting:
            self._enter(group)

    def drop(self, group: Group) -> None:
        """Remove ``group``, which no longer exists."""
        self._listed.pop(group, None)

    def take(self, now: int) -> Job | None:
        """The next job.  A job with a group stays in it; one without is removed from the order."""
        plain = self._groups.plain
        if UNGROUPED not in self._listed and not plain.is_empty:
            self._enter(UNGROUPED)
        while (head := self._heap.first()) is not None:
            tag, _, group = head
            job = plain.pop() if group is UNGROUPED else self._first(group, now)
            del self._listed[group]
            if job is not None:
                self._count(group, tag)
                return job
        return None

    def _first(self, group: Group, now: int) -> Job | None:
        entry = self._groups.free(group, self._policy, now)
        return None if entry is None else entry[2]

    def _count(self, group: Group, tag: int) -> None:
        """Record a turn of ``group``."""
        self._time = tag
        self._tags[group.id] = tag + TURN // (group.record.weight or 1)
        if len(group.waiting) > 1:  # else it is offered again with its next job
            self._enter(group)
        if len(self._tags) > 2 * len(self._listed) + MIN_STALE:
            self._tags = {name: until for name, until in self._tags.items() if until > tag}

    def _enter(self, group: Group) -> None:
        self._n += 1
        self._listed[group] = self._n
        self._heap.push(max(self._time, self._tags.get(group.id, 0)), self._n, group)

    def _is_listed(self, entry: tuple[int, int, Group]) -> bool:
        _, n, group = entry
        return self._listed.get(group) == n
