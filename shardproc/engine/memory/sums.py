"""Sums over all queues of the shard, which may be very many."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from msgspec import Struct

from ..state import QueueState

QUEUES_A_SLICE = 500


class Sums(Struct):
    """Jobs by state."""

    waiting: int = 0
    active: int = 0
    delayed: int = 0
    completed: int = 0
    failed: int = 0


def of_queues(queues: Sequence[QueueState]) -> Generator[None, None, Sums]:
    """Count in slices; jobs that move in the meantime may be counted twice or not at all."""
    sums = Sums()
    for number, queue in enumerate(queues):
        if number and number % QUEUES_A_SLICE == 0:
            yield
        sums.waiting += queue.waiting
        sums.active += len(queue.active)
        sums.delayed += len(queue.delayed)
        sums.completed += queue.completed
        sums.failed += queue.failed
    return sums
