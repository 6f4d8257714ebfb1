"""A heap whose entries may become stale.  Plain data without rules.

A heap returns its smallest entry cheaply, but cannot find one in its middle.  So when a delay is cancelled or
a parked pull is answered, its entry stays and becomes *stale*. The owner of the heap passes a function that
tells which entries still hold; stale ones are skipped when they reach the top.

Many would not get there for a long time: a pull parked for a minute is answered within milliseconds.  So
stale entries are removed once they may be the majority.  There are two ways to detect that:

- By growth (the default).  After a cleanup that leaves n true entries, the next one runs when there are more
  than ``2 n + MIN_STALE``.  Nothing has to be reported, so no report can be forgotten.
- By report (``reported=True``).  Code that makes an entry stale calls `forget`; the heap is cleaned up when
  more than half of its entries, and more than ``MIN_STALE``, have been reported.  Such a heap does no work
  while it only grows, and shrinks even if nothing is added.  Reports of entries that have since left by the
  top cause an early cleanup, which costs time but changes nothing else.

Either way a cleanup of n entries follows about n / 2 pushes or reports, so each of these costs O(log n),
amortized, and the heap holds at most about two entries for each true one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from sys import maxsize
from typing import Any, Generic, TypeVar

MIN_STALE = 64  # entries; below that, skipping is cheaper than a cleanup

K = TypeVar("K", bound=Any)  # the order of the heap: a time in epoch ms, or a tuple
T = TypeVar("T")


class LazyHeap(Generic[K, T]):
    """Entries ``(key, number, item)``, smallest first.

    The number orders entries with equal keys, so items are never compared.
    """

    __slots__ = ("_limit", "_reported", "_serial", "_stale", "entries", "is_current")

    def __init__(self, is_current: Callable[[tuple[K, int, T]], bool], *, reported: bool = False) -> None:
        """``is_current(entry)``: whether an entry is still true."""
        self.is_current = is_current
        self.entries: list[tuple[K, int, T]] = []
        self._reported = reported
        self._limit = maxsize if reported else MIN_STALE  # entries; one more triggers a cleanup
        self._stale = 0  # reported since the last cleanup
        self._serial = 0

    def __len__(self) -> int:
        """The number of entries, including stale ones."""
        return len(self.entries)

    def add(self, key: K, item: T) -> None:
        """Add an item behind those with the same key."""
        self._serial += 1
        entries = self.entries
        heappush(entries, (key, self._serial, item))
        if len(entries) > self._limit:
            self._clear()

    def push(self, key: K, number: int, item: T) -> None:
        """Add an item with a number given by the caller: an order among equal keys, or a mark for
        ``is_current``.  A heap is filled with `push` only, or with `add` only."""
        entries = self.entries
        heappush(entries, (key, number, item))
        if len(entries) > self._limit:
            self._clear()

    def forget(self) -> None:
        """Report that one entry of a heap with ``reported=True`` has become stale."""
        self._stale += 1
        if self._stale > MIN_STALE and self._stale * 2 > len(self.entries):
            self._clear()

    def _clear(self) -> None:
        self.replace([entry for entry in self.entries if self.is_current(entry)])

    def replace(self, entries: Iterable[tuple[K, int, T]]) -> None:
        """Replace all entries."""
        self.entries = list(entries)
        heapify(self.entries)
        self._stale = 0
        if not self._reported:
            self._limit = 2 * len(self.entries) + MIN_STALE

    def first(self) -> tuple[K, int, T] | None:
        """The smallest entry that is true; it stays in the heap."""
        entries = self.entries
        while entries:
            if self.is_current(entries[0]):
                return entries[0]
            heappop(entries)
        return None

    def pop_due(self, now: K) -> tuple[K, int, T] | None:
        """Take the smallest entry if its key is at most ``now``.

        It may be stale: a caller with bounded work counts stale entries as well, and then calls `is_current`.
        """
        entries = self.entries
        return heappop(entries) if entries and entries[0][0] <= now else None
