"""Maintains the tables for searches.

While jobs are stored, the words of their block are collected in memory, at some ten nanoseconds per job; once
its last number is used, they are written as one row. Finishes are recorded with their batch, once per block
and second. A block whose words were not collected, because the process ended in between or a reshard made the
file, is read and summarized in the background, one block at a time.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder

from bunqueue.model.job import Job, JobOptions

from .. import rows, statements

BITS = 10  # a block has 1024 numbers
MAX_WORDS = 16_384  # of a block; every search reads a block with more
SPAN_MS = 60_000  # the longest span of one row of finishes
ROUND_MS = 1_000  # a row may record finishes this much later than they happened, so it is written rarely
MAX_SPANS = 10_000  # remembered; for a span that was forgotten, another row is begun
SWEPT = 200  # blocks checked at once for whether they still have jobs; some 1 ms
SWEEP_MS = 1_000

NAME, TAG, GROUP = b"n", b"t", b"g"

_ALL_BLOCKS = "select block, words from search_blocks"
_ALL_FINISHES = "select until from search_finishes"
_NAMES = "select distinct name from jobs where seq between :first and :last"
_TIMES = "select min(created_at), max(created_at) from jobs where seq between :first and :last"
_OPTIONS = "select distinct options from jobs where seq between :first and :last and options is not null"
_EXTRAS = "select extra from jobs where seq between :first and :last and extra is not null"
KEY = "search"  # in meta: why the tables cannot be used
_BROKEN = "select 1 from meta where key = ?"
_BEGUN = "select 1 from jobs where seq >= ? limit 1"
_BLOCK = "select since, until, words from search_blocks where block = ?"


Write = tuple[str, Any]  # a statement, and its parameters
_name = itemgetter(3)  # in a row of INSERT_FRESH


class _Grouped(Struct, rename="camel"):
    """The part of `bunqueue.model.job.Extra` that is read here."""

    group_id: str | None = None


_decode_options = Decoder(JobOptions).decode
_decode_extra = Decoder(_Grouped).decode


def tags_of(options: bytes) -> tuple[str, ...]:
    """The tags in a stored value of options."""
    return _decode_options(options).tags


def group_of(extra: bytes) -> str | None:
    """The group in a stored value of `Extra`."""
    return _decode_extra(extra).group_id


def word(kind: bytes, text: str) -> bytes:
    """A hash of a name, a tag or a group; others may have the same one."""
    return zlib.crc32(kind + text.encode("utf-8", "surrogatepass")).to_bytes(4, "big")


class _Block:
    """What has been collected about a block."""

    __slots__ = ("groups", "names", "since", "tags", "until")

    def __init__(self, now: int) -> None:
        self.names: set[str] = set()
        self.tags: set[str] = set()
        self.groups: set[str] = set()
        self.since = self.until = now

    def add(self, job: Job) -> None:
        self.names.add(job.name)
        self.tags.update(job.options.tags)
        if job.extra is not None and job.extra.group_id is not None:
            self.groups.add(job.extra.group_id)
        self.since, self.until = min(self.since, job.created_at), max(self.until, job.created_at)

    def words(self) -> set[bytes]:
        found = {word(NAME, name) for name in self.names}
        found.update(word(TAG, tag) for tag in self.tags)
        found.update(word(GROUP, group) for group in self.groups)
        return found


class SearchIndex:
    """The search tables of one file. What it writes is part of the caller's transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.is_broken = False  # the tables are incomplete, so they must not be used
        self.on_damage: Callable[[Exception], None] = _raise
        """Called with an error of its tables; may raise it again."""
        self._stored = 0  # all jobs with smaller numbers are in the file
        self._first = 0  # the first block that is collected from its start
        self._open: dict[int, _Block] = {}
        self._left: list[int] = []  # blocks still to read, the first one last
        self._spans: dict[int, tuple[int, int]] = {}
        self._swept = self._next_sweep = 0
        self._removed = False  # jobs were removed since the last sweep began
        self._rebuilds = False  # rows of blocks were forgotten
        self._known: set[int] = set()  # blocks that have a summary; only for `recover`
        self._problem = ""  # the tables cannot be read

    def check(self) -> None:
        """Read all of both tables, outside of a transaction: a batch that met one of their damaged pages
        could not be committed."""
        try:
            for _ in self._db.execute(_ALL_FINISHES):
                pass
            self._known = {block for block, _ in self._db.execute(_ALL_BLOCKS)}
        except sqlite3.DatabaseError as error:
            self.on_damage(error)
            self._known, self._problem = set(), str(error)

    def recover(self, next_seq: int) -> list[Write]:
        """Find the blocks that need a summary, after `check`; returns writes to make at once."""
        self._stored, self._first = next_seq, next_seq >> BITS
        self._first += self._db.execute(_BEGUN, (self._first << BITS,)).fetchone() is not None
        self._rebuilds = False
        self._open.clear()
        self.is_broken = self._db.execute(_BROKEN, (KEY,)).fetchone() is not None
        breaks = bool(self._problem) and not self.is_broken
        self.is_broken = self.is_broken or breaks
        first = self._db.execute("select min(seq) from jobs").fetchone()[0]
        if first is not None:
            known = self._known
            self._left = [block for block in range(first >> BITS, next_seq >> BITS) if block not in known]
            self._removed = True
        self._known = set()
        return [(statements.PUT_META, (KEY, self._problem))] if breaks else []

    # -- with each batch

    def _write(self, sql: str, row: tuple[object, ...]) -> None:
        if not self.is_broken:
            self._db.execute(sql, row)

    def stored(self, found: Sequence[rows.Row], next_seq: int, now: int) -> None:
        """Ordinary jobs, created ``now``, were stored: rows of INSERT_FRESH or INSERT_NAMED. Their numbers
        are below ``next_seq``, and above those of earlier batches."""
        block = self._stored >> BITS
        if (next_seq - 1) >> BITS == block:
            if block >= self._first:
                self._block(block, now).names.update(map(_name, found))
            return
        for row in found:
            block = row[0] >> BITS
            if block >= self._first:
                self._block(block, now).names.add(row[3])

    def stored_other(self, job: Job, now: int) -> None:
        """Any other job was stored, perhaps long after it got its number."""
        block = job.seq >> BITS
        if block in self._open or (block >= self._first and block >= self._stored >> BITS):
            self._block(block, now).add(job)
        elif job.seq < self._stored:
            self._amend(block, job)

    def _block(self, number: int, now: int) -> _Block:
        block = self._open.get(number)
        if block is None:
            block = self._open[number] = _Block(now)
        block.until = max(block.until, now)
        return block

    def _amend(self, block: int, job: Job) -> None:
        """Add a job to the stored summary of its block, if there is one."""
        row = None if self.is_broken else self._db.execute(_BLOCK, (block,)).fetchone()
        if row is not None:
            since, until, words = row
            if words is not None:
                other = _Block(job.created_at)
                other.add(job)
                words = _joined({words[at : at + 4] for at in range(0, len(words), 4)} | other.words())
            row = (block, min(since, job.created_at), max(until, job.created_at), words)
            self._write(statements.PUT_BLOCK, row)

    def wrote(self, next_seq: int) -> None:
        """All jobs below that number are stored: write what was collected about complete blocks."""
        block, end = self._stored >> BITS, next_seq >> BITS
        self._stored = next_seq
        if block == end:
            return
        for number in range(block, end):
            found = self._open.pop(number, None)
            if found is not None:
                row = (number, found.since, found.until, _joined(found.words()))
                self._write(statements.PUT_BLOCK, row)
            elif number < self._first:
                self._left.append(number)

    def ended(self, runs: Sequence[tuple[int, int]], now: int) -> None:
        """Jobs with these numbers finished, given as ranges (first, last)."""
        blocks = {first >> BITS for first, _ in runs}
        for first, last in runs:
            if last >> BITS != first >> BITS:
                blocks.update(range(first >> BITS, (last >> BITS) + 1))
        spans = self._spans
        for block in blocks:
            span = spans.get(block)
            if span is None or not span[0] <= now <= span[1]:
                self._extend(block, span, now)

    def _extend(self, block: int, span: tuple[int, int] | None, now: int) -> None:
        if span is None or not span[0] <= now < span[0] + SPAN_MS:
            span = (now, now)
            if len(self._spans) >= MAX_SPANS:
                self._spans.clear()
        self._spans[block] = span = (span[0], now + ROUND_MS)
        self._write(statements.PUT_FINISHES, (block, *span))

    def removed(self) -> None:
        """Jobs were removed."""
        self._removed = True

    # -- in the background

    def has_work(self, now: int) -> bool:
        """Whether `next_writes` has something to do."""
        due = self._removed and now >= self._next_sweep
        return not self.is_broken and (bool(self._left) or due or self._rebuilds)

    def next_writes(self, now: int) -> list[Write]:
        """Summarize one of the remaining blocks, or check whether some are empty; returns the writes for
        that. It takes less than 1 ms. Call it outside of a transaction, which could not be committed if what
        is read is damaged."""
        if self._rebuilds:
            self.check()
            return self.recover(self._stored)
        return self._sum_up(self._left.pop()) if self._left else self._sweep(now)

    def _sum_up(self, block: int) -> list[Write]:
        numbers = {"first": block << BITS, "last": ((block + 1) << BITS) - 1}
        words = {word(NAME, name) for (name,) in self._db.execute(_NAMES, numbers)}
        if not words:
            return []
        found = self._db.execute(_OPTIONS, numbers)
        words |= {word(TAG, tag) for (options,) in found for tag in tags_of(options)}
        groups = {group_of(extra) for (extra,) in self._db.execute(_EXTRAS, numbers)}
        words |= {word(GROUP, group) for group in groups if group is not None}
        since, until = self._db.execute(_TIMES, numbers).fetchone()
        self._spans.pop(block, None)  # a row of its own may replace this one
        return [
            (statements.FIND_FINISHES, {"block": block, **numbers}),
            (statements.PUT_BLOCK, (block, since, until, _joined(words))),
        ]

    def _sweep(self, now: int) -> list[Write]:
        self._next_sweep = now + SWEEP_MS
        if self._swept == 0:
            self._removed = False
        last = self._swept + SWEPT - 1
        blocks = {"first": self._swept, "last": last, "size": 1 << BITS}
        self._swept = 0 if last >= self._stored >> BITS else last + 1
        self._removed = self._removed or self._swept > 0
        drops = (statements.DROP_BLOCKS, statements.DROP_FINISHES)
        return [
            (drop, blocks) for drop in drops if self._db.execute(_remaining_query(drop), blocks).fetchone()
        ]

    # -- when the clock was wrong

    def rebuild_soon(self) -> None:
        """Pending writes were lost."""
        self._rebuilds = True

    def forget(self, now: int) -> None:
        """Forget everything about times after ``now``: they were shifted back."""
        self._db.execute(statements.FORGET_BLOCKS, {"now": now})
        self._db.execute(statements.FORGET_FINISHES, {"now": now})
        self._spans.clear()
        self._rebuilds = True


def _remaining_query(drop: str) -> str:
    """The query for what a statement deletes."""
    return f"{drop.replace('delete', 'select block', 1)} limit 1"


def _raise(error: Exception) -> None:
    raise error


def _joined(words: set[bytes]) -> bytes | None:
    return b"".join(sorted(words)) if len(words) <= MAX_WORDS else None
