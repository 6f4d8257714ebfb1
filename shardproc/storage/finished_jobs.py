"""Reads of finished jobs, and of everything else that is only on disk: all of
`shardproc.engine.outbox.Archive` except the event log and searches."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from bunqueue.model.dead_letters import INTERRUPTED
from bunqueue.model.ids import seq_of_id
from bunqueue.model.job import COMPLETED, FAILED, Job
from shardproc.engine.outbox import (
    Attempt,
    DeadLetter,
    Expired,
    Finished,
    LogEntry,
    OldLetter,
    Outdated,
    UnreadableJob,
)

from . import attempts, rows

MAX_SEQ = 2**63 - 1
MAX_IDS = 1 << 20  # characters of ids in one answer


class FinishedJobs:
    """The finished jobs of one file; see `Archive` for each method."""

    _db: sqlite3.Connection
    _queue_names: dict[int, str]

    def _see(self) -> None:
        """Write what the batch has collected so far, so reads see it."""
        raise NotImplementedError

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
        return dict(self._numbered("id", seqs, "own_id = 1"))

    def children_among(self, seqs: list[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for seq, extra in self._numbered("extra", seqs, "extra is not null"):
            family = rows.family(extra)
            if family.parent_id or family.flow_id:
                found[seq] = "" if family.flow_id else family.parent_id or ""
        return found

    def _numbered(self, column: str, seqs: list[int], condition: str) -> Iterator[tuple[int, Any]]:
        """For each of these jobs that meets a condition: its number, and its value of a column."""
        self._see()
        for start in range(0, len(seqs), 500):
            some = seqs[start : start + 500]
            marks = ",".join("?" * len(some))
            query = f"select seq, {column} from jobs where seq in ({marks}) and {condition}"
            yield from self._db.execute(query, some)

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

    def unreadable(self, seqs: list[int]) -> dict[int, UnreadableJob]:
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

    def errors_of(self, seqs: list[int]) -> dict[int, tuple[str | None, str | None]]:
        self._see()
        found = self._db.execute(rows.ERRORS, (json.dumps(seqs),))
        return {seq: (error_type, error) for seq, error_type, error in found}

    def attempts(self, seqs: list[int], interrupted: bool = False) -> dict[int, list[Attempt]]:
        self._see()
        hidden = "" if interrupted else INTERRUPTED
        found = {seq: attempts.latest(self._db, seq, hidden) for seq in seqs}
        return {seq: past for seq, past in found.items() if past}

    def log(self, seq: int) -> list[LogEntry]:
        self._see()
        return [LogEntry(*row) for row in self._db.execute(rows.LOG, (seq,))]

    def old_dead_letters(
        self, queue_id: int, until: int, limit: int, *, spare: bool = False
    ) -> list[OldLetter]:
        self._see()
        found = self._db.execute(rows.OLD_DEAD_LETTERS, (queue_id, until, spare, limit))
        return [OldLetter(*row[:-1]) for row in rows.bounded(found)]

    def old_completed(
        self, queue_id: int, until: int, limit: int, after: int
    ) -> tuple[list[Finished], int | None]:
        self._see()
        looked_at = list(rows.bounded(self._db.execute(rows.OLD_COMPLETED, (queue_id, after, limit, until))))
        found = [(seq, job_id) for seq, job_id, finished_at, *_ in looked_at if finished_at <= until]
        return found, looked_at[-1][0] if looked_at else None

    def outdated(self, queue_id: int, until: int, limit: int, after: int) -> Outdated:
        self._see()
        looked_at = list(rows.bounded(self._db.execute(rows.OLD_COMPLETED, (queue_id, after, limit, until))))
        found = [
            (seq, job_id) for seq, job_id, at, expires, _ in looked_at if at <= until and expires is None
        ]
        spared = any(expires is not None for *_, expires, _ in looked_at)
        return Outdated(found, looked_at[-1][0] if looked_at else None, spared)

    def expired(self, until: int, limit: int) -> list[Expired]:
        self._see()
        found = rows.bounded(self._db.execute(rows.EXPIRED, (until, limit)))
        return [
            Expired(seq, queue_id, state, OldLetter(seq, *letter))
            for seq, queue_id, state, *letter, _ in found
        ]
