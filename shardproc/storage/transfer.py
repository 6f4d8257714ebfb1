"""Copies jobs with all their rows from one file to another: the SQLite part of resharding.

Jobs are numbered by their shard, so where files are merged, the jobs of all but one get other numbers. Their
ids do not encode these; they are found like ids that clients chose, by the index of ``own_id``.

A file under construction has no journal and is not flushed until it is whole: before that it may be lost.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from bunqueue.server.folder.data_folder import private, sync
from bunqueue.server.folder.shard_identity import Identity

from . import statements
from .database import LOCK_WAIT_S, PAGE_SIZE, own
from .marking import put_mark
from .schema import OF_JOBS, WrongSchema, migrate, version_of

Record = tuple[str, str, str]  # kind, key, value
EventRow = tuple[int, int, int, bytes, bytes | None]  # first_seq, at, count, payload, pushed

BroadcastRow = tuple[str, str, str, int, int, int, bytes]  # the columns of broadcasts; each shard has all

TransferError = sqlite3.Error  # what any method here may raise
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})

CACHE_KIB = 8192  # for each file: there may be 64 at once

_SENT = "id, name, key, at, expires_at, delivered, data"
_EVENT = "first_seq, at, count, payload, pushed"
_SIZES = """
select queues.id, name, created_at, coalesce(held.jobs, 0),
       coalesce(held.bytes, 0) + coalesce(results.bytes, 0)
from queues
left join (select queue_id, count(*) as jobs, sum(length(data)) as bytes from jobs group by queue_id) held
on held.queue_id = queues.id
left join (select queue_id, sum(coalesce(length(completed.result), length(large_outcomes.result), 0)) as bytes
           from completed left join large_outcomes on large and large_outcomes.seq = completed.seq
           group by queue_id) results
on results.queue_id = queues.id
order by queues.id
"""
_SPAN = """
select coalesce(max(seq), 0),
       coalesce((select max(cast(value as integer)) - 1 from meta where key = 'live_from'), 0)
from jobs
"""
_COUNTS = """
update queues set completed = (select count(*) from completed where queue_id = queues.id),
                  failed = (select count(*) from dead_letters where queue_id = queues.id)
"""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file that was read is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


class QueueSize(NamedTuple):
    """A queue of a file, and its size; ``bytes`` are those of payloads and results."""

    id: int
    name: str
    created_at: int
    jobs: int
    bytes: int


class Source:
    """The file of a shard, locked until it is closed, and never written to."""

    def __init__(self, path: Path) -> None:
        """DatabaseBusy when another process has it; WrongSchema."""
        self.path = path
        self._open = ExitStack()
        with self._open:  # closed here if there is an error
            self._open.enter_context(closing(own(path, LOCK_WAIT_S)))
            self.uri = _uri(path)
            self._db = sqlite3.connect(self.uri, uri=True, isolation_level=None)
            self._open.enter_context(closing(self._db))
            self._db.execute(f"pragma cache_size = -{CACHE_KIB}")
            if not version_of(self._db):
                raise WrongSchema("it has no tables yet: start the server once and stop it")
            self.last_seq = max(self._db.execute(_SPAN).fetchone())  # numbers above it are free
            self._open = self._open.pop_all()

    def problem(self) -> str | None:
        """What is wrong with the file, if it is damaged."""
        found: str = self._db.execute("pragma quick_check(1)").fetchone()[0]
        return None if found == "ok" else found

    def size(self) -> int:
        """Bytes that are in use."""
        pragmas = ("page_count", "freelist_count", "page_size")
        pages, free, size = (int(self._db.execute(f"pragma {name}").fetchone()[0]) for name in pragmas)
        return (pages - free) * size

    def queues(self) -> list[QueueSize]:
        return [QueueSize(*row) for row in self._db.execute(_SIZES)]

    def jobs(self) -> int:
        """The number of jobs, including those that belong to no queue."""
        return int(self._db.execute("select count(*) from jobs").fetchone()[0])

    def windows(self, size: int) -> Iterator[tuple[int, int]]:
        """All jobs in pieces of that many: the numbers (after, last)."""
        query = "select max(seq) from (select seq from jobs where seq > ? order by seq limit ?)"
        after = -1
        while (last := self._db.execute(query, (after, size)).fetchone()[0]) is not None:
            yield after, last
            after = last

    def own_ids(self) -> Iterator[tuple[str, int]]:
        """The ids that do not encode the number of their job, with the queue."""
        return self._db.execute("select id, queue_id from jobs where own_id = 1")

    def records(self) -> Iterator[Record]:
        return self._db.execute("select kind, key, value from records")

    def broadcasts(self) -> Iterator[BroadcastRow]:
        """Signals to all that wait for a key."""
        return self._db.execute(f"select {_SENT} from broadcasts")

    def events(self) -> Iterator[EventRow]:
        """The log in order."""
        return self._db.execute(f"select {_EVENT} from events order by first_seq")

    def next_event(self) -> int:
        """The number that the next event would get."""
        query = "select coalesce(max(first_seq + count), 1) from events"
        return int(self._db.execute(query).fetchone()[0])

    def close(self) -> None:
        self._open.close()


def _uri(path: Path) -> str:
    """A URI that opens a file without writing to it and, if possible, without writing beside it."""
    log = Path(f"{path}-wal")
    is_logged = log.exists() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?mode=ro" + ("" if is_logged else "&immutable=1")


class Target:
    """A file under construction. Between `attach` and `detach` it takes the jobs of one source."""

    def __init__(self, path: Path) -> None:
        """``path`` must not exist."""
        self.path = path
        self.last_seq = 0  # numbers above it are free
        os.close(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        self._db = sqlite3.connect(path.absolute().as_uri(), uri=True, isolation_level=None)
        execute = self._db.execute
        execute(f"pragma page_size = {PAGE_SIZE}")
        execute("pragma auto_vacuum = incremental")
        execute("pragma journal_mode = off")
        execute("pragma synchronous = off")
        execute("pragma temp_store = memory")
        execute(f"pragma cache_size = -{CACHE_KIB}")
        migrate(self._db)
        execute("create temp table moved (old integer primary key, new integer not null)")
        self._copies = [_copy(self._db, table.name) for table in OF_JOBS]
        execute("begin")

    def attach(self, source: Source, moved: Iterable[tuple[int, int]]) -> None:
        """Take jobs from a source: those of these queues, as (their number there, their number here).

        Their numbers are kept if the file has no jobs yet.
        """
        self._offset = self.last_seq
        self._db.execute("commit")  # files can only be attached outside a transaction
        self._db.execute("attach ? as source", (source.uri,))
        self._db.execute(f"pragma source.cache_size = -{CACHE_KIB}")
        self._db.execute("begin")
        self._db.execute("delete from moved")
        self._db.executemany("insert into moved values (?, ?)", moved)
        self.last_seq += source.last_seq

    def copy(self, after: int, last: int) -> int:
        """Copy the jobs with these numbers in the source; returns the number of jobs copied."""
        span = {"after": after, "last": last, "offset": self._offset}
        jobs, *_ = [self._db.execute(sql, span).rowcount for sql in self._copies]
        if jobs:
            first, end = after + 1 + self._offset, last + 1 + self._offset
            self._db.execute(statements.NEW_STRAGGLERS, (first, end))
        return jobs

    def detach(self) -> None:
        self._db.execute("commit")
        self._db.execute("detach source")
        self._db.execute("begin")

    def put_queues(self, queues: Iterable[tuple[int, str, int]]) -> None:
        self._db.executemany(statements.PUT_QUEUE, queues)

    def put_records(self, records: Iterable[Record]) -> None:
        self._db.executemany(statements.PUT_RECORD, records)

    def put_broadcasts(self, broadcasts: Iterable[BroadcastRow]) -> None:
        """Add broadcasts. One that is there already counts as delivered only if it was delivered
        everywhere."""
        put = f"""insert into broadcasts ({_SENT}) values (?, ?, ?, ?, ?, ?, ?)
                  on conflict (id) do update set delivered = min(delivered, excluded.delivered)"""
        self._db.executemany(put, broadcasts)

    def put_events(self, events: Iterable[EventRow]) -> None:
        self._db.executemany(f"insert into events ({_EVENT}) values (?, ?, ?, ?, ?)", events)

    def finish(self, identity: Identity) -> None:
        """Complete the file: record where it belongs, and flush it to disk."""
        self._db.execute(_COUNTS)
        # All live jobs are among the stragglers.
        self._db.execute("insert into meta values ('live_from', ?)", (str(self.last_seq + 1),))
        put_mark(self._db, identity)
        self._db.execute("commit")
        self.close()
        sync(self.path)

    def close(self) -> None:
        """Safe to call twice; an unfinished file is of no use."""
        self._db.close()


def _copy(db: sqlite3.Connection, table: str) -> str:
    """A statement that copies the rows that jobs have in a table."""
    columns = [name for _, name, *_ in db.execute(f"pragma main.table_info({table})")]
    given = {
        "seq": "its.seq + :offset",
        "queue_id": "moved.new",
        "own_id": "its.own_id or :offset > 0",
    }
    values = ", ".join(given.get(name, f"its.{name}") for name in columns)
    also = " and its.queue_id = jobs.queue_id" if "queue_id" in columns else ""
    # cross join: in this order
    return f"""
    insert into main.{table} ({", ".join(columns)}) select {values}
    from source.jobs cross join moved on moved.old = jobs.queue_id
    cross join source.{table} its on its.seq = jobs.seq{also}
    where jobs.seq > :after and jobs.seq <= :last order by jobs.seq
    """
