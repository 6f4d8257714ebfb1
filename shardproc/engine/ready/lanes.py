"""The groups that may be free for pulls of one policy, in the order in which these take them."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from bunqueue.model.job import Job

from .group import MIN_STALE, Entry, Group, Policy, queue_order

if TYPE_CHECKING:
    from .groups import Groups


class Turns:
    """A lane of version 3: jobs without a group first, then the groups one after the other."""

    def __init__(self, groups: Groups, policy: Policy) -> None:
        self._groups = groups
        self._policy = policy
        self._ring: OrderedDict[Group, None] = OrderedDict()

    def offer(self, group: Group) -> None:
        """Something has happened to ``group``; it may be free now."""
        self._ring.setdefault(group)

    def drop(self, group: Group) -> None:
        """``group`` is no more."""
        self._ring.pop(group, None)

    def take(self, now: int) -> Job | None:
        """The next job, which stays unless it has no group."""
        if (job := self._groups.plain.pop()) is not None:
            return job
        ring = self._ring
        while ring:
            group = next(iter(ring))
            entry = self._groups.free(group, self._policy, now)
            if entry is None:
                del ring[group]
                continue
            if len(group.waiting) > 1:
                ring.move_to_end(group)
            else:  # with its next job it queues up anew
                del ring[group]
            return entry[2]
        return None


class Heads:
    """A lane of version 2: the first jobs of all groups in the order of the queue."""

    def __init__(self, groups: Groups, policy: Policy) -> None:
        self._groups = groups
        self._policy = policy
        self._heap: list[tuple[tuple[int, ...], int, Group]] = []  # (order of its first job, n, group)
        self._listed: dict[Group, tuple[int, Entry]] = {}  # the entry of a group that counts: n, first job
        self._n = 0

    def offer(self, group: Group) -> None:
        """Something has happened to ``group``; it may be free now, or have another first job."""
        entry = group.best(False)
        if entry is None or ((known := self._listed.get(group)) is not None and known[1] is entry):
            return
        self._n += 1
        self._listed[group] = (self._n, entry)
        heappush(self._heap, (entry[0], self._n, group))
        if len(self._heap) > 2 * len(self._listed) + MIN_STALE:
            self._heap = [(entry[0], n, group) for group, (n, entry) in self._listed.items()]
            heapify(self._heap)

    def drop(self, group: Group) -> None:
        """``group`` is no more."""
        self._listed.pop(group, None)

    def take(self, now: int) -> Job | None:
        """The next job, which stays unless it has no group."""
        entry = self._first(now)
        plain = self._groups.plain
        job = plain.pop()
        if job is not None and entry is not None and queue_order(job) > entry[0]:
            plain.push(job)
            job = None
        return entry[2] if job is None and entry is not None else job

    def _first(self, now: int) -> Entry | None:
        """The first job of all groups that are free."""
        while self._heap:
            _, n, group = self._heap[0]
            listed = self._listed.get(group)
            if listed is not None and listed[0] == n:
                entry = self._groups.free(group, self._policy, now)
                if entry is listed[1]:
                    return entry
                del self._listed[group]
                if entry is not None:  # its first job is another one now
                    heappop(self._heap)
                    self.offer(group)
                    continue
            heappop(self._heap)
        return None
