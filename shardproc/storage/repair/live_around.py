"""The live jobs of a file with unreadable rows, and which of the unreadable jobs may have been live.

The outcome of a job shows whether it has ended; if it cannot be read, the event log does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from msgspec import MsgspecError

from bunqueue.model import events
from bunqueue.model.ids import seq_of_id
from bunqueue.model.job import Job

from .. import rows
from ..damage import DAMAGE, is_damage
from ..event_log import decode
from .walking import by_number, walk

_JOB = f"select {rows.JOB_COLUMNS} from jobs where seq between ? and ? order by seq"
_LOCK = """select token, owner, ttl, started_at, conn, progress, progress_message, renewed, until
           from locks where seq = ?"""
_OUTCOMES = (
    "select 1 from dead_letters where seq = :seq",
    "select 1 from completed where queue_id = :queue and seq = :seq",
)
_ENDED = {events.COMPLETED, events.REMOVED, events.DISCARDED, events.DROPPED}
_GONE = {events.REMOVED, events.DROPPED}
_UNTOLD = {events.DUPLICATED}  # says nothing about the state of its job


class Found(NamedTuple):
    """What could be read."""

    jobs: list[Job]
    lost: list[int]  # numbers of jobs that may be live, but cannot be read whole


class Fates:
    """What the event log says about some jobs."""

    def __init__(
        self, db: sqlite3.Connection, wanted: set[int], log: sqlite3.Connection | None = None
    ) -> None:
        """``log``: where the event log is, if that is another file."""
        self.ended: dict[int, bool] = {}  # by number: whether its last known event was its end
        self.gone: set[int] = set()  # nothing is left of these
        self.ids: dict[int, str] = {}
        self.whole = True  # the log reaches back to the first job, and could be read
        self._wanted = wanted
        self._numbers = self._own_ids(db)
        self._read(log or db)

    def may_live(self, seq: int) -> bool:
        """Whether a job whose outcome cannot be read counts as live."""
        return not self.ended.get(seq, self.whole)

    def _own_ids(self, db: sqlite3.Connection) -> dict[str, int]:
        try:
            found = dict(db.execute("select id, seq from jobs where own_id = 1"))
        except DAMAGE:
            self.whole = False
            return {}
        self.ids = {seq: job_id for job_id, seq in found.items() if seq in self._wanted}
        return found

    def _read(self, db: sqlite3.Connection) -> None:
        first, last = None, 0
        try:
            first = db.execute("select min(first_seq) from events").fetchone()[0]
            last = db.execute("select max(first_seq) from events").fetchone()[0] or 0
        except DAMAGE:
            self.whole = False
        self.whole = self.whole and first == 1
        query = "select first_seq, payload from events where first_seq between ? and ? order by first_seq"
        for _, payload in walk(by_number(db, query), 1, last, self._gap):
            try:
                for entry in decode(payload):
                    if entry is None:
                        self.whole = False
                    else:
                        self._take(*entry)
            except (MsgspecError, TypeError, ValueError):
                self.whole = False

    def _gap(self, number: int) -> None:
        self.whole = False

    def _take(self, kind: int, queue_id: int, job_id: str, more: Mapping[str, object] | None = None) -> None:
        fields = more or {}
        if kind == events.PURGED:
            numbers = fields.get("seqs")
            for seq in numbers if isinstance(numbers, list) else ():
                self._end(seq)
            return
        seq = self._numbers.get(job_id)
        seq = seq_of_id(job_id) if seq is None else seq
        if seq in self._wanted and kind not in _UNTOLD:
            self.ids[seq] = job_id
            if kind in _GONE:
                self.gone.add(seq)
            self.ended[seq] = kind in _ENDED or (kind == events.FAILED and bool(fields.get("terminal")))

    def _end(self, seq: int) -> None:
        if seq in self._wanted:
            self.ended[seq] = True
            self.gone.add(seq)


def live_around(
    db: sqlite3.Connection,
    first: int,
    live_from: int,
    queues: Mapping[int, str],
    met: Callable[[str, Exception, int | None], None],
) -> Found:
    """The live jobs with numbers of ``first`` and above; ``met`` is called with what cannot be read."""
    reader = _Reader(db, dict(queues), met)
    for row in reader.candidates(first, live_from):
        reader.classify(row)
    fates = Fates(db, reader.unknown | set(reader.bad))
    for seq, row in reader.doubtful.items():
        if fates.ended.get(seq) is False:
            reader.add(row)
    known = {job.seq for job in reader.jobs}
    lost = {seq for seq in (*reader.bad, *reader.unknown) if fates.may_live(seq)} - known
    return Found(sorted(reader.jobs, key=attrgetter("seq")), sorted(lost))


class _Reader:
    def __init__(
        self,
        db: sqlite3.Connection,
        queues: dict[int, str],
        met: Callable[[str, Exception, int | None], None],
    ) -> None:
        self._db, self._queues, self._met = db, queues, met
        self.jobs: list[Job] = []
        self.bad: list[int] = []  # the row cannot be read
        self.unknown: set[int] = set()  # the outcome or the lock cannot be read
        self.doubtful: dict[int, rows.Row] = {}  # only the outcome cannot be read

    def candidates(self, first: int, live_from: int) -> Iterator[rows.Row]:
        """Rows of jobs that may be live."""
        last = self._db.execute("select max(seq) from jobs").fetchone()[0] or 0
        read = by_number(self._db, _JOB)
        query = "select seq from stragglers where seq between ? and ? order by seq"
        for (seq,) in walk(by_number(self._db, query), first, live_from - 1, self._missed):
            yield from walk(read, seq, seq, self._unreadable)
        yield from walk(read, max(first, live_from), last, self._unreadable)

    def _missed(self, seq: int) -> None:
        self.unknown.add(seq)

    def _unreadable(self, seq: int) -> None:
        if not any(self._ended(seq, queue_id) for queue_id in self._queues):
            self.bad.append(seq)

    def _ended(self, seq: int, queue_id: int) -> bool:
        try:
            return any(
                self._db.execute(query, {"seq": seq, "queue": queue_id}).fetchone() for query in _OUTCOMES
            )
        except DAMAGE as error:
            if not is_damage(error):
                raise
            return False

    def classify(self, row: rows.Row) -> None:
        """Decide whether a job is live, and add it if it is."""
        seq = row[0]
        try:
            where = {"seq": seq, "queue": row[2]}
            ended = any(self._db.execute(query, where).fetchone() for query in _OUTCOMES)
        except DAMAGE as error:
            self._met("completed", error, None)
            self.unknown.add(seq)
            self.doubtful[seq] = row
        else:
            if not ended:
                self.add(row)

    def add(self, row: rows.Row) -> None:
        """Add a job as live."""
        table = "locks"
        try:
            lock = self._db.execute(_LOCK, (row[0],)).fetchone() or (None,) * 9
            table = "jobs"
            self.jobs.append(rows.live_job((*row, *lock), self._queues))
        except DAMAGE as error:
            self._met(table, error, row[0])
            self.unknown.add(row[0])
