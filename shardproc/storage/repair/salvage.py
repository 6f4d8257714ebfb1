"""Makes a new file from what can be read of a damaged one.

Tables are read around their damaged pages. Then the contents of the new file are made to agree: rows without
their job are dropped, and a job that has ended, but whose outcome cannot be read, becomes a dead letter, so
it is not run again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from sqlite_utils import Database

from bunqueue.server.folder.data_folder import private, sync

from .. import rows
from ..damage import DAMAGE, PARKED, is_damage
from ..database import PAGE_SIZE
from ..event_log import decode
from ..schema import OF_JOBS, TABLES, Table, migrate
from ..search.index import KEY as SEARCH
from .contradictions import FIXES
from .live_around import Fates
from .walking import Row, by_number, walk

NOT_KEPT = frozenset({"live_from", "probe", PARKED, SEARCH})  # of meta: they follow from the rest
BEYOND = 3000  # the most keys that one unreadable page at the end may have held
FIRST_FREE = 100_000  # numbers of events skipped when the newest ones cannot be read: they must not be reused
SEARCHED = 32_768  # numbers of events without a row, after which the search ends; about a second
MAX_EVENT = 2**53
SHOWN = 1000  # ids of lost jobs that are shown
UNKNOWN = "its outcome stood in a damaged part of the file"

_UNDECIDED = """select seq, queue_id from jobs
    where not exists (select 1 from completed
                      where completed.queue_id = jobs.queue_id and completed.seq = jobs.seq)
    and not exists (select 1 from dead_letters where dead_letters.seq = jobs.seq)"""

Progress = Callable[[str], None]

_ROOT = b"\x01\0\0\0\0"  # in a pointer map: a root, which no other page points to


class Salvaged(Struct):
    """The result of salvaging a file."""

    kept: dict[str, int] = field(default_factory=dict)  # rows by table
    lost: dict[str, int] = field(default_factory=dict)  # the most rows that could not be read, by table
    jobs: int = 0  # known to be lost
    ids: list[str] = field(default_factory=list)  # of these, as far as they are known
    unknown: int = 0  # jobs that have ended in an unknown way, and are now dead letters


def salvage(source: Path, target: Path, progress: Progress) -> Salvaged:
    """Make ``target`` from what can be read of ``source``, which stays unchanged. OSError, sqlite3.Error."""
    target.unlink(missing_ok=True)
    os.close(private(str(target), os.O_RDWR | os.O_CREAT))
    with closing(_open(source, target.parent)) as old, closing(_fresh(target, incremental=True)) as new:
        found = _Salvage(old, new, progress).run()
        new.execute("pragma journal_mode = wal")
        new.execute("pragma wal_checkpoint(truncate)")
    sync(target)
    return found


def _fresh(path: Path, *, incremental: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"pragma page_size = {PAGE_SIZE}")
    db.execute(f"pragma auto_vacuum = {'incremental' if incremental else 'none'}")
    db.execute("pragma journal_mode = off")
    db.execute("pragma synchronous = off")
    migrate(db)
    return db


def _open(source: Path, folder: Path) -> sqlite3.Connection:
    """Open the file to read; or a copy with another first page, if that is damaged, or with pages added where
    some were cut off."""
    db = _reader(source)
    size = source.stat().st_size
    with source.open("rb") as file:
        head = file.read(100)
    with suppress(sqlite3.DatabaseError):
        pages = int.from_bytes(head[28:32], "big")
        if _has_tables(source) and pages * PAGE_SIZE <= size:
            return db
    db.close()
    return _reader(_fixed_copy(source, folder / f"{source.name}.copy", head))


def _reader(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    return db


def _fixed_copy(source: Path, copy: Path, head: bytes) -> Path:
    shutil.copyfile(source, copy)
    log = Path(f"{source}-wal")
    if log.exists():
        shutil.copyfile(log, f"{copy}-wal")
    pages = -(-copy.stat().st_size // PAGE_SIZE)
    if head.startswith(b"SQLite format 3\0"):
        pages = max(pages, int.from_bytes(head[28:32], "big"))
    donor = copy.with_suffix(".donor")
    donor.unlink(missing_ok=True)
    _fresh(donor, incremental=_has_pointer_map(copy)).close()
    page = bytearray(donor.read_bytes()[:PAGE_SIZE])
    donor.unlink()
    page[18:20] = b"\x02\x02"  # with a log of its own
    page[28:32] = pages.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no free pages: nothing is written to it
    page[92:96] = page[24:28]
    with copy.open("r+b") as file:
        file.truncate(pages * PAGE_SIZE)
        if not _has_tables(source):
            file.write(page)
    return copy


def _has_pointer_map(file: Path) -> bool:
    """Whether the file can return free pages: its second page then marks the third as the root of a table."""
    with file.open("rb") as opened:
        opened.seek(PAGE_SIZE)
        return opened.read(len(_ROOT)) == _ROOT


def _has_tables(file: Path) -> bool:
    with closing(_reader(file)) as db, suppress(sqlite3.DatabaseError):
        return Database(db, execute_plugins=False).table("jobs").exists()
    return False


class _Enough(Exception):
    """There is nothing more to find."""


class _Salvage:
    def __init__(self, old: sqlite3.Connection, new: sqlite3.Connection, progress: Progress) -> None:
        self._old, self._new, self._progress = old, new, progress
        tables = Database(new, execute_plugins=False)
        self._columns = {table.name: list(tables.table(table.name).columns_dict) for table in TABLES}
        self._bad: dict[str, set[int]] = {}
        self.found = Salvaged()
        self._reported_at = time.monotonic()

    def run(self) -> Salvaged:
        new = self._new
        new.execute("begin")
        self._last = self._highest()
        for table in TABLES:
            if not table.is_derived:
                self._copy(table)
        self._agree()
        new.execute("commit")
        self.found.lost |= {table: len(bad) for table, bad in self._bad.items() if bad}
        return self.found

    # -- copying ------------------------------------------------------------------------------

    def _copy(self, table: Table) -> None:
        if table.name == "queues":
            self._numbered(table)
            self._queue_names()
        elif table.name == "completed":
            self._completed()
        elif table.name == "events":
            self._events()
        elif table.of == "job":
            self._numbered(table)
        else:
            self._small(table)

    def _highest(self) -> int:
        """An upper bound of the numbers of jobs."""
        known, short = [0], False
        for table in TABLES:
            if table.key != ("seq",):
                continue
            try:
                known.append(self._old.execute(f"select max(seq) from {table.name}").fetchone()[0] or 0)
            except DAMAGE:
                short = True
        with suppress(*DAMAGE):
            known.append(self._old.execute("select max(seq) from jobs where own_id = 1").fetchone()[0] or 0)
        with suppress(*DAMAGE):
            stored = self._old.execute("select value from meta where key = 'live_from'").fetchone()
            known.append(int(stored[0]) - 1 if stored else 0)
        return max(known) + BEYOND * short

    def _bad_of(self, table: str) -> Callable[[int], None]:
        return self._bad.setdefault(table, set()).add

    def _numbered(self, table: Table) -> None:
        """Copy a table whose key begins with a number."""
        name, key = table.name, table.key[0]
        columns = ", ".join(self._columns[name])
        query = f"select {columns} from {name} where {key} between ? and ? order by {key}"
        read, repeated = by_number(self._old, query), len(table.key) > 1
        self._put(name, walk(read, 0, self._last, self._bad_of(name), repeated=repeated))

    def _put(self, table: str, found: Iterable[Row]) -> None:
        columns = self._columns[table]
        put = f"insert or ignore into {table} values ({','.join('?' * len(columns))})"
        kept = 0
        for row in found:
            if table == "jobs" and not _is_job(dict(zip(columns, row, strict=True))):
                self._bad_of(table)(row[0])
                continue
            kept += self._new.execute(put, row).rowcount
            if kept % 5000 == 0:
                self._report(f"{table}: {kept:,} rows")
        self.found.kept[table] = kept

    def _report(self, text: str) -> None:
        if time.monotonic() - self._reported_at > 1:
            self._reported_at = time.monotonic()
            self._progress(text)

    def _queue_names(self) -> None:
        """Add queues from the index of names, which may still list a queue whose row is gone."""
        with suppress(*DAMAGE):
            query = "select id, name from queues indexed by sqlite_autoindex_queues_1 order by name"
            for queue_id, name in self._old.execute(query):
                put = "insert or ignore into queues (id, name, created_at) values (?, ?, ?)"
                self._new.execute(put, (queue_id, name, time.time_ns() // 1_000_000))

    def _completed(self) -> None:
        columns = ", ".join(self._columns["completed"])
        query = f"""select seq, {columns} from completed where queue_id = ? and seq between ? and ?
                    order by seq"""
        ids = [row[0] for row in self._new.execute("select id from queues")]
        bad = self._bad_of("completed")

        def found() -> Iterator[Row]:
            for queue_id in ids:
                for row in walk(by_number(self._old, query, queue_id), 0, self._last, bad):
                    yield row[1:]

        self._put("completed", found())

    def _small(self, table: Table) -> None:
        """Copy a small table, whose keys are texts: from its beginning, and from its end, up to the
        damage."""
        name, keys, columns = table.name, table.key, ", ".join(self._columns[table.name])
        kept: dict[Row, Row] = {}
        whole = True
        for order in ("asc", "desc"):
            ordered = ", ".join(f"{key} {order}" for key in keys)
            try:
                for row in self._old.execute(f"select {columns} from {name} order by {ordered}"):
                    kept[row[: len(keys)]] = row
            except DAMAGE as error:
                if not is_damage(error):
                    raise
                whole = False
            else:
                break
        if not whole:
            self.found.lost[name] = 1  # the number is unknown
        self._put(name, (row for row in kept.values() if name != "meta" or row[0] not in NOT_KEPT))

    def _events(self) -> None:
        last, short = 0, False
        try:
            last = self._old.execute("select max(first_seq) from events").fetchone()[0] or 0
        except DAMAGE:
            short = True
            last = self._last_event()
        columns = ", ".join(self._columns["events"])
        query = f"select {columns} from events where first_seq between ? and ? order by first_seq"
        read = walk(by_number(self._old, query), 1, last, self._bad_of("events"))
        self._put("events", (row for row in read if _is_events(row)))
        if short:
            self._bad_of("events")(last + 1)
            put = "insert or ignore into events (first_seq, at, count, payload) values (?, ?, 1, x'91c0')"
            self._new.execute(put, (last + FIRST_FREE, time.time_ns() // 1_000_000))

    def _last_event(self) -> int:
        """The newest row of the event log that can be found when the end of the log cannot be read."""
        last = missed = 0

        def miss(number: int) -> None:
            nonlocal missed
            missed += 1
            if missed > SEARCHED:
                raise _Enough

        with suppress(_Enough):
            for row in walk(by_number(self._old, _FIRST), 1, MAX_EVENT, miss):
                last, missed = row[0], 0
        return last

    # -- making the rows agree -----------------------------------------------------------------

    def _agree(self) -> None:
        new = self._new
        self._lost_jobs()
        new.execute("delete from jobs where queue_id not in (select id from queues)")
        for table in OF_JOBS[1:]:
            new.execute(f"delete from {table.name} where seq not in (select seq from jobs)")
        self._end_unknown()
        new.execute(f"insert into stragglers select seq from ({_UNDECIDED})")
        new.execute("insert or replace into meta values ('live_from', ?)", (str(self._last + 1),))
        for fix in FIXES["one state a job"]:
            new.execute(fix)

    def _lost_jobs(self) -> None:
        """Count jobs that other rows or events mention, but whose own row is gone."""
        parts = " union ".join(f"select seq from {table}" for table in ("completed", "dead_letters", "locks"))
        query = f"""select seq from ({parts}) where seq not in (select seq from jobs)
                    union select seq from jobs where queue_id not in (select id from queues)"""
        lost = {row[0] for row in self._new.execute(query)}
        unread = self._bad.get("jobs", set())
        fates = Fates(self._old, lost | unread, self._new) if lost or unread else None
        if fates is not None:
            lost |= {seq for seq in unread if seq in fates.ids and seq not in fates.gone}
            self.found.ids = [fates.ids[seq] for seq in sorted(lost) if seq in fates.ids][:SHOWN]
        self.found.jobs = len(lost)

    def _end_unknown(self) -> None:
        """Turn jobs that have ended, but whose outcome is gone, into dead letters."""
        if not (self._bad.get("completed") or self._bad.get("dead_letters")):
            return
        undecided = dict(self._new.execute(_UNDECIDED))
        fates = Fates(self._old, set(undecided), self._new)
        before = self._surely_finished(set(undecided))
        now = time.time_ns() // 1_000_000
        put = """insert or ignore into dead_letters
                 (seq, queue_id, finished_at, attempts, stalls, worker, reason, error)
                 values (?, ?, ?, 0, 0, '', 'unknown', ?)"""
        for seq, queue_id in undecided.items():
            if fates.ended.get(seq, seq in before):
                self.found.unknown += self._new.execute(put, (seq, queue_id, now, UNKNOWN)).rowcount
                self._new.execute("delete from locks where seq = ?", (seq,))

    def _surely_finished(self, undecided: set[int]) -> set[int]:
        """Those of these jobs that have certainly finished: they are below `live_from` and not among the
        stragglers, as far as both can be read."""
        try:
            stored = self._old.execute("select value from meta where key = 'live_from'").fetchone()
            stragglers = {row[0] for row in self._old.execute("select seq from stragglers")}
        except DAMAGE:
            return set()
        first = int(stored[0]) if stored else 0
        return {seq for seq in undecided if seq < first and seq not in stragglers}


_FIRST = "select first_seq from events where first_seq between ? and ? order by first_seq"


def _is_job(named: dict[str, Any]) -> bool:
    """Whether a row of jobs, given by the names of its columns, can be decoded."""
    try:
        rows.live_job((*(named[name.strip()] for name in rows.JOB_COLUMNS.split(",")), *(None,) * 9), _ANY)
    except DAMAGE:
        return False
    texts = isinstance(named["id"], str) and isinstance(named["name"], str)
    return texts and isinstance(named["data"], bytes) and isinstance(named["queue_id"], int)


def _is_events(row: Row) -> bool:
    try:
        decode(row[3])
    except DAMAGE:
        return False
    return True


class _AnyQueue(dict[int, str]):
    def __missing__(self, key: int) -> str:
        return ""


_ANY = _AnyQueue()
