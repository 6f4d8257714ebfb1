"""Which queues go where when the number of shards changes. Pure.

Both numbers are powers of two, and a shard is the low bits of a queue's slot. So, with K the smaller number,
all shards with the same remainder by K are a *family*: the contents of one go to several, or those of several
go to one, and no queue ever leaves its family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bunqueue.model.ids import slot_of_queue
from shardproc.storage.transfer import QueueSize


class Family(NamedTuple):
    """Related shards before and after; one of the two ranges has only one shard."""

    sources: range
    targets: range


def families(old: int, new: int) -> list[Family]:
    both = min(old, new)
    return [Family(range(first, old, both), range(first, new, both)) for first in range(both)]


def shard_of(queue: str, shards: int) -> int:
    return slot_of_queue(queue) & (shards - 1)


class Share:
    """What a shard will have, and how much of it comes from another one."""

    def __init__(self) -> None:
        self.queues = self.jobs = self.bytes = 0
        self.moved_queues = self.moved_jobs = self.moved_bytes = 0

    def add(self, queue: QueueSize, *, moves: bool) -> None:
        self.queues += 1
        self.jobs += queue.jobs
        self.bytes += queue.bytes
        if moves:
            self.moved_queues += 1
            self.moved_jobs += queue.jobs
            self.moved_bytes += queue.bytes


def shares(held: Sequence[Sequence[QueueSize]], new: int) -> list[Share]:
    """What each of the new shards will have; ``held`` is what the old ones have."""
    found = [Share() for _ in range(new)]
    for source, queues in enumerate(held):
        for queue in queues:
            target = shard_of(queue.name, new)
            found[target].add(queue, moves=target != source)
    return found


class QueueNumbers:
    """Where the queues of a family go, and under which number there.

    A removed queue has left only events, without its name: they stay together. With one source all numbers
    stay; with several, every queue gets another one.
    """

    def __init__(self, family: Family) -> None:
        self._keep = len(family.sources) == 1
        self._default = family.targets[0]
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # (source, number) -> (target, number)
        self._last = 0

    def enter(self, source: int, number: int, target: int) -> int:
        """Assign a queue to a target; returns its number there."""
        if not self._keep:
            self._last += 1
        there = number if self._keep else self._last
        self._known[source, number] = target, there
        return there

    def of(self, source: int, number: int) -> tuple[int, int]:
        """The target of a queue, and its number there."""
        place = self._known.get((source, number))
        if place is None:
            self.enter(source, number, self._default)
            place = self._known[source, number]
        return place
