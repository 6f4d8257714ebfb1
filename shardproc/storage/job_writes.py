"""Which rows a batch of touched jobs needs: one write per job, however often it moved.

A job is written as it is when the batch ends, so memory and disk agree by construction.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from bunqueue.model.job import ACTIVE, COMPLETED, FAILED, REMOVED, Job
from bunqueue.model.workflow import STEP_ROWS
from shardproc.engine.outbox import (
    CLEAN,
    COMPLETED_ROW,
    DEAD_ROW,
    JOB_ROW,
    LOCK_ROW,
    NEW,
    NEW_NAMED,
    ROW,
    STATE,
)

from . import rows, statements
from .database import Writer
from .schema import OF_JOBS
from .search.index import SearchIndex

_SEVERAL = tuple(table for table in OF_JOBS if not table.is_single)
RUNS = tuple(table for table in _SEVERAL if table.is_rare)  # what jobs with steps have recorded
REMOVE = (statements.DELETE_JOBS, *(table.delete for table in _SEVERAL if not table.is_rare))

# An outcome is deleted before another may take its place; a job's other rows are deleted after everything
# that may still be written about it.  The usual rows are not among these: see `Journal.write`.
ORDER = (
    statements.DELETE_DEAD,
    statements.DELETE_COMPLETED,
    statements.DELETE_LARGE,
    statements.DELETE_EXPIRIES,
    statements.PUT_STRAGGLER,
    statements.INSERT_JOB,
    statements.UPDATE_JOB,
    statements.INSERT_RUN_JOB,
    statements.UPDATE_RUN_JOB,
    statements.PUT_LOCK,
    statements.DELETE_LOCKS,
    statements.PUT_COMPLETED,
    statements.PUT_LARGE,
    statements.PUT_DEAD_LETTER,
    statements.PUT_EXPIRY,
    *REMOVE,
)

WAS_ACTIVE = JOB_ROW | LOCK_ROW
_DONE, _DEAD = 0, 1  # in the changes of a queue's counts
_COUNTED = {"completed": _DONE, "dead_letters": _DEAD}


class Journal:
    """Parameters of the statements in ORDER, collected job by job."""

    def __init__(self, queue_ids: dict[str, int], search: SearchIndex) -> None:
        self._queue_ids, self._search = queue_ids, search
        self._parameters: dict[str, list[rows.Row]] = {sql: [] for sql in ORDER}  # in that order
        self._unlocked: list[int] = []
        self._ended: list[int] = []  # jobs that finished, except those whose lock ended with them
        self._removed: list[int] = []
        self._without_steps: list[int] = []  # of the removed ones, those whose steps are deleted as well
        self.used: set[str] = set()  # rare tables that may have rows; no purge looks into the others
        self.live_from = 0  # live jobs with lower numbers are in the table of stragglers
        # Queue id -> the changes of its counts of completed jobs and of dead letters.
        self._counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def write(self, dirty: list[Job], writer: Writer, next_seq: int, now: int) -> None:
        """Bring the rows of ``dirty`` up to date within the open transaction, at that time."""
        queue_ids = self._queue_ids
        new: list[Job] = []
        named: list[Job] = []  # new, with their identities
        pulled: list[Job] = []
        completed: list[Job] = []
        is_usual = True  # no job needs more than one of the rows of these three
        for job in dirty:
            what, stored = job.dirty, job.stored
            if what == NEW and job.created_at == now:
                job.stored, job.dirty = JOB_ROW, CLEAN
                new.append(job)
            elif what == NEW_NAMED and job.created_at == now:
                job.stored, job.dirty = JOB_ROW, CLEAN
                named.append(job)
            elif what != STATE:
                is_usual = False
                self._collect(job, queue_ids[job.queue], now)
            elif stored == JOB_ROW and job.lock is not None and _is_fresh(job):
                job.stored, job.dirty = WAS_ACTIVE, CLEAN
                pulled.append(job)
            elif stored == WAS_ACTIVE and job.state == COMPLETED and _is_success(job):
                job.stored, job.dirty = JOB_ROW | COMPLETED_ROW, CLEAN
                completed.append(job)
            else:
                is_usual = False
                self._collect(job, queue_ids[job.queue], now)
        if not is_usual:
            self._write_collected(writer, now)
        if new:
            fresh = rows.fresh_rows(new, queue_ids)
            writer.executemany(statements.INSERT_FRESH, fresh)
            self._search.stored(fresh, next_seq, now)
        if named:
            added = rows.named_rows(named, queue_ids)
            writer.executemany(statements.INSERT_NAMED, added)
            self._search.stored(added, next_seq, now)
        if pulled:
            writer.executemany(statements.INSERT_LOCK, rows.fresh_lock_rows(pulled))
        if completed:
            self._write_completed(completed, writer, now)
        if self._counts:
            self._book(writer)

    def _write_completed(self, completed: list[Job], writer: Writer, now: int) -> None:
        """Jobs that were active have completed, in an ordinary way."""
        unlocked = runs([job.seq for job in completed])
        writer.executemany(statements.DELETE_LOCKS, unlocked)
        self._search.ended(unlocked, now)
        success = rows.success_rows(completed, self._queue_ids)
        writer.executemany(statements.INSERT_SUCCESS, success)
        counts = self._counts
        for row in success:
            counts[row[0]][_DONE] += 1

    def _write_collected(self, writer: Writer, now: int) -> None:
        """Write what `_collect` has collected."""
        if self._unlocked:
            found = runs(self._unlocked)
            self._parameters[statements.DELETE_LOCKS].extend(found)
            self._search.ended(found, now)  # nearly all of them have
            self._unlocked.clear()
        if self._ended:
            self._search.ended(runs(self._ended), now)
            self._ended.clear()
        if self._removed:
            self._delete(writer)
        for sql, parameters in self._parameters.items():
            if parameters:
                writer.executemany(sql, parameters)
                parameters.clear()

    def _delete(self, writer: Writer) -> None:
        """Delete the rows of removed jobs."""
        gone = runs(self._removed)
        self._search.removed()
        for sql in REMOVE:
            self._parameters[sql].extend(gone)
        self._removed.clear()
        if self._without_steps:
            gone = runs(self._without_steps)
            for table in RUNS:
                writer.executemany(table.delete, gone)
            self._without_steps.clear()

    def purge(self, purges: dict[int, list[int]], writer: Writer) -> None:
        """Delete all rows of finished jobs, given by number for each queue id."""
        self._search.removed()
        tables = [
            table for table in OF_JOBS if table.delete and (table.name in self.used or not table.is_rare)
        ]
        for queue_id, seqs in purges.items():
            gone = runs(seqs)
            of_queue = [(queue_id, *run) for run in gone]
            for table in tables:
                where = of_queue if table.key[0] == "queue_id" else gone
                deleted = writer.executemany(table.delete, where).rowcount
                if table.name in _COUNTED:
                    self._counts[queue_id][_COUNTED[table.name]] -= deleted
        self._book(writer)

    def _book(self, writer: Writer) -> None:
        """Make the counts of queues agree with their rows."""
        changes = [(done, dead, queue_id) for queue_id, (done, dead) in self._counts.items()]
        writer.executemany(statements.COUNT, changes)
        self._counts.clear()

    def _collect(self, job: Job, queue_id: int, now: int) -> None:
        todo = self._parameters
        what, job.dirty = job.dirty, CLEAN
        if what == CLEAN:  # another object represents the job by now
            return
        stored = job.stored
        if job.state == REMOVED:
            self._remove(job, queue_id)
            return
        if not stored & JOB_ROW:
            self._search.stored_other(job, now)
            if job.run is None:
                todo[statements.INSERT_JOB].append(rows.job_row(job, queue_id))
            else:
                todo[statements.INSERT_RUN_JOB].append(rows.run_job_row(job, queue_id))
            if job.seq < self.live_from:  # it had to wait for another shard
                todo[statements.PUT_STRAGGLER].append((job.seq,))
        elif what & ROW and job.run is None:
            todo[statements.UPDATE_JOB].append(rows.job_update(job))
        elif what & ROW:
            todo[statements.UPDATE_RUN_JOB].append(rows.run_job_update(job))
        self._forget_outcome(job, queue_id)
        place = self._place(job, queue_id)
        if stored & LOCK_ROW and place != LOCK_ROW:
            self._unlocked.append(job.seq)
        job.stored = JOB_ROW | (stored & STEP_ROWS) | place

    def _place(self, job: Job, queue_id: int) -> int:
        """Write the row that a job has in its state, in addition to its own; returns which one that is."""
        todo = self._parameters
        if job.state == ACTIVE and job.lock is not None:
            todo[statements.PUT_LOCK].append(rows.lock_row(job, job.lock))
            return LOCK_ROW
        if job.state == COMPLETED:
            self._ended.append(job.seq)
            self._counts[queue_id][_DONE] += not job.stored & COMPLETED_ROW
            todo[statements.PUT_COMPLETED].append(rows.completed_row(job, queue_id))
            if rows.is_large(job):
                todo[statements.PUT_LARGE].append(rows.large_row(job))
            self._expire(job, queue_id)
            return COMPLETED_ROW
        if job.state == FAILED:
            self._ended.append(job.seq)
            self._counts[queue_id][_DEAD] += not job.stored & DEAD_ROW
            todo[statements.PUT_DEAD_LETTER].append(rows.dead_letter_row(job, queue_id))
            self._expire(job, queue_id)
            return DEAD_ROW
        return 0

    def _expire(self, job: Job, queue_id: int) -> None:
        row = rows.expiry_row(job, queue_id)
        if row is not None:
            self._parameters[statements.PUT_EXPIRY].append(row)
            self.used.add("expiries")

    def _remove(self, job: Job, queue_id: int) -> None:
        self._removed.append(job.seq)
        if job.stored & STEP_ROWS:
            self._without_steps.append(job.seq)
        if not job.stored & JOB_ROW:
            return
        if job.stored & LOCK_ROW:
            self._unlocked.append(job.seq)
        self._forget_outcome(job, queue_id)

    def _forget_outcome(self, job: Job, queue_id: int) -> None:
        if job.extra is not None and job.stored & (DEAD_ROW | COMPLETED_ROW) and "expiries" in self.used:
            self._parameters[statements.DELETE_EXPIRIES].append((job.seq, job.seq))
        if job.stored & DEAD_ROW and job.state != FAILED:
            self._parameters[statements.DELETE_DEAD].append((job.seq,))
            self._parameters[statements.PUT_STRAGGLER].append((job.seq,))
            self._counts[queue_id][_DEAD] -= 1
        if job.stored & COMPLETED_ROW and job.state != COMPLETED:
            self._parameters[statements.DELETE_COMPLETED].append((queue_id, job.seq))
            self._parameters[statements.DELETE_LARGE].append((job.seq,))
            self._parameters[statements.PUT_STRAGGLER].append((job.seq,))
            self._counts[queue_id][_DONE] -= 1


def write_records(db: sqlite3.Connection, records: dict[tuple[str, str], str | None]) -> None:
    """Store records; those with None are deleted."""
    put = [(kind, key, value) for (kind, key), value in records.items() if value is not None]
    db.executemany(statements.DELETE_RECORD, [place for place, value in records.items() if value is None])
    db.executemany(statements.PUT_RECORD, put)


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as ranges, (first, last) each.

    Jobs are processed roughly in the order of their arrival, so most locks that end are adjacent, and
    deleting a range costs a fraction of deleting its rows one by one.
    """
    numbers.sort()
    out = []
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            out.append((first, last))
            first = number
        last = number
    out.append((first, last))
    return out


def _is_fresh(job: Job) -> bool:
    return not job.progress and job.progress_message is None


def _is_success(job: Job) -> bool:
    result = job.result
    return (
        # `rows.is_large` and `_is_fresh`, inlined
        job.timeline is None
        and (result is None or len(result) <= rows.MAX_INLINE)
        and not job.progress
        and job.progress_message is None
        and (job.extra is None or job.extra.keep_completed is None)
    )
