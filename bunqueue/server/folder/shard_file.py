"""The file of a shard, read as it was at one moment, while its server may keep writing.

Never writes to it, and creates no files beside it that could block a server.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bunqueue.server.audit.trail import FOLDER, entries_as_json, files_in
from bunqueue.server.folder.data_folder import DataFolderError, is_served, read_manifest, shard_file
from bunqueue.server.folder.shard_values import FUNCTIONS, TOLERANT
from bunqueue.server.folder.unreadable import NoRoom, UnreadableShard

SCHEMA = 7  # the one that is read; the shards' own number is `shardproc.storage.schema.CURRENT`
ROWS = 8192  # fetched at a time: more is not faster
STEP = 4096  # pages that are copied at a time, 16 MiB
KEPT_FREE = 16 << 20  # bytes: a copy must not fill the disk of a server
_CACHE_KIB = 16_384
CHANGES_HANDS_S = 2.0  # for the next process of its host to open the file again
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

Row = tuple[Any, ...]


class Identity(NamedTuple):
    """Identifies a file that nothing writes to.  While it stays the same, the file can be read in pieces."""

    size: int
    modified_ns: int


def identity(path: Path) -> Identity | None:
    """The identity of a complete file, or None when the log beside it has more, or a server writes to it.

    Raises UnreadableShard when the file does not exist, or cannot be accessed.
    """
    try:
        status = path.stat()
        log = Path(f"{path}-wal")
        if log.exists() and (log.stat().st_size or _is_owned(path)):
            return None
    except OSError as error:
        raise _problem(path, error) from error
    return Identity(status.st_size, status.st_mtime_ns)


def _is_owned(path: Path) -> bool:
    """Whether a server has it open, or may have it open; see `shardproc.storage.database.own`."""
    try:
        with path.with_suffix(".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class ShardFile:
    """An open file: all queries see the same moment."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self.is_empty = False  # it has no tables yet

    def check(self) -> None:
        """Raise UnreadableShard unless the version is known.  This fixes the moment that queries see."""
        self._db.execute("begin")
        version = self._db.execute("pragma user_version").fetchone()[0]
        if version > SCHEMA:
            raise UnreadableShard(
                f"{self.path} was written by a newer version of bunqueue (schema {version}, this one reads "
                f"{SCHEMA}): upgrade bunqueue"
            )
        if 0 < version < SCHEMA:
            raise UnreadableShard(
                f"{self.path} was written by a version of bunqueue before 0.1.0 (schema {version}, this one "
                f"reads {SCHEMA}): read it with that version"
            )
        tables = self._db.execute("select count(*) from sqlite_schema").fetchone()[0]
        self.is_empty = version == 0 and not tables
        if version == 0 and tables:
            raise UnreadableShard(f"{self.path} is a database, but not one of bunqueue: check the path")

    def chunks(self, sql: str, parameters: Sequence[Any] = (), size: int = ROWS) -> Iterator[list[Row]]:
        """The rows of a query, ``size`` at a time."""
        with closing(self._db.execute(sql, parameters)) as cursor:
            while rows := cursor.fetchmany(size):
                yield rows

    def arrays(self, sql: str, parameters: Sequence[Any] = ()) -> list[list[Any]]:
        """The only row of a query, in which each value is a JSON array."""
        plain, self._db.text_factory = self._db.text_factory, bytes
        try:
            row = self._db.execute(sql, parameters).fetchone()
        finally:
            self._db.text_factory = plain
        return [orjson.loads(value) for value in row]

    @contextmanager
    def tolerant(self) -> Iterator[None]:
        """While it lasts, a value that cannot be decoded does not fail its query: a text keeps bytes that are
        not UTF-8 as surrogates, and functions give a REASON."""
        plain = self._db.text_factory
        self._db.text_factory = lambda encoded: encoded.decode(errors="surrogateescape")
        for name, function in TOLERANT.items():
            self._db.create_function(name, -1, function, deterministic=True)
        try:
            yield
        finally:
            self._db.text_factory = plain

    def check_pages(self) -> None:
        """Read all pages.  Raises UnreadableShard if one is damaged."""
        found = self._db.execute("pragma quick_check(1)").fetchone()[0]
        if found != "ok":
            raise UnreadableShard(f"{self.path} is damaged ({' '.join(found.split())}); {OTHERWISE}")

    def one(self, sql: str, *parameters: Any) -> Row | None:
        """The first row of a query."""
        found: Row | None = self._db.execute(sql, parameters).fetchone()
        return found

    def copy_to(self, target: Path) -> None:
        """Write everything into a new file that only this user may read.  Raises NoRoom when the disk is
        almost full.  The caller removes the partial file."""
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("pragma synchronous = off")
            copy.execute("pragma journal_mode = off")
            # The moment is fixed, so no transaction of a writer comes between two steps.
            self._db.backup(copy, pages=STEP, progress=lambda *_: self._check_room(target.parent), sleep=0)
            copy.execute(
                "pragma journal_mode = delete"
            )  # not the mode of the original: it needs no log beside it

    def _check_room(self, folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free < KEPT_FREE:
            raise NoRoom(
                f"{self.path} cannot be copied: {folder} has only {free / 1e6:,.0f} MB left, and "
                f"{KEPT_FREE / 1e6:,.0f} MB are kept for what else is on that disk; give another folder"
            )


@contextmanager
def opened(path: Path, expected: Identity | None = None) -> Iterator[ShardFile]:
    """Open a file for reading.  With ``expected`` it must be that file, and stay so until the end.

    Raises UnreadableShard when the file cannot be read, or has changed.
    """
    with ExitStack() as stack:
        try:
            found = identity(path)
            _check_same(path, expected, found)
            uri = _uri(path, found, stack)
            connection = stack.enter_context(closing(sqlite3.connect(uri, uri=True, isolation_level=None)))
            connection.execute(f"pragma cache_size = -{_CACHE_KIB}")
            for name, function in FUNCTIONS.items():
                connection.create_function(name, -1, function, deterministic=True)
            for name, reads in _beside(path).items():
                connection.create_function(name, -1, reads, deterministic=True)
            file = ShardFile(path, connection)
            file.check()
            yield file
            if found is not None:
                _check_same(path, found, identity(path))
        except (sqlite3.Error, OSError) as error:
            raise _problem(path, error) from error


@contextmanager
def current(path: Path, expected: Identity | None = None) -> Iterator[ShardFile]:
    """Like `opened`, but also raises UnreadableShard for a stale file: one of a store's shard that is not
    kept up to date here.

    A host of a cluster has files of the shards that it owns and of those that it follows.  Other files are
    old, or missing.
    """
    check_kept(path)
    with opened(path, expected) as file:
        yield file


def _beside(path: Path) -> dict[str, Callable[..., str]]:
    """SQL functions that read the trail, which is beside the file of the first shard: the names of its files,
    and the entries of one, as JSON lists."""
    folder = path.parent
    is_first = path.name == shard_file(folder, 0).name
    names = [file.path.name for file in files_in(folder / FOLDER)] if is_first else []
    return {
        "trail_files": lambda: orjson.dumps(names).decode(),
        "trail_entries": partial(entries_as_json, str(folder)),
    }


def check_kept(path: Path) -> None:
    """Raise UnreadableShard if the file belongs to a store's shard and is not kept up to date here."""
    try:
        manifest = read_manifest(path.parent)
    except DataFolderError:  # an embedded queue's file
        return
    if not manifest.store:
        return
    if not path.exists():
        raise UnreadableShard(f"{path} is missing: this host has no copy of the shard; {_ELSEWHERE}")
    deadline = time.monotonic() + CHANGES_HANDS_S
    while not _is_owned(path) and is_served(path.parent):
        if time.monotonic() > deadline:
            raise UnreadableShard(f"{path} is old: this host does not keep it up to date; {_ELSEWHERE}")
        time.sleep(0.05)  # until its process has started


_ELSEWHERE = (
    "read it on a host that does (bunqueue cluster status --shards), let each host keep copies of all shards "
    "(--cluster-copies), or leave it out with the option unreadable=skip"
)


def _check_same(path: Path, expected: Identity | None, found: Identity | None) -> None:
    if expected is not None and found != expected:
        raise UnreadableShard(
            f"{path} has changed while it was read, as a server was started on it, perhaps: read it again"
        )


def _uri(path: Path, found: Identity | None, stack: ExitStack) -> str:
    """The URI that opens the file and leaves nothing behind.

    Without a log, SQLite need not create files beside it.  With the log of a crash it must.  A server could
    not use such files of another user, so only the server's user creates them, and all others read a copy.
    """
    if found is not None:
        return f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    if not Path(f"{path}-shm").exists() and not _is_ours(path):
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bunqueue-")))
        for name in (path.name, f"{path.name}-wal"):
            shutil.copyfile(path.with_name(name), scratch / name)
        path = scratch / path.name
    return f"{path.absolute().as_uri()}?mode=ro"


def _is_ours(path: Path) -> bool:
    return os.geteuid() in (0, path.stat().st_uid) and os.access(path.parent, os.W_OK)


OTHERWISE = "restore it from a backup, or leave it out with the option unreadable=skip"


def is_about_a_value(error: Exception) -> bool:
    """Whether an error of a query is about a value that it has met, and not about the file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # without one: Python's, about a text
    is_of_query = isinstance(error, sqlite3.OperationalError | sqlite3.DataError)
    return is_of_query and code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG)


def _problem(path: Path, error: sqlite3.Error | OSError) -> UnreadableShard:
    """An error as a text that says what to do."""
    if isinstance(error, FileNotFoundError):
        return UnreadableShard(f"{path} is missing; {OTHERWISE}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return UnreadableShard(f"{path} cannot be copied: the disk is full; give another folder")
    if code in _DAMAGE:
        return UnreadableShard(f"{path} is damaged ({error}); {OTHERWISE}")
    reason = error.strerror if isinstance(error, OSError) else error
    return UnreadableShard(f"{path} cannot be read: {reason}; run this as a user who may read it")
