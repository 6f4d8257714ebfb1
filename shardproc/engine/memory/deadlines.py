"""Until when parked commands wait.  Plain data without rules."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

MIN_ENTRIES = 256  # below that clearing away costs more than keeping


class Parked(Protocol):
    """A command that is answered later."""

    done: bool  # it has been


P = TypeVar("P", bound=Parked)


class Deadlines(Generic[P]):
    """By time.  Most commands are answered long before: at most half of the entries, or so, are of these."""

    __slots__ = ("_limit", "_serial", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, P]] = []  # (deadline, n, parked)
        self._limit = MIN_ENTRIES
        self._serial = 0  # equal times never compare more

    def add(self, deadline: int, parked: P) -> None:
        """It waits until then (epoch ms)."""
        self._serial += 1
        heappush(self.heap, (deadline, self._serial, parked))
        if len(self.heap) > self._limit:
            self.heap = [entry for entry in self.heap if not entry[2].done]
            heapify(self.heap)
            self._limit = max(MIN_ENTRIES, 2 * len(self.heap))

    def set_back(self, by: int) -> None:
        """The clock was ahead by so many ms."""
        self.heap = [(deadline - by, serial, parked) for deadline, serial, parked in self.heap]

    def pop_due(self, now: int) -> P | None:
        """One whose time is over, answered or not; None when there is none."""
        return heappop(self.heap)[2] if self.heap and self.heap[0][0] <= now else None
