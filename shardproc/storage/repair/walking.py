"""Reading a table around its damaged pages.

A scan ends at the first damaged page. Rows after it can still be found by key, so from that point the table
is read in blocks, and a block that fails is halved until single keys remain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..damage import DAMAGE, is_damage

Row = tuple[Any, ...]
Read = Callable[[int, int], Iterable[Row]]
"""The rows with keys from the first number to the second, in ascending order."""

BLOCK = 1024  # keys: more than a page contains, and few enough that a block is quickly halved


def walk(
    read: Read, low: int, high: int, bad: Callable[[int], None], *, repeated: bool = False
) -> Iterator[Row]:
    """All rows that can be read, in ascending order of their first column; ``bad`` is called with each key
    whose row cannot be read. ``repeated``: a key has several rows, and some may come twice."""
    step = 0 if repeated else 1
    while low <= high:
        try:
            for row in read(low, high):
                low = max(low, row[0] + step)
                yield row
        except DAMAGE as error:
            if not is_damage(error):
                raise
            end = min(high, low + BLOCK - 1)
            yield from _block(read, low, end, bad)
            low = end + 1
        else:
            return


def walk_back(read: Read, low: int, high: int, bad: Callable[[int], None]) -> Iterator[Row]:
    """The same from the last row to the first, in blocks from the start."""
    while low <= high:
        start = max(low, high - BLOCK + 1)
        yield from reversed(list(_block(read, start, high, bad)))
        high = start - 1


def _block(read: Read, low: int, high: int, bad: Callable[[int], None]) -> Iterator[Row]:
    rows: list[Row] = []
    try:
        for row in read(low, high):
            rows.append(row)  # noqa: PERF402 - what comes before an error is kept
    except DAMAGE as error:
        if not is_damage(error):
            raise
        if low == high:
            yield from rows
            bad(low)
            return
        middle = (low + high) // 2
        yield from _block(read, low, middle, bad)
        yield from _block(read, middle + 1, high, bad)
    else:
        yield from rows


def by_number(db: sqlite3.Connection, query: str, *first: Any) -> Read:
    """`Read` for a query that ends with "between ? and ?", after parameters of its own. A single key is
    looked up without reading the next one, which may be in a damaged page."""
    single = query.replace("between ? and ?", "= ?")

    def read(low: int, high: int) -> Iterable[Row]:
        if low == high:
            return db.execute(single, (*first, low))
        return db.execute(query, (*first, low, high))

    return read
