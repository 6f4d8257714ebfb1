"""The live jobs of a file, read while its shard still has another owner, and brought up to date afterwards.

A process that waits for a shard reads them in the meantime, as that takes half a second for 100,000 jobs.
Once the shard is owned, and the file has all of its log, only the jobs that the log has touched since are
read again. Nothing is guessed: if it is uncertain which jobs a statement touches, all of them are read again.
"""

from __future__ import annotations

import gc
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import MsgspecError

from bunqueue.model.job import Job

from . import rows, statements
from .database import DISK_ERRORS
from .schema import CURRENT

PIECE = 10_000  # jobs that are read again with one statement
MOST = 20_000  # jobs to read again, or half of all if that is more; above it, reading all is as fast

Numbers = Iterable[int]

_LIVE_TABLES = frozenset({"jobs", "locks", "completed", "dead_letters"})
"""Their rows determine which jobs are live, and the state of those jobs."""
_TABLE = re.compile(r"(?:insert(?: or \w+)? into|update(?: or \w+)?|delete from) (\w+)")


def _first(row: Sequence[Any]) -> Numbers:
    return (row[0],)


def _second(row: Sequence[Any]) -> Numbers:
    return (row[1],)


def _last(row: Sequence[Any]) -> Numbers:
    return (row[-1],)


def _between(row: Sequence[Any]) -> Numbers:
    return range(row[-2], row[-1] + 1)


def _none(row: Sequence[Any]) -> Numbers:
    return ()


_NUMBERS: dict[str, Callable[[Sequence[Any]], Numbers]] = {
    statements.INSERT_FRESH: _first,
    statements.INSERT_NAMED: _first,
    statements.INSERT_JOB: _first,
    statements.INSERT_RUN_JOB: _first,
    statements.UPDATE_JOB: _last,
    statements.UPDATE_RUN_JOB: _last,
    statements.DELETE_JOBS: _between,
    statements.INSERT_LOCK: _first,
    statements.PUT_LOCK: _first,
    statements.DELETE_LOCKS: _between,
    statements.FORGET_CONNECTIONS: _none,  # jobs with a lock are always read again
    statements.INSERT_SUCCESS: _second,
    statements.PUT_COMPLETED: _second,
    statements.DELETE_COMPLETED: _second,
    statements.PURGE_COMPLETED: _between,
    statements.MOVE_COMPLETED: _none,  # these three change times of finished jobs
    statements.MOVE_DEAD_LETTERS: _none,
    statements.MOVE_RETRIES: _none,
    statements.PUT_DEAD_LETTER: _first,
    statements.DELETE_DEAD: _first,
    statements.PURGE_DEAD: _between,
}
"""The numbers of the jobs that a statement touches, by its parameters."""


def touches(number: int) -> Callable[[Sequence[Any]], Numbers] | None:
    """The function that gives, for a numbered statement's parameters, the numbers of the live jobs that it
    may change; None if unknown."""
    sql = statements.BY_NUMBER.get(number)
    if sql is None:
        return None
    found = _TABLE.match(sql)
    if found is not None and found[1] not in _LIVE_TABLES:
        return _none
    return _NUMBERS.get(sql)


_TOUCHES = {number: touches(number) for number in statements.BY_NUMBER}


class Preloaded:
    """See above. Used once: the jobs belong to the engine afterwards."""

    def __init__(self, jobs: dict[int, Job]) -> None:
        self._jobs: dict[int, Job] | None = jobs  # None: all have to be read again
        self._touched: set[int] = set()
        self._most = max(MOST, len(jobs) // 2)

    def changed(self, changes: Iterable[tuple[int, list[Any]]]) -> None:
        """These statements were carried out, each for some rows of parameters."""
        for number, parameters in changes:
            numbers = _TOUCHES.get(number)
            if self._jobs is None:
                return
            if numbers is None:
                self.forget()
            elif numbers is not _none:
                for row in parameters:
                    self._touch(numbers(row))

    def _touch(self, numbers: Numbers) -> None:
        if isinstance(numbers, range) and len(numbers) > self._most:
            self.forget()
            return
        self._touched.update(numbers)
        if len(self._touched) > self._most:
            self.forget()

    def forget(self) -> None:
        """All jobs have to be read again."""
        self._jobs = None
        self._touched.clear()

    def take(self, db: sqlite3.Connection, queues: dict[int, str]) -> list[Job] | None:
        """The live jobs as the file has them now, in order of arrival; None if all have to be read.

        ``queues``: the names of all queues, by id. Raises SQLite's errors and MsgspecError.
        """
        jobs, self._jobs = self._jobs, None
        if jobs is None:
            return None
        again = sorted(self._touched | {seq for seq, job in jobs.items() if job.lock is not None})
        for seq in again:
            jobs.pop(seq, None)
        for begin in range(0, len(again), PIECE):
            piece = msgspec.json.encode(again[begin : begin + PIECE]).decode()
            for row in db.execute(rows.LIVE_AMONG, (piece,)):
                jobs[row[0]] = rows.live_job(row, queues)
        return [jobs[seq] for seq in sorted(jobs)]


def preload(db: sqlite3.Connection) -> Preloaded | None:
    """Read the live jobs of a file; None if it has no tables yet, or cannot be read whole, which the recovery
    will find."""
    if db.execute("pragma user_version").fetchone()[0] != CURRENT:
        return None
    gc.disable()  # as in a recovery: all objects stay
    try:
        queues = dict(db.execute("select id, name from queues"))
        stored = db.execute("select value from meta where key = 'live_from'").fetchone()
        found = db.execute(rows.LIVE_JOBS, {"live_from": int(stored[0]) if stored else 0})
        return Preloaded({row[0]: rows.live_job(row, queues) for row in found})
    except (*DISK_ERRORS, MsgspecError):
        return None
    finally:
        gc.enable()
