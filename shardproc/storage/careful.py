"""A store that reads around damage.

Each read is first made as `Store` makes it. If that meets damage, it is made again piece by piece: unreadable
rows are marked and left out, and everything else is found. A command for a single job that cannot be read is
refused for that reason.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from msgspec import MsgspecError

from bunqueue.logs import get_logger
from bunqueue.model.ids import seq_of_id
from bunqueue.model.job import COMPLETED, FAILED, Job
from shardproc.engine.engine import Engine
from shardproc.engine.outbox import (
    Attempt,
    DeadLetter,
    Expired,
    Finished,
    LogEntry,
    LogRow,
    OldLetter,
    Outbox,
    Outdated,
    PushedEntry,
    Trim,
    UnreadableJob,
)

from . import rows
from .damage import DAMAGE, Damage, ShardDamaged, Unreadable, Unstorable, is_damage
from .database import Database, Writer, disk_problem
from .event_log import DEFAULT_RETENTION, EventLog, Retention, decode
from .finished_jobs import MAX_SEQ
from .repair.live_around import live_around
from .repair.unreadable_job import unreadable_job
from .repair.walking import by_number, walk, walk_back
from .schema import OF_JOBS, Table
from .search.reader import CarefulReader
from .store import Store

T = TypeVar("T")

_log = get_logger("shard")

_STATES = tuple(table for table in OF_JOBS[1:] if table.is_single and not table.is_rare)
"""A job is read from its own row, and from its rows in these tables."""
_EVENTS = (
    "select first_seq, at, count, payload from events where first_seq between ? and ? order by first_seq"
)
_COMPLETED = """select seq, finished_at from completed
                where queue_id = ? and seq between ? and ? order by seq"""
_LETTERS_OF = "select seq, queue_id from dead_letters where seq between ? and ? order by seq"


class CarefulStore(Store):
    """See above. While nothing is damaged it costs a test of an empty map."""

    def __init__(self, database: Database, retention: Retention = DEFAULT_RETENTION) -> None:
        super().__init__(database, retention)
        self.damage: Damage = database.damage
        self._events = _CarefulLog(self._db, retention, self._writer, self.damage)
        self._search.on_damage = lambda error: self.damage.met("search_finishes", error)
        self.searches = CarefulReader(self._db, self._search, self._see, self.damage, self._table_of)
        self._quiet_until = 0  # the event log is not trimmed until then

    def recheck_damage(self) -> None:
        """Check whether what was damaged still is. Call it between two transactions."""
        if self.damage and not self.is_writing and self.damage.has_passed(self._db):
            self._quiet_until = 0

    # -- recovery -----------------------------------------------------------------------------

    def recover(
        self, engine: Engine, now: int, epoch: str, progress: Callable[[int, int], None], *, believed: int
    ) -> int:
        """Raises ShardDamaged when what a shard needs cannot be read."""
        try:
            self.damage.recover(self._db)
            return super().recover(engine, now, epoch, progress, believed=believed)
        except (sqlite3.DatabaseError, MsgspecError) as error:
            if disk_problem(error) == "full":  # not damage: there is a reserve
                raise
            table = self._damaged_table()
            self.damage.met(table, error)
            raise ShardDamaged(self.damage.text(table)) from error

    def _live_jobs(self, progress: Callable[[int, int], None]) -> Iterator[Job]:
        last = 0
        try:
            for job in super()._live_jobs(progress):
                last = job.seq
                if last not in self.damage.seqs:
                    yield job
        except DAMAGE as error:
            self.damage.met("jobs", error)
        else:
            return
        found = live_around(self._db, last + 1, self._journal.live_from, self._queue_names, self.damage.met)
        if found.lost:
            self._lose(found.lost)
        yield from (job for job in found.jobs if job.seq not in self.damage.seqs)

    def _lose(self, lost: list[int]) -> None:
        """Jobs that may be live cannot be read. Raises ShardDamaged unless that is accepted."""
        text = f"{len(lost):,} jobs that may not have finished cannot be read; {self.damage.text('jobs')}"
        if not self.damage.serve:
            raise ShardDamaged(f"{text}; --damaged-shard serve leaves them out until then")
        self.damage.seqs.update(dict.fromkeys(lost, "jobs"))
        _log.error("serving without jobs that cannot be read", jobs=len(lost), error=text)

    # -- one job ------------------------------------------------------------------------------

    def find(self, job_id: str) -> Job | None:
        seq = seq_of_id(job_id)
        if seq in self.damage.seqs:
            raise self.damage.unreadable(self.damage.seqs[seq])
        try:
            return super().find(job_id)
        except DAMAGE as error:
            raise self._unreadable(error, seq) from error

    def known(self, job_id: str) -> Job | None:
        try:
            return self.find(job_id)
        except Unreadable:
            return None

    def record(self, kind: str, key: str) -> str | None:
        try:
            return super().record(kind, key)
        except DAMAGE as error:
            self.damage.met("records", error)
            return None

    def _unreadable(self, error: Exception, seq: int | None) -> Exception:
        table = "jobs" if seq is None else self._table_of(seq)
        self.damage.met(table, error, seq)
        return self.damage.unreadable(table)

    def _table_of(self, seq: int) -> str:
        """The table in which a job cannot be read."""
        for table in _STATES:
            query = _rows_of(table, "in (select id from queues)")
            try:
                self._db.execute(query, {"seq": seq}).fetchall()
            except DAMAGE:
                return table.name
        return "jobs"

    def log(self, seq: int) -> list[LogEntry]:
        with self._telling("job_logs"):
            return super().log(seq)

    def _guard(self, table: str) -> AbstractContextManager[None]:
        return self._telling(table)

    @contextmanager
    def _telling(self, table: str) -> Iterator[None]:
        """Report damage found within to the caller."""
        try:
            yield
        except DAMAGE as error:
            self.damage.met(table, error)
            raise self.damage.unreadable(table) from error

    # -- several ------------------------------------------------------------------------------

    def load(self, seqs: list[int]) -> dict[int, Job]:
        return self._each(seqs, super().load)

    def unreadable(self, seqs: list[int]) -> dict[int, UnreadableJob]:
        found = {seq: self.damage.seqs[seq] for seq in seqs if seq in self.damage.seqs}
        return {seq: unreadable_job(self._db, seq, self.damage.text(table)) for seq, table in found.items()}

    def problem(self) -> str | None:
        return self.damage.text() if self.damage else None

    def own_ids(self, seqs: list[int]) -> dict[int, str]:
        return self._each(seqs, super().own_ids, "jobs")

    def children_among(self, seqs: list[int]) -> dict[int, str]:
        return self._each(seqs, super().children_among, "jobs")

    def attempts(self, seqs: list[int], interrupted: bool = False) -> dict[int, list[Attempt]]:
        read = super().attempts
        return self._each(seqs, lambda some: read(some, interrupted), "attempts")

    def matching(self, seqs: list[int], name: str | None, error: str | None) -> set[int]:
        read = super().matching
        return set(self._each(seqs, lambda some: dict.fromkeys(read(some, name, error), True)))

    def errors_of(self, seqs: list[int]) -> dict[int, tuple[str | None, str | None]]:
        return self._each(seqs, super().errors_of)

    def _each(
        self, seqs: list[int], read: Callable[[list[int]], dict[int, T]], table: str | None = None
    ) -> dict[int, T]:
        """The result of ``read`` for these jobs, without those that cannot be read. ``table``: the one that
        it reads; a job is not lost when it is unreadable there."""
        seqs = seqs if table else self.damage.readable(seqs)
        try:
            return read(seqs)
        except DAMAGE as error:
            if not is_damage(error):
                raise
        found: dict[int, T] = {}
        for seq in seqs:
            try:
                found.update(read([seq]))
            except DAMAGE as error:
                self.damage.met(table or self._table_of(seq), error, None if table else seq)
        return found

    # -- lists --------------------------------------------------------------------------------

    def seqs(
        self, queue_id: int, states: frozenset[int], limit: int, newest: bool, after: int | None
    ) -> list[int]:
        try:
            return super().seqs(queue_id, states, limit, newest, after)
        except DAMAGE as error:
            if not is_damage(error):
                raise
        low, high = (0, self._last() if after is None else after - 1)
        if not newest:
            low, high = (0 if after is None else after + 1, self._last())
        found: list[int] = []
        for state in states & {COMPLETED, FAILED}:
            numbers = self._numbers(queue_id, state, low, high, newest)
            found += (seq for seq, _ in zip(numbers, range(limit), strict=False))
        return sorted(found, reverse=newest)[:limit]

    def _numbers(self, queue_id: int, state: int, low: int, high: int, newest: bool) -> Iterator[int]:
        table, read = "completed", by_number(self._db, _COMPLETED, queue_id)
        if state == FAILED:
            table, read = "dead_letters", by_number(self._db, _LETTERS_OF)
        going = walk_back if newest else walk
        for row in going(read, low, high, self._marking(table)):
            if state == COMPLETED or row[1] == queue_id:
                yield row[0]

    def _marking(self, table: str) -> Callable[[int], None]:
        """A function that reports keys that cannot be read."""
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        return lambda seq: self.damage.met(table, error)

    def _last(self) -> int:
        """An upper bound of the numbers of finished jobs."""
        return self._next_seq()

    def dead_letters(self, queue_id: int, limit: int, after: tuple[int, int]) -> list[DeadLetter]:
        try:
            return super().dead_letters(queue_id, limit, after)
        except DAMAGE as error:
            if not is_damage(error):
                raise
        found = sorted(row for row in self._dead(queue_id) if (row[0], row[1]) > after)
        return [DeadLetter(*row) for row in found[:limit]]

    def _dead(self, queue_id: int) -> list[rows.Row]:
        """The dead letters of a queue that can be read, as (finished_at, seq, reason, next)."""
        query = """select seq, finished_at, reason, next_retry_at, queue_id from dead_letters
                   where seq between ? and ? order by seq"""
        found = walk(by_number(self._db, query), 0, self._last(), self._marking("dead_letters"))
        return [(at, seq, why, again) for seq, at, why, again, queue in found if queue == queue_id]

    def due_retries(self, queue_id: int, until: int, limit: int) -> list[int]:
        more = limit + len(self.damage.seqs)
        try:
            found = super().due_retries(queue_id, until, more)
        except DAMAGE as error:
            if not is_damage(error):
                raise
            due = ((again, seq) for _, seq, _, again in self._dead(queue_id) if again and again <= until)
            found = [seq for _, seq in sorted(due)]
        readable = self.damage.readable(found)[:limit]
        # A job that cannot be loaded stays due for ever, so it is tried here, once.
        return list(self.load(readable)) if self.damage else readable

    def old_dead_letters(
        self, queue_id: int, until: int, limit: int, *, spare: bool = False
    ) -> list[OldLetter]:
        return self._to_purge(lambda: Store.old_dead_letters(self, queue_id, until, limit, spare=spare), [])

    def old_completed(
        self, queue_id: int, until: int, limit: int, after: int
    ) -> tuple[list[Finished], int | None]:
        nothing: tuple[list[Finished], int | None] = ([], None)
        return self._to_purge(lambda: Store.old_completed(self, queue_id, until, limit, after), nothing)

    def outdated(self, queue_id: int, until: int, limit: int, after: int) -> Outdated:
        nothing = Outdated([], None, False)
        return self._to_purge(lambda: Store.outdated(self, queue_id, until, limit, after), nothing)

    def expired(self, until: int, limit: int) -> list[Expired]:
        return self._to_purge(lambda: Store.expired(self, until, limit), [])

    def _to_purge(self, read: Callable[[], T], nothing: T) -> T:
        """Delete nothing from a damaged file: SQLite would merge what is left of its pages with others."""
        if not self.damage:
            try:
                return read()
            except DAMAGE as error:
                self.damage.met("completed", error)
        return nothing

    # -- searches -----------------------------------------------------------------------------

    def prepare_searches(self, now: int) -> bool:
        if self.damage:  # searches scan jobs that are not indexed
            return False
        try:
            return super().prepare_searches(now)
        except DAMAGE as error:
            if self.is_writing:
                raise
            self.damage.met("jobs", error)
            return False

    # -- the event log ------------------------------------------------------------------------

    def forget_events(self, now: int) -> None:
        if now < self._quiet_until:
            return
        try:
            super().forget_events(now)
        except DAMAGE as error:
            self.damage.met("events", error)
            self._quiet_until = MAX_SEQ  # the oldest rows cannot be found: left to the repair

    def trim_events(self, queue_id: int, keep: int, before: int | None) -> Trim:
        with self._telling("events"):
            return super().trim_events(queue_id, keep, before)

    def event_since(self, at: int) -> int:
        with self._telling("events"):
            return super().event_since(at)

    def event_rows(self, after: int) -> Iterator[LogRow]:
        try:
            for row in super().event_rows(after):
                after = row.first + row.size - 1
                yield row
        except DAMAGE as error:
            self.damage.met("events", error)
        else:
            return
        read = by_number(self._db, _EVENTS)
        last = self._events.bounds[1] - 1
        for first, at, count, payload in walk(read, after + 1, last, self._marking("events")):
            try:
                yield LogRow(first, at, count, decode(payload))
            except MsgspecError as error:
                self.damage.met("events", error)

    def _unmovable(self, error: Exception) -> None:
        self.damage.met("completed", error)  # the rest keeps the times of the wrong clock

    # -- writing ------------------------------------------------------------------------------

    def _write(self, out: Outbox) -> None:
        try:
            super()._write(out)
        except DAMAGE as error:
            if not is_damage(error):
                raise
            raise Unstorable(str(error)) from error

    def _advance_live_from(self) -> None:
        if self.damage:  # it may fail again and again, and only makes starts quicker
            return
        self.begin()
        self._db.execute("savepoint settle")
        try:
            super()._advance_live_from()
        except DAMAGE as error:
            self.damage.met("jobs", error)
            self._db.execute("rollback to settle")
        self._db.execute("release settle")

    def damaged_jobs(self, jobs: list[Job]) -> tuple[str, list[int]]:
        """After a batch could not be written: the table, and those of its jobs whose rows are in damaged
        pages, or belong there."""
        found: list[int] = []
        table = ""
        for job in jobs:
            places = dict(_PLACES)
            if job.state != FAILED:
                places = {
                    name: query for name, query in places.items() if not name.startswith("dead_letters ")
                }
            names = {"seq": job.seq, "queue": self._queue_ids.get(job.queue, 0), "id": job.id}
            for place, query in places.items():
                try:
                    self._db.execute(query, {**names, "at": job.finished_at}).fetchall()
                except DAMAGE:
                    found.append(job.seq)
                    table = place.split()[0]
                    break
        return table or self._damaged_table(), found

    def _damaged_table(self) -> str:
        """A table into which nothing can be written."""
        for table, query in _ENDS.items():
            try:
                self._db.execute(query).fetchall()
            except DAMAGE:
                return table
        return "jobs"


def _rows_of(table: Table, queue: str) -> str:
    """A query for the rows of a job; ``queue`` is the condition for the id of its queue."""
    where = f"queue_id {queue} and seq = :seq" if "queue_id" in table.key else "seq = :seq"
    return f"select * from {table.name} where {where}"


# Where the rows of a job are, or would be: these queries read the pages that writing would touch.
_PLACES = {
    **{table.name: _rows_of(table, "= :queue") for table in OF_JOBS},
    "jobs by id": "select seq from jobs where id = :id and own_id = 1",
    "dead_letters by age": """select seq from dead_letters indexed by dead_letters_by_age
                              where queue_id = :queue and finished_at = :at and seq = :seq""",
    "dead_letters by arrival": """select seq from dead_letters indexed by dead_letters_by_arrival
                                  where queue_id = :queue and seq = :seq""",
    "stragglers": "select seq from stragglers where seq = :seq",
}
_ENDS = {
    "events": "select min(first_seq) from events union all select max(first_seq) from events",
    "queues": "select * from queues",
    "records": "select * from records",
    "locks": "select * from locks",
    "meta": "select * from meta",
}


class _CarefulLog(EventLog):
    """Reaches back no further than it can be read."""

    def __init__(self, db: sqlite3.Connection, retention: Retention, writer: Writer, damage: Damage) -> None:
        super().__init__(db, retention, writer)
        self._damage = damage

    def recover(self) -> int | None:
        try:
            return super().recover()
        except DAMAGE as error:
            self._damage.met("events", error)
            last = self._next_seq - 1  # without it numbers would be reused
            if last == 0:
                raise
            query = "select first_seq from events where first_seq between ? and ? order by first_seq"
            first = next(walk(by_number(self._db, query), 1, last, lambda number: None), None)
            self._oldest = self._next_seq if first is None else first[0]
            return None

    @property
    def newest_at(self) -> int:
        try:
            return super().newest_at
        except DAMAGE as error:
            self._damage.met("events", error)
            return 0

    def pushed(self) -> Iterator[tuple[int, list[PushedEntry] | None]]:
        at = 0
        try:
            for at, pushed in super().pushed():
                yield at, pushed
        except DAMAGE as error:
            self._damage.met("events", error)
            yield at, []  # the pushes before that are not known any more
