"""The archive's part in searches: see `shardproc.engine.criteria.Searches`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from bunqueue.protocol.search.conditions import Condition
from shardproc.engine.criteria import Criteria, Finding

from ..damage import DAMAGE, Damage, is_damage
from ..repair.walking import walk
from . import conditions as sql
from .blocks import Ranges, ranges
from .index import SearchIndex


class Reader:
    """Searches in one file."""

    def __init__(self, db: sqlite3.Connection, index: SearchIndex, see: Callable[[], None]) -> None:
        """``see`` writes what the batch has collected so far."""
        self._db, self._index, self._see = db, index, see

    def first_seq(self) -> int:
        self._see()
        return int(self._db.execute("select coalesce(min(seq), 0) from jobs").fetchone()[0])

    def ranges(self, conditions: Sequence[Condition], first: int, last: int) -> Ranges:
        self._see()
        if self._index.is_broken:
            return [(first, last)]
        return ranges(self._db, conditions, first, last)

    def find(self, criteria: Criteria, first: int, last: int) -> list[Finding]:
        self._see()
        return sql.Search(criteria).read(self._db, first, last)

    def created_before(self, seq: int) -> int:
        query = "select created_at from jobs where seq <= ? order by seq desc limit 1"
        row = self._db.execute(query, (seq,)).fetchone()
        return 0 if row is None else int(row[0])

    def unreadable(self, first: int, last: int) -> int:
        return 0


class CarefulReader(Reader):
    """Reads around damage."""

    def __init__(
        self,
        db: sqlite3.Connection,
        index: SearchIndex,
        see: Callable[[], None],
        damage: Damage,
        table_of: Callable[[int], str],
    ) -> None:
        """``table_of``: the table where a job cannot be read."""
        super().__init__(db, index, see)
        self._damage, self._table_of = damage, table_of

    def first_seq(self) -> int:
        try:
            return super().first_seq()
        except DAMAGE as error:
            self._damage.met("jobs", error)
            return 0

    def ranges(self, conditions: Sequence[Condition], first: int, last: int) -> Ranges:
        try:
            return super().ranges(conditions, first, last)
        except DAMAGE as error:
            self._damage.met("search_blocks", error)
            return [(first, last)]

    def find(self, criteria: Criteria, first: int, last: int) -> list[Finding]:
        try:
            return super().find(criteria, first, last)
        except DAMAGE as error:
            if not is_damage(error):
                raise
            problem = error
        read = sql.Search(criteria).read

        def bad(seq: int) -> None:
            self._damage.met(self._table_of(seq), problem, seq)

        return [Finding(*row) for row in walk(lambda low, high: read(self._db, low, high), first, last, bad)]

    def created_before(self, seq: int) -> int:
        try:
            return super().created_before(seq)
        except DAMAGE as error:
            self._damage.met("jobs", error)
            return 0

    def unreadable(self, first: int, last: int) -> int:
        return sum(first <= seq <= last for seq in self._damage.seqs)
