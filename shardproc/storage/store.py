"""A shard's storage: recovery, group commit, and reads of finished jobs.

The interface is narrow on purpose, so that another database can stand in: `recover`, `commit`, and
the few reads of the engine's `Archive`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress

import msgspec

from bunqueue.model.dead_letters import INTERRUPTED
from bunqueue.model.ids import seq_of_id
from bunqueue.model.job import COMPLETED, FAILED, Job
from bunqueue.protocol.commands.jobs import MAX_LOG
from shardproc.clock import Mark
from shardproc.engine.engine import Engine
from shardproc.engine.outbox import Attempt, DeadLetter, Finished, LogEntry, LogRow, Outbox, Remains, Trim

from . import event_log, lives, rows, run_rows, statements
from .database import DISK_ERRORS, Database
from .event_log import DEFAULT_RETENTION, EventLog, Retention
from .job_writes import Journal
from .rebase import Rebase

MAX_SEQ = 2**63 - 1
MAX_PAST = 100  # attempts of a job that are shown: the last ones
SETTLE = 500  # jobs looked at in one go; about 1 ms
MANY = 100_000  # finished jobs that a start may look at in vain
MAX_IDS = 1 << 20  # characters of ids in one answer
PROGRESS_EVERY = 50_000  # recovered jobs between two reports


class Store:
    """Writes what the outbox asks for; implements `shardproc.engine.outbox.Archive`."""

    def __init__(self, database: Database, retention: Retention = DEFAULT_RETENTION) -> None:
        self.database = database
        self._db = database.connection
        self._out: Outbox | None = None
        self._queue_ids: dict[str, int] = {}
        self._queue_names: dict[int, str] = {}
        self._journal = Journal(self._queue_ids)
        self._events = EventLog(self._db, retention)
        self.runs = run_rows.RunReads(self._db, self._see, self._guard)
        self._time: Callable[[], int] = lambda: 0  # of the batch, epoch ms
        self._in_transaction = False
        self.replicated = False
        """Whether a transaction ends only after a log has acknowledged its record: see `applied`."""
        self.mark = ""  # of the clock, to be stored with the next batch
        self._cleaned = 0  # up to which number stragglers were looked at

    # -- recovery ---------------------------------------------------------------------------

    def attach(self, out: Outbox | None) -> None:
        """The outbox whose writes reads must see; None when there is nothing to be written."""
        self._out = out

    def recover(
        self, engine: Engine, now: int, epoch: str, progress: Callable[[int, int], None], *, believed: int
    ) -> int:
        """Give the engine its queues and live jobs back; how many jobs these are.

        ``epoch`` names the life of the router: connection numbers of an earlier one mean nothing.
        ``believed`` is the time without jumps of the clock: what is that old is forgotten.
        """
        self.attach(engine.out)
        engine.state.now = now  # records may be too old to be kept
        last = self._events.recover()
        if lives.enter(self._db, self._open, epoch, last, others=engine.state.shards > 1):
            self.end_transaction(flush=True)  # after a power cut the file must not pass for one in order
            engine.new_life(now)
        self._time = lambda: engine.state.now
        engine.recover_pushed(self._events.pushed(), believed)
        for queue_id, name, completed, failed in self._db.execute(
            "select id, name, completed, failed from queues"
        ):
            self._know(queue_id, name)
            engine.recover_queue(queue_id, name, completed, failed)
        for kind, key, value in self._db.execute("select kind, key, value from records"):
            engine.recover_record(kind, key, value)
        last = self._db.execute("select max(seq) from jobs").fetchone()[0]
        stored = self._db.execute("select value from meta where key = 'live_from'").fetchone()
        self._journal.live_from = int(stored[0]) if stored else 0
        engine.state.next_seq = max((last or 0) + 1, self._journal.live_from)
        self._journal.has_steps = bool(self._db.execute(run_rows.ANY).fetchone()[0])
        engine.recover_jobs(self._live_jobs(progress), now)
        return len(engine.state.jobs)

    def _live_jobs(self, progress: Callable[[int, int], None]) -> Iterator[Job]:
        query = "select (select count(*) from stragglers), (select max(seq) from jobs)"
        stragglers, last = self._db.execute(query).fetchone()
        total = stragglers + max(0, (last or 0) + 1 - max(1, self._journal.live_from))  # at most
        for number, row in enumerate(
            self._db.execute(rows.LIVE_JOBS, {"live_from": self._journal.live_from}), 1
        ):
            job = rows.live_job(row, self._queue_names)
            if number % PROGRESS_EVERY == 0:
                progress(number, total)
            yield job

    def _know(self, queue_id: int, name: str) -> None:
        self._queue_ids[name] = queue_id
        self._queue_names[queue_id] = name

    # -- group commit -------------------------------------------------------------------------

    @property
    def forgets(self) -> bool:
        """Whether `forget_events` has more to do."""
        return self._events.is_long

    @property
    def pressed(self) -> bool:
        """Whether the disk is so full that old events make room."""
        return self._events.pressed

    @pressed.setter
    def pressed(self, pressed: bool) -> None:
        self._events.pressed = pressed

    def forget_events(self, now: int) -> None:
        """Keep the event log from growing for ever; call it often, it does little at once."""
        if self._events.is_due(now) and (oldest := self._events.oldest_kept(now)):
            self._open()
            self._events.forget(oldest)

    def commit(self, out: Outbox, next_seq: int, live: int) -> None:
        """Make everything the outbox asks for durable; after it the replies may leave.

        The next start shall look at no more than about twice the ``live`` jobs: the number of the next one
        tells how many there were."""
        self.write(out, next_seq, live)
        self.end_transaction(flush=out.durable)
        out.durable = False

    def write(self, out: Outbox, next_seq: int, live: int) -> None:
        """Write all that `commit` commits into the open transaction."""
        if out.writes:
            self._write(out)
        if next_seq - self._journal.live_from >= 2 * live + MANY:
            self._settle()

    def end_transaction(self, *, flush: bool = False) -> None:
        """Commit what is written, if anything is; ``flush``: so that it survives a power cut.

        A replicated file waits: what is written now is part of the next record."""
        if self.replicated:
            return
        if self._in_transaction:
            self._db.execute("commit")
            self._in_transaction = False
        if flush:
            self.database.flush()

    def write_nothing(self) -> None:
        """End a transaction that has changed nothing of the shard."""
        if self._in_transaction:
            self._db.execute("commit")
            self._in_transaction = False

    def applied(self, position: int) -> None:
        """The log has the record of what is written: commit it, as the record at this position."""
        self._open()
        self._db.execute(statements.PUT_APPLIED, (str(position),))
        self._db.execute("commit")
        self._in_transaction = False

    def _settle(self) -> None:
        """Have the next start pass over some more finished jobs.  Part of the batch's transaction: if this
        fails, the batch must not be there either."""
        first, end = self._journal.live_from, self._journal.live_from + SETTLE
        self._open()
        self._db.execute(statements.NEW_STRAGGLERS, (first, end))
        self._db.execute(statements.PUT_META, ("live_from", str(end)))
        # Of those that were found live before, many have finished since.
        span = self._db.execute(
            "select max(seq) from (select seq from stragglers where seq > ? order by seq limit ?)",
            (self._cleaned, SETTLE),
        ).fetchone()[0]
        if span is not None:
            self._db.execute(statements.OLD_STRAGGLERS, (self._cleaned, span))
        self._journal.live_from, self._cleaned = end, span or 0

    def _write(self, out: Outbox) -> None:
        """Write the rows of every touched job as it is now, in one statement a kind."""
        db = self._db
        self._open()
        many = db.executemany
        if out.dropped_queues:
            self._drop_queues(out.dropped_queues)
            out.dropped_queues.clear()
        if out.queues:
            for queue in out.queues:
                self._know(queue.id, queue.name)
            many(statements.PUT_QUEUE, [(q.id, q.name, q.created_at) for q in out.queues])
            out.queues.clear()
        if out.records:
            _write_records(db, out.records)
            out.records.clear()
        if out.attempts:
            many(
                statements.PUT_ATTEMPT,
                [
                    (a.seq, a.number, a.worker, a.started_at, a.ended_at, a.outcome, a.error, a.stack)
                    for a in out.attempts
                ],
            )
            out.attempts.clear()
        if out.kept_logs:
            many(statements.TRIM_LOG, [(seq, seq, kept) for seq, kept in out.kept_logs.items()])
            out.kept_logs.clear()
        if out.logs:
            many(statements.PUT_LOG, [(e.seq, e.at, e.level, e.message, e.seq) for e in out.logs])
            kept = {entry.seq: min(entry.kept, MAX_LOG) for entry in out.logs}
            many(statements.TRIM_LOG, [(seq, seq, most) for seq, most in kept.items()])
            out.logs.clear()
        if out.runs:  # before jobs that are removed, as their steps go with them
            run_rows.write(db, out.runs)
            self._journal.has_steps = True
            out.runs.clear()
        if out.dirty:
            self._journal.write(out.dirty, db)
            out.dirty.clear()
        if out.purges:
            self._journal.purge(out.purges, db)
            out.purges.clear()
        if out.events:
            self._events.write(out.events, self._time(), out.pushed)
            out.events.clear()
            out.pushed.clear()
        if self.mark:
            db.execute(statements.PUT_META, ("clock", self.mark))
            self.mark = ""

    def _open(self) -> None:
        if not self._in_transaction:
            self._db.execute("begin immediate")
            self._in_transaction = True

    # -- time -----------------------------------------------------------------------------------

    def last_times(self) -> tuple[int, Mark | None]:
        """What the file knows of the clock: when the newest event was, 0 without one, and the last mark."""
        return self._events.newest_at, self.last_mark()

    def last_mark(self) -> Mark | None:
        """Both clocks, as they were when the file was written; None of a new file."""
        row = self._db.execute("select value from meta where key = 'clock'").fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Mark)

    @property
    def rebase(self) -> Rebase:
        """To bring the times of finished jobs and of events back."""
        return Rebase(self._db, self._events, self._time, self.write_out, self._unmovable)

    def _unmovable(self, error: Exception) -> None:
        raise error

    def write_out(self) -> None:
        """Write what has been asked for so far, in the transaction of the next commit."""
        self._open()
        self._see()

    def _drop_queues(self, queue_ids: list[int]) -> None:
        for queue_id in queue_ids:
            del self._queue_ids[self._queue_names.pop(queue_id)]
        self._db.executemany(statements.DELETE_QUEUE, [(queue_id,) for queue_id in queue_ids])

    # -- reads of finished jobs ----------------------------------------------------------------

    def _see(self) -> None:
        """Reads come after the writes of the batch so far."""
        if self._out is not None and self._out.writes:
            self._write(self._out)

    def _guard(self, table: str) -> AbstractContextManager[None]:
        """Around reads of a table that may be damaged."""
        return nullcontext()

    def find(self, job_id: str) -> Job | None:
        self._see()
        query = f"select {rows.FINISHED_COLUMNS} {rows.FINISHED_FROM} where jobs.id = ? and "
        row, seq = None, seq_of_id(job_id)
        if seq is not None:
            row = self._db.execute(query + "jobs.seq = ?", (job_id, seq)).fetchone()
        if row is None:
            row = self._db.execute(query + "jobs.own_id = 1", (job_id,)).fetchone()
        return None if row is None else rows.finished_job(row, self._queue_names)

    def known(self, job_id: str) -> Job | None:
        return self.find(job_id)

    def record(self, kind: str, key: str) -> str | None:
        self._see()
        query = "select value from records where kind = ? and key = ?"
        row = self._db.execute(query, (kind, key)).fetchone()
        return None if row is None else row[0]

    def own_ids(self, seqs: list[int]) -> dict[int, str]:
        self._see()
        found: dict[int, str] = {}
        for start in range(0, len(seqs), 500):
            some = seqs[start : start + 500]
            marks = ",".join("?" * len(some))
            query = f"select seq, id from jobs where seq in ({marks}) and own_id = 1"
            found.update(self._db.execute(query, some))
        return found

    def own_ids_after(self, after: str, limit: int) -> tuple[list[str], str | None]:
        self._see()
        query = "select id from jobs where own_id = 1 and id > ? order by id limit ?"
        found: list[str] = []
        size = 0
        for (job_id,) in self._db.execute(query, (after, limit)):
            found.append(job_id)
            size += len(job_id)
            if size > MAX_IDS:
                return found, job_id
        return found, found[-1] if len(found) == limit else None

    def seqs(
        self, queue_id: int, states: frozenset[int], limit: int, newest: bool, after: int | None
    ) -> list[int]:
        self._see()
        order, beyond = ("desc", "<") if newest else ("asc", ">")
        if after is None:
            after = MAX_SEQ if newest else -1
        tables = [
            table for state, table in ((COMPLETED, "completed"), (FAILED, "dead_letters")) if state in states
        ]
        part = f"where queue_id = ? and seq {beyond} ?"
        parts = " union all ".join(f"select seq from {table} {part}" for table in tables)
        query = f"select seq from ({parts}) order by seq {order} limit ?"
        return [seq for (seq,) in self._db.execute(query, (*[queue_id, after] * len(tables), limit))]

    def load(self, seqs: list[int]) -> dict[int, Job]:
        self._see()
        query = f"select {rows.FINISHED_COLUMNS} {rows.FINISHED_FROM} where jobs.seq = ?"
        found = {}
        for seq in seqs:
            row = self._db.execute(query, (seq,)).fetchone()
            if row is not None and (job := rows.finished_job(row, self._queue_names)) is not None:
                found[seq] = job
        return found

    def remains(self, seqs: list[int]) -> dict[int, Remains]:
        return {}

    def problem(self) -> str | None:
        return None

    def dead_letters(self, queue_id: int, limit: int, after: tuple[int, int]) -> list[DeadLetter]:
        self._see()
        found = self._db.execute(rows.DEAD_LETTERS, (queue_id, *after, limit))
        return [DeadLetter(*row) for row in found]

    def due_retries(self, queue_id: int, until: int, limit: int) -> list[int]:
        self._see()
        return [seq for (seq,) in self._db.execute(rows.DUE_RETRIES, (queue_id, until, limit))]

    def matching(self, seqs: list[int], name: str | None, error: str | None) -> set[int]:
        self._see()
        asked = {"seqs": json.dumps(seqs), "name": name, "error": error}
        return {seq for (seq,) in self._db.execute(rows.MATCHING, asked)}

    def attempts(self, seqs: list[int], interrupted: bool = False) -> dict[int, list[Attempt]]:
        self._see()
        found = {}
        hidden = "" if interrupted else INTERRUPTED
        for seq in seqs:
            past = self._db.execute(rows.ATTEMPTS, (seq, hidden, MAX_PAST)).fetchall()
            if past:
                found[seq] = [Attempt(*row) for row in reversed(past)]
        return found

    def log(self, seq: int) -> list[LogEntry]:
        self._see()
        return [LogEntry(*row) for row in self._db.execute(rows.LOG, (seq,))]

    def old_dead_letters(self, queue_id: int, until: int, limit: int) -> list[Finished]:
        self._see()
        found = self._db.execute(rows.OLD_DEAD_LETTERS, (queue_id, until, limit))
        return [(seq, job_id) for seq, job_id, _, _ in rows.bounded(found)]

    def old_completed(
        self, queue_id: int, until: int, limit: int, after: int
    ) -> tuple[list[Finished], int | None]:
        self._see()
        looked_at = list(rows.bounded(self._db.execute(rows.OLD_COMPLETED, (queue_id, after, limit, until))))
        found = [(seq, job_id) for seq, job_id, finished_at, _ in looked_at if finished_at <= until]
        return found, looked_at[-1][0] if looked_at else None

    def trim_events(self, queue_id: int, keep: int, before: int | None) -> Trim:
        self._see()
        self._open()
        return self._events.trim(queue_id, keep, before)

    def event_bounds(self) -> tuple[int, int]:
        return self._events.bounds

    def event_since(self, at: int) -> int:
        return self._events.since(at)

    def event_rows(self, after: int) -> Iterator[LogRow]:
        return event_log.rows(self._db, after)

    def end(self) -> None:
        """Close in order: the next start need not doubt that it knows all that this shard knew."""
        with suppress(*DISK_ERRORS):
            self.mark_closed()
            self.end_transaction()
        self.close()

    def mark_closed(self) -> None:
        """Write that the file is closed in order."""
        self._open()
        self._db.execute(statements.PUT_META, ("closed", "1"))

    def close(self) -> None:
        self.database.close()


def _write_records(db: sqlite3.Connection, records: dict[tuple[str, str], str | None]) -> None:
    put = [(kind, key, value) for (kind, key), value in records.items() if value is not None]
    db.executemany(statements.DELETE_RECORD, [place for place, value in records.items() if value is None])
    db.executemany(statements.PUT_RECORD, put)
