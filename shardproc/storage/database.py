"""Opening a shard's file: pragmas, schema, and the guarantee that no other process writes to it."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, Protocol, TextIO

from bunqueue.server.folder.data_folder import check_place, place_of, private, sync
from bunqueue.server.folder.file_lock import lock_file
from shardproc.storage.deleted_files import Presence

from . import recheck
from .damage import Damage, Unstorable, is_damage
from .marking import mark
from .schema import migrate, version_of

PAGE_SIZE = 8192  # a fifth less work than 4096 on rows of this size, as measured
CHECKPOINT_PAGES = 4000  # 32 MiB of WAL: fewer checkpoints than the default, still quick to replay
MAX_LOG = 64 << 20  # bytes of WAL kept after a reset: during long reads it grows beyond that
CACHE_KIB = 65_536
SMALL_CACHE_KIB = 2_048
_INCREMENTAL = 2  # of pragma auto_vacuum
MEMORY = ":memory:"  # instead of a path
OPEN_BUSY_MS = 5_000  # for a reader that is just opening the file
BUSY_MS = 1_000  # for a short write of another program; the shard answers no client in that time
LOCK_WAIT_S = 10.0  # a predecessor that lost its router may still be committing

# Without an adapter, sqlite3 looks for one in several places each time that it binds bytes. That takes 2,500
# instructions for each value, a twentieth of what a job costs a shard. This one returns the same object.
sqlite3.adapters.setdefault((bytes, sqlite3.PrepareProtocol), bytes.__bytes__)

DatabaseError = sqlite3.Error  # what opening, reading and committing may raise


DISK_ERRORS = (sqlite3.DatabaseError,)  # raised when the disk is full or broken, or a file damaged
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL = sqlite3.SQLITE_FULL
_BROKEN = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


def disk_problem(error: Exception) -> str | None:
    """ "full" or "broken" when an error of DISK_ERRORS comes from the disk, "locked" when another program
    holds the write lock: these may pass. "damaged" when the file is damaged, which does not pass; else
    None."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the remaining bits are not needed here
    if code == _FULL:
        return "full"
    if code in _LOCKED:
        return "locked"
    damaged = isinstance(error, Unstorable) or is_damage(error)
    return "broken" if code in _BROKEN else "damaged" if damaged else None


def is_out_of_space(folder: str) -> bool:
    """Whether writing fails because there is no space, or no quota, left: for a used-up quota SQLite only
    reports that writing has failed."""
    try:
        with TemporaryFile(dir=folder, prefix="shard-") as file:
            os.pwrite(file.fileno(), bytes(PAGE_SIZE), 0)
    except OSError as error:
        return error.errno in FULL_ERRNOS
    return False


class Writer(Protocol):
    """A connection, or a cursor of it."""

    def execute(self, sql: str, parameters: Any = ..., /) -> object: ...

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor: ...


class FlushFailed(sqlite3.DatabaseError):
    """The commit is in the file, but may not survive a power cut."""

    def __init__(self, error: OSError) -> None:
        why = error.strerror or str(error)
        super().__init__(f"the file cannot be flushed: {why}; what was being changed may be stored")
        full = error.errno in FULL_ERRNOS
        self.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR_FSYNC


class DatabaseBusy(Exception):
    """Another process owns the file."""


class Database:
    """One connection to one file; the only writer for as long as it is open."""

    def __init__(
        self,
        path: str,
        *,
        full_sync: bool,
        lock_wait_s: float | None = None,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
        migrates: bool = True,
    ) -> None:
        """Waits LOCK_WAIT_S, or ``lock_wait_s``, for the file's owner to leave; then DatabaseBusy.
        ``factory`` makes the connection: a class of the caller's can see what is written. A file that follows
        a log is not migrated here (``migrates`` false), as its log decides when: call `take_place`
        afterwards.

        WrongSchema when another version has written the file. FilesMismatch when it is in a data folder that
        expects another file there, or had one.
        """
        self.path = path
        self._full_sync = full_sync
        self.damage = Damage(path)
        self.checkpoint_failures = 0
        self.checkpoint_error = ""  # of the last checkpoint; "" while they work
        self.checkpoint_pages = CHECKPOINT_PAGES  # of WAL, after which SQLite makes one
        self._unflushed = False  # a flush has failed: its data is only in the kernel's memory
        self._named = False  # its name survives a power loss
        self.presence: Presence | None = None  # None: in memory
        self._lock: FileLock | None = None
        self._place = None if path == ":memory:" else place_of(Path(path))
        if path != ":memory:":
            check_place(Path(path), self._place)  # before a file is made
            self._lock = own(Path(path), LOCK_WAIT_S if lock_wait_s is None else lock_wait_s)
        try:
            check_place(Path(path), self._place)  # its previous owner may have fixed it
            self.connection = sqlite3.connect(
                path,
                isolation_level=None,
                check_same_thread=False,
                timeout=OPEN_BUSY_MS / 1000,
                factory=factory,
            )
        except BaseException:
            self._unlock()
            raise
        try:
            self._prepare()
            if migrates:
                migrate(self.connection)
                self.take_place()
            else:
                version_of(self.connection)
        except BaseException:
            self.close()
            raise
        self._wait_for_locks(BUSY_MS)
        self.damage.recheck = self.recheck
        self.writer: Writer = self.connection
        """Carries out the statements of each batch. A connection makes a new cursor for each statement, which
        is a fortieth of what a single command costs a shard; but a class of the caller's has to see them."""
        if type(self.connection) is sqlite3.Connection:
            self.writer = self.connection.cursor()

    def recheck(self) -> None:
        """Raise `recheck.ReadFailed` unless the file is damaged."""
        recheck.recheck(self.connection, None if self._lock is None else self._lock.descriptor)

    def _prepare(self) -> None:
        execute = self.connection.execute
        execute(f"pragma page_size = {PAGE_SIZE}")
        if not self.is_incremental():  # setting it again would write into the file
            execute("pragma auto_vacuum = incremental")  # for a new file, or one that is written anew
        execute("pragma journal_mode = wal")
        execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
        execute(f"pragma journal_size_limit = {MAX_LOG}")
        execute(f"pragma cache_size = -{CACHE_KIB}")
        execute("pragma temp_store = memory")
        execute(f"pragma synchronous = {'full' if self._full_sync else 'normal'}")

    def take_place(self) -> None:
        """Write into the file which data folder it belongs to, unless it is there already, and watch its
        name."""
        if self._place is not None:
            mark(self.connection, self._place.identity)
        if self._lock is not None:
            self.presence = Presence(self.path, self._lock.descriptor)

    def flush(self) -> None:
        """Make all commits so far survive a power loss, where commits do not do so on their own."""
        if self._full_sync or self.presence is None:
            return
        try:
            if not self._named:
                sync(Path(self.path).parent)  # the files may be new, and so may their names
                self._named = True
            os.fdatasync(self.presence.log)
        except OSError as error:
            self._unflushed = True
            raise FlushFailed(error) from error

    def abandon(self) -> None:
        """In a forked child: release the lock, which lasts as long as any process has its handle open.

        The connection must be kept and never be used or closed again: it is the parent's.
        """
        self._unlock()  # by closing it: anything else would release the parent's lock

    def checkpoint_every(self, pages: int) -> None:
        """Have the WAL copied into the database whenever it has this many pages."""
        self.checkpoint_pages = pages
        self.connection.execute(f"pragma wal_autocheckpoint = {pages}")

    def checkpoint(self, how: Literal["passive", "restart", "truncate"]) -> bool:
        """Copy the WAL into the database now, and restart it; False when there is no space for that, or a
        reader needs it. Does not wait for locks."""
        try:
            with self._waiting_for_nobody():
                busy = self.connection.execute(f"pragma wal_checkpoint({how})").fetchone()[0]
        except DISK_ERRORS as error:
            if disk_problem(error) != "locked":
                self.checkpoint_failures += 1
                self.checkpoint_error = str(error)
            return False
        self.checkpoint_error = ""
        return not busy

    def _wait_for_locks(self, ms: int) -> None:
        self.connection.execute(f"pragma busy_timeout = {ms}")

    @contextmanager
    def _waiting_for_nobody(self) -> Iterator[None]:
        self._wait_for_locks(0)
        try:
            yield
        finally:
            self._wait_for_locks(BUSY_MS)

    def owed(self) -> int:
        """Bytes by which the next checkpoint makes the database file larger."""
        pages, _ = self.pages()
        found = os.stat(self.path)
        there = min(found.st_size, found.st_blocks * 512)  # it has holes where a reader was in the way
        return max(0, pages * PAGE_SIZE - there)

    def unused(self) -> int:
        """Bytes in the database file that new rows may take."""
        return self.pages()[1] * PAGE_SIZE

    def wal_size(self) -> int:
        """Bytes of the write-ahead log."""
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def rollback(self) -> None:
        """Roll back the open transaction, if the error has left one."""
        if self.connection.in_transaction:
            self.connection.execute("rollback")

    def probe(self, size: int) -> None:
        """Write this many bytes and delete them again; raises what writing raises. Once a flush has failed,
        it also flushes, after the log is copied into the database: the kernel does not retry a page whose
        write has failed."""
        try:  # two transactions: data deleted in its own never reaches the disk
            self.connection.execute("insert or replace into meta values ('probe', zeroblob(?))", (size,))
            self.connection.execute("delete from meta where key = 'probe'")
            if self._unflushed:
                self.connection.execute("pragma wal_checkpoint(passive)").fetchone()
                self.flush()
                self._unflushed = False
        except DISK_ERRORS:
            self.rollback()
            raise

    def can_write(self, size: int) -> bool:
        """Whether this many bytes can be written, as `probe` does. Does not wait for locks."""
        try:
            with self._waiting_for_nobody():
                self.probe(size)
        except DISK_ERRORS:
            return False
        return True

    @contextmanager
    def small_cache(self) -> Iterator[None]:
        """Keep hardly any pages in memory for the duration."""
        self.connection.execute(f"pragma cache_size = -{SMALL_CACHE_KIB}")
        try:
            yield
        finally:
            self.connection.execute(f"pragma cache_size = -{CACHE_KIB}")

    def pages(self) -> tuple[int, int]:
        """The number of pages of PAGE_SIZE, and how many of them are free."""
        execute = self.connection.execute
        return execute("pragma page_count").fetchone()[0], execute("pragma freelist_count").fetchone()[0]

    def is_incremental(self) -> bool:
        """Whether `release_pages` can do anything: not in a file that another program has written anew."""
        return bool(self.connection.execute("pragma auto_vacuum").fetchone()[0] == _INCREMENTAL)

    def release_pages(self, pages: int) -> int:
        """Cut up to this many free pages off the file, in a transaction of its own; returns the number
        cut."""
        execute = self.connection.execute
        before, _ = self.pages()
        try:
            execute("begin immediate")
            for _ in range(pages):  # sqlite3 does one step of this pragma, which is one page
                execute("pragma incremental_vacuum(1)")
            execute("commit")
        except DISK_ERRORS:
            self.rollback()
            raise
        return before - self.pages()[0]

    def shrink(self) -> None:
        """Free the memory of pages that can be read again."""
        self.connection.execute("pragma shrink_memory")

    def size(self) -> int:
        """The bytes that it takes on disk, or in memory."""
        if self.path == ":memory:":
            pages: int = self.connection.execute("pragma page_count").fetchone()[0]
            return pages * PAGE_SIZE
        total = 0
        for path in (self.path, f"{self.path}-wal"):
            with suppress(FileNotFoundError):
                total += os.stat(path).st_size
        return total

    def close(self) -> None:
        self.connection.close()
        if self.presence is not None:
            self.presence.close()
            self.presence = None
        self._unlock()  # last: closing a descriptor of the file releases SQLite's own locks

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class FileLock:
    """The exclusive lock of a shard's file, for as long as it is open.

    Two locks: one beside the file, which whoever only reads it looks at, and one on the file itself.
    """

    def __init__(self, beside: TextIO, descriptor: int) -> None:
        self._beside, self.descriptor = beside, descriptor

    def take(self) -> bool:
        """Try to take both locks; returns whether that worked."""
        try:
            fcntl.flock(self._beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return lock_file(self.descriptor)

    def close(self) -> None:
        self._beside.close()
        os.close(self.descriptor)


def own(path: Path, wait_s: float) -> FileLock:
    """Lock the file, and make it if it is missing; DatabaseBusy after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while True:
        lock = _opened(path)
        if lock.take():
            return lock
        lock.close()  # reopened: another file may have been put in its place
        if time.monotonic() > deadline:
            raise DatabaseBusy(
                f"{path} is in use by another process: stop that server, or choose another folder"
            )
        time.sleep(0.05)


def _opened(path: Path) -> FileLock:
    """Open, or make, the file and its lock file as private. SQLite gives the files that it adds the same
    mode."""
    beside = open(path.with_suffix(".lock"), "w", opener=private)
    try:
        return FileLock(beside, private(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
    except BaseException:
        beside.close()
        raise
