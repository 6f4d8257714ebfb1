"""A shard's storage: recovery, group commit, and reads of finished jobs.

The interface is narrow on purpose, so another database could replace SQLite: `recover`, `commit`, and the few
reads of the engine's `Archive`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress

import msgspec

from bunqueue import process_stats as vitals
from bunqueue.model.job import Job
from bunqueue.protocol.commands.jobs import MAX_LOG
from shardproc.clock import Mark
from shardproc.engine.engine import Engine
from shardproc.engine.outbox import LogRow, Outbox, Trim
from shardproc.storage import attempts, event_log, rows, run_rows, statements
from shardproc.storage import incarnation as lives

from .database import DISK_ERRORS, Database
from .event_log import DEFAULT_RETENTION, EventLog, Retention
from .finished_jobs import FinishedJobs
from .job_writes import RUNS, Journal, write_records
from .keys import KeyReads
from .preloaded import Preloaded
from .rebase import Rebase
from .schema import TABLES
from .search.index import SearchIndex, Write
from .search.reader import Reader

LIVE_STEP = 500  # jobs inspected at once; about 1 ms
MANY = 100_000  # finished jobs that a start may read needlessly
PROGRESS_EVERY = 50_000  # recovered jobs between two reports


class Store(FinishedJobs):
    """Writes what the outbox has collected; implements `shardproc.engine.outbox.Archive`."""

    def __init__(self, database: Database, retention: Retention = DEFAULT_RETENTION) -> None:
        self.database = database
        self._db, self._writer = database.connection, database.writer
        self._out: Outbox | None = None
        self._queue_ids: dict[str, int] = {}
        self._queue_names: dict[int, str] = {}
        self.without_jobs = 0  # bytes that the process took before it had read the jobs
        self._search = SearchIndex(self._db)
        self.searches = Reader(self._db, self._search, self._see)
        self._journal = Journal(self._queue_ids, self._search)
        self._events = EventLog(self._db, retention, self._writer)
        self.runs = run_rows.RunReads(self._db, self._see, self._guard)
        self.keys = KeyReads(self._db, self._see, self._guard)
        self._time: Callable[[], int] = lambda: 0  # of the batch, epoch ms
        self._next_seq: Callable[[], int] = lambda: 0  # the number that the next job gets
        self.is_writing = False
        self.writes_out = False
        """Whether a read is writing the changes of the batch so far; it stays true if that fails."""
        self.replicated = False
        """Whether a transaction ends only after a log has acknowledged its record: see `applied`."""
        self.preloaded: Preloaded | None = None  # for the first recovery
        self.mark = ""  # of the clock, to be stored with the next batch
        self._cleaned = 0  # the number up to which stragglers were cleaned up

    # -- recovery ---------------------------------------------------------------------------

    def attach(self, out: Outbox | None) -> None:
        """Set the outbox whose writes reads must see; None when there is nothing to write."""
        self._out = out

    def recover(
        self, engine: Engine, now: int, epoch: str, progress: Callable[[int, int], None], *, believed: int
    ) -> int:
        """Give the engine its queues and live jobs back; returns the number of live jobs.

        ``epoch`` names the incarnation of the router: connection numbers of an earlier one mean nothing.
        ``believed`` is the time without jumps of the clock; keys that are too old by it are forgotten.
        """
        self.attach(engine.out)
        self._search.check()
        engine.state.now = now  # records may be too old to keep
        last = self._events.recover()
        if lives.enter(self._db, self.begin, epoch, last, others=engine.state.shards > 1):
            self.end_transaction(flush=True)  # after a power cut the file must not look cleanly closed
            engine.new_incarnation(now)
        self._time, self._next_seq = lambda: engine.state.now, lambda: engine.state.next_seq
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
        reserved = engine.state.next_seq  # by records
        engine.state.next_seq = max((last or 0) + 1, self._journal.live_from, reserved)
        self._journal.used = {
            table.name
            for table in TABLES
            if table.is_rare and self._db.execute(f"select 1 from {table.name} limit 1").fetchone()
        }
        self._carry_out(self._search.recover(engine.state.next_seq))
        self.without_jobs = vitals.memory()
        with self.database.small_cache():  # of pages that are read once, most of them of jobs that have ended
            engine.recover_jobs(self._live_jobs(progress), now)
        return len(engine.state.jobs)

    def _live_jobs(self, progress: Callable[[int, int], None]) -> Iterator[Job]:
        preloaded, self.preloaded = self.preloaded, None
        if preloaded is not None and (jobs := preloaded.take(self._db, self._queue_names)) is not None:
            yield from jobs
            return
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
        """Whether the disk is so full that old events are removed."""
        return self._events.pressed

    @pressed.setter
    def pressed(self, pressed: bool) -> None:
        self._events.pressed = pressed

    def forget_events(self, now: int) -> None:
        """Trim the event log; call it often, as each call does little."""
        if self._events.is_due(now) and (oldest := self._events.oldest_kept(now)):
            self.begin()
            self._events.forget(oldest)

    def prepare_searches(self, now: int) -> bool:
        """Summarize jobs for searches; call it often, between two batches, as each call does little. Returns
        whether there is more to do."""
        if not self.is_writing and self._search.has_work(now):
            writes = self._search.next_writes(now)
            try:
                self._carry_out(writes)
            except DISK_ERRORS:
                self._search.rebuild_soon()
                raise
        return self._search.has_work(now)

    def _carry_out(self, writes: list[Write]) -> None:
        for sql, parameters in writes:
            self.begin()
            self._db.execute(sql, parameters)

    def commit(self, out: Outbox, next_seq: int, live: int) -> None:
        """Make everything in the outbox durable; after that the replies may be sent.

        The next start should read no more than about twice the number of ``live`` jobs: ``next_seq`` shows
        how many jobs there have been.
        """
        self.write(out, next_seq, live)
        self.end_transaction(flush=out.durable)
        out.durable = False

    def write(self, out: Outbox, next_seq: int, live: int) -> None:
        """Write everything that `commit` commits into the open transaction."""
        if out.writes:
            self._write(out)
        if next_seq - self._journal.live_from >= 2 * live + MANY:
            self._advance_live_from()

    def end_transaction(self, *, flush: bool = False) -> None:
        """Commit what is written, if anything is; ``flush``: so that it survives a power cut.

        A replicated file does not commit here: what is written now is part of the next record.
        """
        if self.replicated:
            return
        if self.is_writing:
            self._writer.execute("commit")
            self.is_writing = False
        if flush:
            self.database.flush()

    def write_nothing(self) -> None:
        """End a transaction that has changed nothing in the shard."""
        if self.is_writing:
            self._db.execute("commit")
            self.is_writing = False

    def applied(self, position: int) -> None:
        """The log has the record of what is written: commit it, as the record at this position."""
        self.begin()
        self._db.execute(statements.PUT_APPLIED, (str(position),))
        self._db.execute("commit")
        self.is_writing = False

    def _advance_live_from(self) -> None:
        """Let the next start skip some more finished jobs. This is part of the batch's transaction: if it
        fails, the batch must not be stored either."""
        first, end = self._journal.live_from, self._journal.live_from + LIVE_STEP
        self.begin()
        self._db.execute(statements.NEW_STRAGGLERS, (first, end))
        self._db.execute(statements.PUT_META, ("live_from", str(end)))
        # Many of the jobs that were live at an earlier check have finished since.
        span = self._db.execute(
            "select max(seq) from (select seq from stragglers where seq > ? order by seq limit ?)",
            (self._cleaned, LIVE_STEP),
        ).fetchone()[0]
        if span is not None:
            self._db.execute(statements.OLD_STRAGGLERS, (self._cleaned, span))
        self._journal.live_from, self._cleaned = end, span or 0

    def _write(self, out: Outbox) -> None:
        """Write the rows of every touched job as it is now, in one statement per kind."""
        db, now = self._db, self._time()
        if not self.is_writing:
            self.begin()
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
            write_records(db, out.records)
            out.records.clear()
        if out.attempts:
            attempts.write(db, out.attempts)
            out.attempts.clear()
        if out.logs or out.kept_logs:
            self._write_logs(out)
        if out.runs:  # before jobs that are removed, as their steps are removed with them
            run_rows.write(db, out.runs)
            self._journal.used.update(table.name for table in RUNS)
            out.runs.clear()
        if out.dirty:
            next_seq = self._next_seq()
            self._journal.write(out.dirty, self._writer, next_seq, now)
            self._search.wrote(next_seq)
            out.dirty.clear()
        if out.purges:
            self._journal.purge(out.purges, self._writer)
            out.purges.clear()
        if out.events:
            self._events.write(out.events, now, out.pushed)
            out.events.clear()
            out.pushed.clear()
        if self.mark:
            db.execute(statements.PUT_META, ("clock", self.mark))
            self.mark = ""

    def _write_logs(self, out: Outbox) -> None:
        """Write lines of job logs, after deleting those that are not kept."""
        many = self._db.executemany
        many(statements.TRIM_LOG, [(seq, seq, kept) for seq, kept in out.kept_logs.items()])
        out.kept_logs.clear()
        many(statements.PUT_LOG, [(e.seq, e.at, e.level, e.message, e.seq) for e in out.logs])
        kept = {entry.seq: min(entry.kept, MAX_LOG) for entry in out.logs}
        many(statements.TRIM_LOG, [(seq, seq, most) for seq, most in kept.items()])
        out.logs.clear()

    def begin(self) -> None:
        """Begin a transaction, unless one is open.

        A batch calls this before it changes anything, so memory is never ahead of a file whose write lock
        another program holds. It does not call it before it reads: a transaction that meets damage cannot be
        committed.
        """
        if not self.is_writing:
            self._writer.execute("begin immediate")
            self.is_writing = True

    def check_lock(self) -> None:
        """Raise the error of `begin` while another program holds the write lock."""
        if not self.is_writing:
            self.begin()
            self.write_nothing()

    # -- time -----------------------------------------------------------------------------------

    def last_times(self) -> tuple[int, Mark | None]:
        """What the file knows of the clock: the time of the newest event (0 without events), and the last
        mark."""
        return self._events.newest_at, self.last_mark()

    def last_mark(self) -> Mark | None:
        """Both clocks, as they were when the file was written; None for a new file."""
        row = self._db.execute("select value from meta where key = 'clock'").fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Mark)

    @property
    def rebase(self) -> Rebase:
        """Shifts the times of finished jobs and of events back."""
        return Rebase(self._db, self._events, self._time, self.write_out, self._unmovable, self._search)

    def _unmovable(self, error: Exception) -> None:
        raise error

    def write_out(self) -> None:
        """Write what the outbox has collected so far, in the transaction of the next commit."""
        self.begin()
        self._see()

    def _drop_queues(self, queue_ids: list[int]) -> None:
        for queue_id in queue_ids:
            del self._queue_ids[self._queue_names.pop(queue_id)]
        self._db.executemany(statements.DELETE_QUEUE, [(queue_id,) for queue_id in queue_ids])

    # -- reads of the event log ----------------------------------------------------------------

    def _see(self) -> None:
        """Write the changes of the batch so far, so reads see them."""
        if self._out is not None and self._out.writes:
            self.writes_out = True
            self._write(self._out)
            self.writes_out = False

    def _guard(self, table: str) -> AbstractContextManager[None]:
        """A context for reads of a table that may be damaged."""
        return nullcontext()

    def trim_events(self, queue_id: int, keep: int, before: int | None) -> Trim:
        self._see()
        self.begin()
        return self._events.trim(queue_id, keep, before)

    def keep_events(self, keeps: Callable[[str], bool]) -> None:
        """Forget the events of all queues but those whose names are to be kept."""
        self.begin()
        self._events.keep(keeps)

    def event_bounds(self) -> tuple[int, int]:
        return self._events.bounds

    def event_since(self, at: int) -> int:
        return self._events.since(at)

    def event_rows(self, after: int) -> Iterator[LogRow]:
        return event_log.rows(self._db, after)

    def end(self) -> None:
        """Close cleanly, so the next start can be sure that it knows everything this shard knew."""
        with suppress(*DISK_ERRORS):
            self.mark_closed()
            self.end_transaction()
        self.close()

    def mark_closed(self) -> None:
        """Mark the file as closed cleanly."""
        self.begin()
        self._db.execute(statements.PUT_META, ("closed", "1"))

    def close(self) -> None:
        self.database.close()
