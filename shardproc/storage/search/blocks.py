"""The blocks that may contain jobs which meet some conditions, according to the blocks' summaries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from math import ceil, floor
from typing import Any

from bunqueue.protocol.search.conditions import AT_LEAST, EQUAL, LESS, MORE, Condition

from .index import BITS, GROUP, NAME, TAG, word

WORDS = {"name": NAME, "tag": TAG, "group": GROUP}

Ranges = list[tuple[int, int]]


def ranges(db: sqlite3.Connection, conditions: Sequence[Condition], first: int, last: int) -> Ranges:
    """Ascending ranges of numbers within these bounds; outside of them no job meets all conditions."""
    tests, parameters = _of_blocks(conditions)
    if not tests or first > last:
        return [(first, last)] if first <= last else []
    low, high = first >> BITS, last >> BITS
    known = {block for (block,) in db.execute(_KNOWN, (low, high))}
    query = f"{_KNOWN} and {' and '.join(tests)}"
    found = {block for (block,) in db.execute(query, (low, high, *parameters))}
    blocks = sorted(found | (set(range(low, high + 1)) - known))
    return _clipped(_runs(blocks), first, last)


_KNOWN = "select block from search_blocks where block between ? and ?"
_FINISHES = "block in (select block from search_finishes where since <= ? and until >= ?)"


def _of_blocks(conditions: Sequence[Condition]) -> tuple[list[str], list[Any]]:
    """Tests of the row of a block, and their parameters."""
    tests: list[str] = []
    parameters: list[Any] = []
    for condition in conditions:
        kind = WORDS.get(condition.field)
        if kind is not None and condition.comparison == EQUAL:
            words = [word(kind, value) for value in condition.values]
            tests.append(f"(words is null or {' or '.join(['instr(words, ?)'] * len(words))})")
            parameters += words
    created = _span(conditions, "created")
    if created is not None:
        tests.append("since <= ? and until >= ?")
        parameters += [created[1], created[0]]
    finished = _span(conditions, "finished")
    if finished is not None:
        tests.append(_FINISHES)
        parameters += [finished[1], finished[0]]
    return tests, parameters


def _span(conditions: Sequence[Condition], field: str) -> tuple[int, int] | None:
    """The earliest and the latest value that a time may have; stored times are whole numbers."""
    low, high = -(2**62), 2**62
    mine = [condition for condition in conditions if condition.field == field]
    for condition in mine:
        value = condition.values[0]
        if condition.comparison == MORE:
            low = max(low, floor(value) + 1)
        elif condition.comparison == AT_LEAST:
            low = max(low, ceil(value))
        elif condition.comparison == LESS:
            high = min(high, ceil(value) - 1)
        else:
            high = min(high, floor(value))
    return (low, high) if mine else None


def _runs(blocks: Sequence[int]) -> Ranges:
    found: Ranges = []
    for block in blocks:
        if found and found[-1][1] == block - 1:
            found[-1] = (found[-1][0], block)
        else:
            found.append((block, block))
    return [(low << BITS, ((high + 1) << BITS) - 1) for low, high in found]


def _clipped(found: Ranges, first: int, last: int) -> Ranges:
    return [(max(low, first), min(high, last)) for low, high in found]
