"""A heap whose entries may become untrue.  Plain data without rules.

A heap gives its smallest entry cheaply, but cannot find one in its middle.  So when a delay is cancelled or
a parked pull is answered, its entry stays, and is *stale* from then on.  The owner of the heap passes a
function that says which entries still hold; stale ones are skipped when they reach the top.

Many would not reach it for long: a pull parked for a minute is answered within milliseconds.  So stale
entries are cleared away once they may be the majority.  There are two ways to know:

- By growth (the default).  A clearing leaves n true entries; the next one comes when there are more than
  ``2 n + MIN_STALE``.  Nobody has to report anything, so nobody can forget to.
- By report (``reported=True``).  Whoever makes an entry stale calls `forget`; the heap is cleared when more
  than half of it, and more than ``MIN_STALE``, was reported.  Such a heap does no work while it only grows,
  and shrinks without being pushed to.  Reports of entries that left by the top meanwhile make a clearing
  come early, which costs time and changes nothing else.

Either way a clearing that looks at n entries follows about n / 2 pushes or reports, so each of these costs
O(log n), amortized, and the heap holds about two entries at most for each true one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from sys import maxsize
from typing import Any, Generic, TypeVar

MIN_STALE = 64  # entries; below that clearing costs more than skipping

K = TypeVar("K", bound=Any)  # what the heap is ordered by: a time in epoch ms, or a tuple
T = TypeVar("T")


class LazyHeap(Generic[K, T]):
    """Entries ``(key, number, item)``, the smallest first.

    The number orders entries with equal keys, so that items are never compared.
    """

    __slots__ = ("_limit", "_reported", "_serial", "_stale", "entries", "holds")

    def __init__(self, holds: Callable[[tuple[K, int, T]], bool], *, reported: bool = False) -> None:
        """``holds(entry)``: whether an entry is still true."""
        self.holds = holds
        self.entries: list[tuple[K, int, T]] = []
        self._reported = reported
        self._limit = maxsize if reported else MIN_STALE  # entries; with one more they are cleared
        self._stale = 0  # reported since the last clearing
        self._serial = 0

    def __len__(self) -> int:
        """How many entries there are, stale ones included."""
        return len(self.entries)

    def add(self, key: K, item: T) -> None:
        """Enter an item behind those with the same key."""
        self._serial += 1
        entries = self.entries
        heappush(entries, (key, self._serial, item))
        if len(entries) > self._limit:
            self._clear()

    def push(self, key: K, number: int, item: T) -> None:
        """Enter an item with a number of the caller's: an order among equal keys, or a mark for ``holds``.
        A heap is filled by `push` alone, or by `add` alone."""
        entries = self.entries
        heappush(entries, (key, number, item))
        if len(entries) > self._limit:
            self._clear()

    def forget(self) -> None:
        """One entry of a heap with ``reported=True`` has become stale."""
        self._stale += 1
        if self._stale > MIN_STALE and self._stale * 2 > len(self.entries):
            self._clear()

    def _clear(self) -> None:
        self.replace([entry for entry in self.entries if self.holds(entry)])

    def replace(self, entries: Iterable[tuple[K, int, T]]) -> None:
        """Have these entries and no others."""
        self.entries = list(entries)
        heapify(self.entries)
        self._stale = 0
        if not self._reported:
            self._limit = 2 * len(self.entries) + MIN_STALE

    def first(self) -> tuple[K, int, T] | None:
        """The smallest entry that is true; it stays."""
        entries = self.entries
        while entries:
            if self.holds(entries[0]):
                return entries[0]
            heappop(entries)
        return None

    def pop_due(self, now: K) -> tuple[K, int, T] | None:
        """Take the smallest entry if its key is at most ``now``.

        It may be stale: a caller whose work is bounded counts those, too, and then asks `holds`.
        """
        entries = self.entries
        return heappop(entries) if entries and entries[0][0] <= now else None
