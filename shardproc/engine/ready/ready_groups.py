"""The groups that may be free for pulls of one policy, in the order of delivery."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from bunqueue.model.job import Job

from ..memory.lazy_heap import LazyHeap
from .group import Entry, Group, Policy, queue_order

if TYPE_CHECKING:
    from .groups import Groups


class ReadyGroups(Protocol):
    """The groups that may be free for a policy."""

    def offer(self, group: Group) -> None:
        """Something has changed in ``group``; it may be free now, or have another first job."""

    def drop(self, group: Group) -> None:
        """Remove ``group``, which no longer exists."""

    def take(self, now: int) -> Job | None:
        """The next job.  A job with a group stays in it; one without is removed from the order."""


class Turns:
    """The order of version 3: jobs without a group first, then the groups in turn."""

    def __init__(self, groups: Groups, policy: Policy) -> None:
        self._groups = groups
        self._policy = policy
        self._ring: OrderedDict[Group, None] = OrderedDict()

    def offer(self, group: Group) -> None:
        """Something has changed in ``group``; it may be free now."""
        self._ring.setdefault(group)

    def drop(self, group: Group) -> None:
        """Remove ``group``, which no longer exists."""
        self._ring.pop(group, None)

    def take(self, now: int) -> Job | None:
        """The next job.  A job with a group stays in it; one without is removed from the order."""
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
            else:  # it re-enters at the end with its next job
                del ring[group]
            return entry[2]
        return None


class Heads:
    """The order of version 2: the first jobs of all groups in the order of the queue."""

    def __init__(self, groups: Groups, policy: Policy) -> None:
        self._groups = groups
        self._policy = policy
        self._heap: LazyHeap[tuple[int, ...], Group] = LazyHeap(self._is_listed)  # by order of the first job
        self._listed: dict[Group, tuple[int, Entry]] = {}  # the valid entry of a group: n, first job
        self._n = 0

    def offer(self, group: Group) -> None:
        """Something has changed in ``group``; it may be free now, or have another first job."""
        entry = group.best(False)
        if entry is None or ((known := self._listed.get(group)) is not None and known[1] is entry):
            return
        self._n += 1
        self._listed[group] = (self._n, entry)
        self._heap.push(entry[0], self._n, group)

    def drop(self, group: Group) -> None:
        """Remove ``group``, which no longer exists."""
        self._listed.pop(group, None)

    def take(self, now: int) -> Job | None:
        """The next job.  A job with a group stays in it; one without is removed from the order."""
        entry = self._first(now)
        plain = self._groups.plain
        job = plain.pop()
        if job is not None and entry is not None and queue_order(job) > entry[0]:
            plain.push(job)
            job = None
        return entry[2] if job is None and entry is not None else job

    def _first(self, now: int) -> Entry | None:
        """The first job of all free groups."""
        while (head := self._heap.first()) is not None:
            group = head[2]
            entry = self._groups.free(group, self._policy, now)
            if entry is self._listed[group][1]:
                return entry
            del self._listed[group]
            if entry is not None:  # its first job has changed
                self.offer(group)
        return None

    def _is_listed(self, head: tuple[tuple[int, ...], int, Group]) -> bool:
        _, n, group = head
        listed = self._listed.get(group)
        return listed is not None and listed[0] == n
